"""Extracts the error of a failed operator from JAX's exception."""

from __future__ import annotations

import re
from typing import Any

import jax

from deep5.core.errors import CommunicationError, Deep5Error, OperatorError, Unsupported
from deep5.networks.diagnostics.failures import failed

__all__ = ["failure", "named_failures"]

# The shim's format; XLA adds text around it.
_OURS = re.compile(r"\[deep5: (.*)\]", re.DOTALL)
# An error raised by a call to the host; JAX's message adds the class and the location.
_RANKS = re.compile(r"CommunicationError: (.*)")
_ON_HOST_ALONE = "a compiled operator runs on the host alone"


class _NamedFailures:
    """A class, because a contextlib context manager takes a microsecond."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, (jax.errors.JaxRuntimeError, jax.errors.UnexpectedTracerError)):
            raise failure(error) or failed(error, "jax") from error


named_failures = _NamedFailures
"""A context that converts errors of compiled operators to `OperatorError`, and errors of XLA to deep5 errors."""


def failure(error: Exception) -> Deep5Error | None:
    """The error of a compiled or Python operator, or of communication between ranks, as a deep5 error; else None."""
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
