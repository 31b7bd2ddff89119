"""Checks of the arrays that a rule's kernel works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deep5.core.errors import ShapeError

__all__ = ["checked_gradients", "checked_parameters"]

Shape = tuple[int, ...]


def checked_parameters(
    names: Sequence[str], shapes: Sequence[Shape], dtype: str, parameters: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Flat views of the live parameters.

    Args:
        names: The parameters.
        shapes: Their shapes.
        dtype: Their element type.
        parameters: C-contiguous arrays over the live memory, by name.

    Raises:
        ShapeError: One is missing, strided, read-only, or of another shape or dtype.
    """
    live = []
    for name, array in zip(names, _fitting("parameter", names, shapes, dtype, parameters), strict=True):
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ShapeError(f"parameter {name!r}: got strided or read-only memory; allowed: contiguous, writable")
        live.append(array.reshape(-1))
    return live


def checked_gradients(
    names: Sequence[str], shapes: Sequence[Shape], dtype: str, gradients: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The gradients in the order of the names, contiguous (copied only if they are not).

    Args:
        names: The parameters.
        shapes: Their shapes.
        dtype: Their element type.
        gradients: Arrays by name.

    Raises:
        ShapeError: One is missing, or of another shape or dtype.
    """
    return [np.ascontiguousarray(array) for array in _fitting("gradient of", names, shapes, dtype, gradients)]


def _fitting(
    what: str, names: Sequence[str], shapes: Sequence[Shape], dtype: str, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The arrays in the order of the names.

    Raises:
        ShapeError: One is missing, or of another shape or dtype.
    """
    found = []
    for name, shape in zip(names, shapes, strict=True):
        if name not in arrays:
            raise ShapeError(f"the {what} {name!r} is missing; allowed: {', '.join(names)}")
        array = arrays[name]
        if array.shape != shape or str(array.dtype) != dtype:
            raise ShapeError(f"{what} {name!r}: got {array.dtype}{array.shape}, expected {dtype}{shape}")
        found.append(array)
    return found
