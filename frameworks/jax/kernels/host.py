"""Values that are read on the host, where they are known: of what runs operator by operator, or while JAX traces."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from deep5.core.errors import ShapeError

__all__ = ["check_indices", "host_array", "is_known", "on_host"]


def host_array(value: Any) -> np.ndarray:
    """A known value as NumPy's; no gradient goes through it."""
    return np.asarray(value if is_known(value) else lax.stop_gradient(value))


def on_host(value: Any) -> tuple[Any, ...]:
    """A setting as Python's numbers, of any shape in a row."""
    return tuple(host_array(value).reshape(-1).tolist())


def is_known(value: Any) -> bool:
    """Whether a value can be read now."""
    return not isinstance(value, jax.core.Tracer)


def check_indices(indices: Any, extent: int) -> None:
    """Refuse known indices that are outside an axis.

    Raises:
        ShapeError: One is.
    """
    array = host_array(indices)
    wrong = array[(array < -extent) | (array >= extent)]
    if wrong.size:
        raise ShapeError(f"the index {wrong.flat[0]} is outside its axis; allowed: {-extent} to {extent - 1}")
