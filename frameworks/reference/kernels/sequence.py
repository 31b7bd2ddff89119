"""Operators on lists of arrays, and on values that may be None."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import NetworkError

__all__ = ["concatenate", "element", "erase", "held", "insert", "split"]


def element(values: list[Any], position: np.ndarray) -> Any:
    """The element at a position; negative positions count from the end."""
    return values[_place(position, len(values), 0)]


def insert(values: list[Any], value: Any, position: np.ndarray | None = None) -> list[Any]:
    """A copy of a list with an element inserted before a position; None: at the end."""
    place = len(values) if position is None else _place(position, len(values), 1)
    return [*values[:place], value, *values[place:]]


def erase(values: list[Any], position: np.ndarray | None = None) -> list[Any]:
    """A copy of a list without the element at a position; None: without the last."""
    place = _place(np.array(-1) if position is None else position, len(values), 0)
    return [*values[:place], *values[place + 1 :]]


def concatenate(values: list[Any], *, axis: int, new_axis: int) -> np.ndarray:
    """The elements concatenated along an existing axis, or stacked along a new one.

    Raises:
        NetworkError: The list is empty, so it has no shape.
    """
    if not values:
        raise NetworkError("ConcatFromSequence of an empty sequence; allowed: at least one element")
    joined: np.ndarray = np.stack(values, axis) if new_axis else np.concatenate(values, axis)
    return joined


def split(x: np.ndarray, sizes: np.ndarray | None = None, *, axis: int, keepdims: bool) -> list[np.ndarray]:
    """Split into parts of these sizes, of one size except for the last, or of one slice each.

    Args:
        x: The array.
        sizes: One size for all, or one per part; None: slices, which lose the axis if `keepdims` is false.
        axis: The axis to split.
        keepdims: See `sizes`; only used without sizes.

    Raises:
        NetworkError: The sizes do not add up to that of the axis.
    """
    extent = x.shape[axis]
    if sizes is None:
        parts = [x.take([number], axis) for number in range(extent)]
        return parts if keepdims else [part.squeeze(axis) for part in parts]
    if sizes.ndim == 0:
        size = int(sizes)
        if size < 1:
            raise NetworkError(f"SplitToSequence into parts of {size}; allowed: at least 1")
        ends = list(range(size, extent, size))
    else:
        if int(sizes.sum()) != extent or (sizes < 0).any():
            raise NetworkError(
                f"SplitToSequence into {sizes.tolist()} of an axis of {extent}; allowed: sizes that add up"
            )
        ends = np.cumsum(sizes)[:-1].tolist()
    return list(np.split(x, ends, axis))


def held(value: Any) -> Any:
    """The content of an optional value.

    Raises:
        NetworkError: It is empty.
    """
    if value is None:
        raise NetworkError(
            "OptionalGetElement of an optional value that holds nothing; allowed: one that holds a value"
        )
    return value


def _place(position: np.ndarray, count: int, beyond: int) -> int:
    place = int(np.reshape(position, ()))
    if not -count <= place < count + beyond:
        raise NetworkError(f"the position {place} in a sequence of {count}; allowed: {-count} to {count - 1 + beyond}")
    return place + count if place < 0 else place
