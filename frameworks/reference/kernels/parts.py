"""Operators that select, reverse and write parts of an array: Compress, ReverseSequence, TensorScatter, EyeLike."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import NetworkError, ShapeError
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.order import axis_of

__all__ = ["compress", "eye_like", "reverse_sequence", "tensor_scatter"]


def compress(x: Array, condition: Array, *, axis: int | None) -> Array:
    """ONNX Compress: the slices along an axis where the condition holds; elements of the flattened x if axis is None.

    Raises:
        ShapeError: The condition holds beyond the axis.
    """
    at = None if axis is None else axis_of("Compress", axis, x.ndim)
    kept, extent = np.flatnonzero(condition), x.size if at is None else x.shape[at]
    if kept.size and kept[-1] >= extent:
        raise ShapeError(f"Compress: the condition holds at {kept[-1]}; allowed: below {extent}")
    picked: Array = np.take(x, kept, axis=at)
    return picked


def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int, time_axis: int) -> Array:
    """ONNX ReverseSequence: reverses the first elements of each sequence in the batch, and keeps the others.

    Args:
        x: Rank 2 or more.
        lengths: The length of each sequence, (batch,).
        batch_axis: The batch axis, 0 or 1.
        time_axis: The time axis, the other of the two.

    Raises:
        ShapeError: The numbers of lengths and sequences differ, or a length is negative or exceeds the time axis.
    """
    steps, batch = x.shape[time_axis], x.shape[batch_axis]
    if {batch_axis, time_axis} != {0, 1}:
        raise ShapeError(
            f"ReverseSequence: got batch_axis {batch_axis} and time_axis {time_axis}; allowed: 0 and 1; remedy: a "
            "Transpose before and after"
        )
    if lengths.shape != (batch,) or (batch and not 0 <= lengths.min() <= lengths.max() <= steps):
        raise ShapeError(f"ReverseSequence: got lengths {lengths.tolist()}; allowed: {batch} of them, 0 to {steps}")
    time = np.arange(steps)[:, None]
    place = np.where(time < lengths, lengths - 1 - time, time)
    if time_axis == 1:
        return x[np.arange(batch)[:, None], place.T]
    return x[place, np.arange(batch)]


def tensor_scatter(past: Array, update: Array, places: Array | None = None, *, axis: int, circular: bool) -> Array:
    """ONNX TensorScatter: a copy of a cache with new elements written along the sequence axis.

    Args:
        past: (batch, …); it is not changed.
        update: The same shape, shorter along the axis.
        places: Start of each sample's new elements, (batch,); None: 0.
        axis: The sequence axis; not the first.
        circular: Whether positions wrap around at the end.

    Raises:
        ShapeError: The shapes do not match.
        NetworkError: A position is outside the cache.
    """
    at = axis_of("TensorScatter", axis, past.ndim)
    extent, count = past.shape[at], update.shape[at] if update.ndim == past.ndim else -1
    if not at or update.shape != (*past.shape[:at], count, *past.shape[at + 1 :]) or count > extent:
        raise ShapeError(f"TensorScatter: got an update of {update.shape} for {past.shape} along axis {at}")
    begin = np.zeros(past.shape[0], np.int64) if places is None else places
    if begin.shape != past.shape[:1]:
        raise ShapeError(f"TensorScatter: got write_indices of shape {begin.shape}; expected {past.shape[:1]}")
    index = begin[:, None] + np.arange(count)
    if circular:
        index %= max(extent, 1)
    elif index.size and not 0 <= index.min() <= index.max() < extent:
        raise NetworkError(f"TensorScatter: a place is outside the cache; allowed: 0 to {extent - 1}")
    present = np.array(past, order="C")
    np.moveaxis(present, at, 1)[np.arange(past.shape[0])[:, None], index] = np.moveaxis(update, at, 1)
    return present


def eye_like(x: Array, *, dtype: Any, diagonal: int) -> Array:
    """ONNX EyeLike: ones on a diagonal, zeros elsewhere, in the shape of x, which has rank 2."""
    if x.ndim != 2:
        raise ShapeError(f"EyeLike: got shape {x.shape}; allowed: two axes")
    return np.eye(x.shape[0], x.shape[1], k=diagonal, dtype=dtype or x.dtype)
