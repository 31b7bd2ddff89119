"""Operators that gather and scatter elements by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import NetworkError, ShapeError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"]


def gather(x: Array, indices: Array, *, axis: int) -> Array:
    """ONNX Gather: slices of x along an axis; negative indices count from the end.

    Raises:
        NetworkError: An index is out of range.
    """
    try:
        picked: Array = np.take(x, indices, axis=axis)
    except IndexError as error:
        raise _outside("Gather", x.shape[axis]) from error
    return picked


def gather_elements(x: Array, indices: Array, *, axis: int) -> Array:
    """ONNX GatherElements: one element of x for every index along one axis.

    Raises:
        NetworkError: An index is out of range.
    """
    try:
        return x[_places(indices, axis)]  # type: ignore[no-any-return]
    except IndexError as error:
        raise _outside("GatherElements", x.shape[axis]) from error


def gather_nd(x: Array, indices: Array, *, batch_dims: int) -> Array:
    """ONNX GatherND: the last axis of indices holds indices into the leading axes of x after the batch axes."""
    batch = x.shape[:batch_dims]
    lead = tuple(np.ix_(*map(np.arange, batch))) if batch else ()
    rest = indices.ndim - 1 - batch_dims
    grid = tuple(index.reshape(*index.shape, *[1] * rest) for index in lead)
    try:
        return x[(*grid, *np.moveaxis(indices, -1, 0))]  # type: ignore[no-any-return]
    except IndexError as error:
        raise NetworkError(f"GatherND: {error}; allowed: indices within shape {x.shape}") from error


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def scatter_elements(data: Array, indices: Array, updates: Array, *, axis: int, reduction: str) -> Array:
    """ONNX ScatterElements: a copy of data with updates stored, or combined by the reduction.

    Args:
        data: Any shape.
        indices: Positions along `axis`, the rank of data; negative ones count from the end.
        updates: Values, the shape of indices.
        axis: The indexed axis.
        reduction: `"none"`, `"add"`, `"mul"`, `"min"` or `"max"`.

    Raises:
        NetworkError: An index is out of range.
    """
    if indices.shape != updates.shape:
        raise ShapeError(f"ScatterElements: updates have shape {updates.shape}, expected {indices.shape}, as indices")
    result = np.array(data, order="C")
    extent = data.shape[axis]
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise _outside("ScatterElements", extent)
    place = _places(indices, axis)
    if reduction == "none":
        result[place] = updates
    else:
        _REDUCTIONS[reduction].at(result, place, updates)
    return result


def scatter_nd(data: Array, indices: Array, updates: Array, *, reduction: str) -> Array:
    """ONNX ScatterND: a copy of data with updates stored, or combined by the reduction.

    Args:
        data: Any shape.
        indices: The last axis holds indices into the leading axes of data; negative ones count from the end.
        updates: (*indices.shape[:-1], *the rest of data's axes).
        reduction: `"none"`, `"add"`, `"mul"`, `"min"` or `"max"`.

    Raises:
        NetworkError: An index is out of range.
    """
    result = np.array(data, order="C")
    place = tuple(np.moveaxis(indices, -1, 0))
    try:
        if reduction == "none":
            result[place] = updates
        else:
            _REDUCTIONS[reduction].at(result, place, updates)
    except IndexError as error:
        raise NetworkError(f"ScatterND: {error}; allowed: indices within shape {data.shape}") from error
    return result


def _places(indices: Array, axis: int) -> Any:
    """NumPy's index for indices along one axis that keep their position along the others."""
    if indices.ndim == 1:
        return indices
    grid: list[Any] = list(np.ix_(*map(np.arange, indices.shape)))
    grid[axis] = indices
    return tuple(grid)


def _outside(operator: str, extent: int) -> NetworkError:
    return NetworkError(f"{operator}: an index is outside the axis; allowed: -{extent} to {extent - 1}")
