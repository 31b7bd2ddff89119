"""What an operator did or says when it fails, out of what JAX makes of it."""

from __future__ import annotations

import re
from typing import Any

import jax

from deep5.core.errors import CommunicationError, Deep5Error, OperatorError, Unsupported
from deep5.networks.diagnostics.failures import failed

__all__ = ["failure", "named_failures"]

# As the shim writes it; what XLA adds stands around it.
_OURS = re.compile(r"\[deep5: (.*)\]", re.DOTALL)
# What a call to the host raised; JAX tells the class and the place, too.
_RANKS = re.compile(r"CommunicationError: (.*)")
_ON_HOST_ALONE = "a compiled operator runs on the host alone"


class _NamedFailures:
    """A class, since contextlib's managers take a µs."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, (jax.errors.JaxRuntimeError, jax.errors.UnexpectedTracerError)):
            raise failure(error) or failed(error, "jax") from error


named_failures = _NamedFailures
"""A context; while inside, what a compiled operator says arrives as an `OperatorError`, and what XLA says, as an error
of deep5's, too."""


def failure(error: Exception) -> Deep5Error | None:
    """What a compiled operator said, or one in Python did, or what went wrong between ranks, as an error of deep5's;
    None where the error is not one of its own."""
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return OperatorError(
            "an array that JAX traces was kept beyond the call that it belongs to; allowed: nothing that is kept "
            "between forward and backward of an operator; remedy: the inputs and outputs that backward gets"
        )
    if (said := _RANKS.search(str(error))) is not None:
        return CommunicationError(said[1])
    said = _OURS.search(str(error))
    if said is None:
        return None
    return Unsupported(said[1]) if said[1].startswith(_ON_HOST_ALONE) else OperatorError(said[1])
