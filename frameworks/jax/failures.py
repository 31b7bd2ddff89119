"""What a compiled operator says when it fails, out of what XLA makes of it."""

from __future__ import annotations

import re
from typing import Any

import jax

from deep5.errors import Deep5Error, OperatorError, Unsupported

__all__ = ["failure", "named_failures"]

# As the shim writes it; what XLA adds stands around it.
_OURS = re.compile(r"\[deep5: (.*)\]", re.DOTALL)
_ON_HOST_ALONE = "a compiled operator runs on the host alone"


class _NamedFailures:
    """A class, since contextlib's managers take a µs."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError) and (said := failure(error)) is not None:
            raise said from error


named_failures = _NamedFailures
"""A context; while inside, what a compiled operator says arrives as an `OperatorError`."""


def failure(error: Exception) -> Deep5Error | None:
    """What a compiled operator said, as an error of deep5's; None where the error is not one of its own."""
    said = _OURS.search(str(error))
    if said is None:
        return None
    return Unsupported(said[1]) if said[1].startswith(_ON_HOST_ALONE) else OperatorError(said[1])
