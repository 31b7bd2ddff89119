"""Batches gathered from arrays in memory, small ones many at a time: what NumPy takes for a call is shared by all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

__all__ = ["gathered"]

# Batches up to this size are gathered together: of larger ones the copy takes longer than the call, and a gather that
# leaves the nearest cache takes longer than one that stays in it.
_SMALL_BYTES = 1 << 13
# What is gathered together at most, and what a batch that somebody keeps holds alive.
_BYTES = 1 << 16
# As NumPy's own memory is aligned. What a kernel gives may depend on it in the last bit, and has to be the same
# whichever batches are gathered together: behind a resume they are others.
_ALIGNMENT = 16


def gathered(
    arrays: Mapping[str, np.ndarray], order: np.ndarray, size: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Batches of so many samples in this order, each its indices and the samples by name; the last may be smaller.

    No two batches overlap in memory, but small ones share an allocation.

    Args:
        arrays: The samples' parts; the first axis counts samples.
        order: int64, shape (samples,).
        size: Samples a batch.

    Raises:
        IndexError: An index is of no sample.
    """
    parts, end, begin = tuple(arrays.items()), len(order), 0
    batch_bytes = size * max(1, sum(array[:1].nbytes for array in arrays.values()))
    if batch_bytes <= _SMALL_BYTES and not any(array.dtype.hasobject for _, array in parts):
        together = _BYTES // batch_bytes * size
        for begin in range(0, end - end % size, together):
            ids = order[begin : begin + together]
            count = len(ids) // size
            ids = ids[: count * size]
            split = [_apart(array.take(ids, axis=0), count) for _, array in parts]
            for own, values in zip(ids.reshape(count, size), zip(*split, strict=True), strict=True):
                yield own, dict(zip(arrays, values))  # noqa: B905  # strict takes a tenth of the batch's time
        begin = end - end % size
    takes = [(name, array.take) for name, array in parts]
    for first in range(begin, end, size):
        ids = order[first : first + size]
        # take is the fastest gather that NumPy has; fancy indexing costs half as much again on a small batch.
        batch = {}
        for name, take in takes:
            batch[name] = take(ids, 0)
        yield ids, batch


def _apart(array: np.ndarray, count: int) -> np.ndarray:
    """The array as so many batches, shape (count, batch_size, …), each contiguous and aligned."""
    split = array.reshape(count, len(array) // count, *array.shape[1:])
    batch_bytes = split[0].nbytes
    if batch_bytes % _ALIGNMENT == 0:
        return split
    stride = -(-batch_bytes // _ALIGNMENT) * _ALIGNMENT
    rows = np.empty((count, stride), np.uint8)
    found = np.ndarray(split.shape, array.dtype, rows.data, strides=(stride, *split.strides[1:]))
    found[...] = split
    return found
