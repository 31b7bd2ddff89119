"""Operators along an axis: extremes, top-k, unique elements, cumulative sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["axis_of", "cumulative", "extreme_index", "hardmax", "top_k", "unique"]


def axis_of(operator: str, axis: Any, rank: int) -> int:
    """A non-negative axis.

    Raises:
        ShapeError: There is no such axis.
    """
    at = int(np.asarray(axis).reshape(()))
    if not -rank <= at < rank:
        raise ShapeError(f"{operator}: got axis {at} of {rank} dimensions; allowed: {-rank} to {rank - 1}")
    return at % rank


def extreme_index(x: Array, *, largest: bool, axis: int, keepdims: bool, select_last_index: bool) -> Array:
    """ONNX ArgMax and ArgMin: the index of the extreme along an axis; NaN takes precedence.

    Args:
        x: At least one element along the axis.
        largest: Whether to find the largest, else the smallest.
        axis: The axis.
        keepdims: Whether it stays, with size 1.
        select_last_index: Whether to select the last of equal extremes instead of the first.

    Returns:
        int64.

    Raises:
        ShapeError: The axis has no elements.
    """
    name = "ArgMax" if largest else "ArgMin"
    at = axis_of(name, axis, x.ndim)
    if not x.shape[at]:
        raise ShapeError(f"{name}: axis {at} of shape {x.shape} has no elements; allowed: at least one")
    find = np.argmax if largest else np.argmin
    found = find(np.flip(x, at) if select_last_index else x, axis=at, keepdims=keepdims)
    return np.asarray(x.shape[at] - 1 - found if select_last_index else found, dtype=np.int64)


def hardmax(x: Array, *, axis: int) -> Array:
    """ONNX Hardmax: 1 at the first maximum along an axis, 0 elsewhere."""
    y = np.zeros_like(x)
    if x.size:
        place = extreme_index(x, largest=True, axis=axis, keepdims=True, select_last_index=False)
        np.put_along_axis(y, place, 1, axis=axis)
    return y


def top_k(x: Array, count: Array, *, axis: int, largest: bool) -> tuple[Array, Array]:
    """ONNX TopK: the largest or smallest elements along an axis, sorted; of equal ones, the lower index comes first.

    Args:
        x: Any shape; NaN is larger than all numbers.
        count: The number of elements.
        axis: The axis.
        largest: Whether to find the largest, else the smallest.

    Returns:
        The values, and their indices along the axis, int64.

    Raises:
        ShapeError: `count` is negative or exceeds the size of the axis.
    """
    at, k = axis_of("TopK", axis, x.ndim), int(np.asarray(count).reshape(()))
    if not 0 <= k <= x.shape[at]:
        raise ShapeError(f"TopK: got k {k} for an axis of {x.shape[at]} elements; allowed: 0 to {x.shape[at]}")
    if largest:
        # A stable ascending sort of the reversed axis puts equal elements of higher index first, so they come last
        # after the flip.
        order = np.flip(x.shape[at] - 1 - np.argsort(np.flip(x, at), axis=at, stable=True), at)
    else:
        order = np.argsort(x, axis=at, stable=True)
    place = np.take(order, np.arange(k), axis=at).astype(np.int64, copy=False)
    return np.take_along_axis(x, place, axis=at), place


def unique(x: Array, *, axis: int | None, in_order: bool) -> tuple[Array, Array, Array, Array]:
    """ONNX Unique: the unique elements, or the unique slices along an axis.

    Args:
        x: Any shape.
        axis: The axis; None: x is flattened.
        in_order: Whether to sort them, else they are in order of first occurrence.

    Returns:
        The unique elements; the index of each one's first occurrence; the index into them for every element of x; and
        their counts. The last three are int64, 1-D.
    """
    if axis is not None and x.dtype.kind == "O":  # NumPy compares slices of numbers only: use their ranks
        words, ranks = np.unique(x, return_inverse=True)
        y, *rest = unique(ranks.reshape(x.shape), axis=axis, in_order=in_order)
        return (words[y], *rest)  # type: ignore[return-value]
    at = None if axis is None else axis_of("Unique", axis, x.ndim)
    y, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=at)
    inverse = inverse.reshape(-1)
    if not in_order:
        order = np.argsort(first)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        y, first, inverse, counts = np.take(y, order, axis=at or 0), first[order], places[inverse], counts[order]
    return y, *(index.astype(np.int64, copy=False) for index in (first, inverse, counts))  # type: ignore[return-value]


def cumulative(x: Array, axis: Any, *, ufunc: np.ufunc, exclusive: bool, reverse: bool) -> Array:
    """ONNX CumSum and CumProd: the cumulative sum or product along an axis.

    Args:
        x: Any shape.
        axis: The axis.
        ufunc: Combines two elements, `numpy.add` or `numpy.multiply`.
        exclusive: Whether to exclude the element itself.
        reverse: Whether to accumulate from the end.
    """
    at = axis_of("CumSum" if ufunc is np.add else "CumProd", axis, x.ndim)
    turned = np.flip(x, at) if reverse else x
    total = ufunc.accumulate(turned, axis=at, dtype=x.dtype)
    if exclusive and x.shape[at]:
        before = np.full_like(total, ufunc.identity)
        moved, kept = np.moveaxis(before, at, 0), np.moveaxis(total, at, 0)
        moved[1:] = kept[:-1]
        total = before
    return np.flip(total, at) if reverse else total
