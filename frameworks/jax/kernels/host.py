"""Values read on the host, when they are known: in operator-by-operator execution, or during tracing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from deep5.core.errors import ShapeError

__all__ = ["check_indices", "host_array", "is_known", "on_host"]


def host_array(value: Any) -> np.ndarray:
    """A known value as a NumPy array; gradients do not pass through it."""
    return np.asarray(value if is_known(value) else lax.stop_gradient(value))


def on_host(value: Any) -> tuple[Any, ...]:
    """A setting as a flat tuple of Python numbers, from any shape."""
    return tuple(host_array(value).reshape(-1).tolist())


def is_known(value: Any) -> bool:
    """Whether a value can be read now."""
    return not isinstance(value, jax.core.Tracer)


def check_indices(indices: Any, extent: int) -> None:
    """Reject known indices that are out of range.

    Raises:
        ShapeError: An index is out of range.
    """
    array = host_array(indices)
    wrong = array[(array < -extent) | (array >= extent)]
    if wrong.size:
        raise ShapeError(f"the index {wrong.flat[0]} is outside its axis; allowed: {-extent} to {extent - 1}")
