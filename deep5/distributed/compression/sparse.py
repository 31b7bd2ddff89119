"""Sparse messages: the largest elements of a buffer, as indices and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import CommunicationError, UsageError, brief
from deep5.distributed.compression.scratch import Scratch

__all__ = [
    "INDEX",
    "add_stream",
    "check_share",
    "chosen",
    "largest",
    "pack_stream",
    "share_of",
    "stream_bytes",
    "unpack_stream",
]

INDEX = np.dtype(np.uint32)


def check_share(name: str, ratio: Any, k: Any) -> tuple[float | None, int | None]:
    """Check the share to send: a ratio, or a number of elements.

    Returns:
        Both values, one of them None; a ratio of 0.01 if neither is given.

    Raises:
        UsageError: Both are given, or one is out of range.
    """
    if ratio is not None and k is not None:
        raise UsageError(f"{name}: got ratio={brief(ratio)} and k={brief(k)}; allowed: one of them")
    if k is not None:
        if not is_whole(k) or k < 1:
            raise UsageError(f"{name}: got k={brief(k)}; allowed: an integer of at least 1")
        return None, int(k)
    ratio = 0.01 if ratio is None else ratio
    if not is_finite(ratio) or not 0 < ratio <= 1:
        raise UsageError(f"{name}: got ratio={brief(ratio)}; allowed: a number above 0, and at most 1")
    return float(ratio), None


def share_of(count: int, ratio: float | None, k: int | None) -> int:
    """k for this many elements: max(1, round(ratio · n)), at most n."""
    wanted = k if ratio is None else max(1, round(ratio * count))
    return min(count, wanted or 0)


def stream_bytes(count: int, k: int, dtype: Any) -> int:
    """Bytes of a sparse message: min(k · (4 + w), n · w) for n elements of w bytes.

    Raises:
        UsageError: The dtype is not float32 or float64, or there are more elements than a 4-byte index can address.
    """
    width = item_bytes(dtype)
    if count > 2**32:
        raise UsageError(f"got {count} elements to sparsify; allowed: at most {2**32}; remedy: smaller buckets")
    return min(k * (INDEX.itemsize + width), count * width)


def item_bytes(dtype: Any) -> int:
    """Bytes per element.

    Raises:
        UsageError: The dtype is not float32 or float64.
    """
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise UsageError(f"got elements of {np.dtype(dtype)} to compress; allowed: float32, float64")
    return int(np.dtype(dtype).itemsize)


def largest(values: np.ndarray, k: int, scratch: Scratch) -> np.ndarray:
    """Sorted indices of the k elements of largest magnitude; of equal ones the first. NaN counts as above infinity."""
    count = values.size
    if k >= count:
        return np.arange(count)
    unsigned = np.dtype(f"u{values.itemsize}")
    # Without the sign bit, floating-point bit patterns sort like the numbers.
    magnitudes = scratch.take("magnitudes", count, unsigned)
    np.bitwise_and(values.view(unsigned), unsigned.type(np.iinfo(unsigned).max >> 1), out=magnitudes)
    partitioned = scratch.take("partitioned", count, unsigned)
    partitioned[...] = magnitudes
    partitioned.partition(count - k)
    threshold = partitioned[count - k]
    found = np.flatnonzero(magnitudes >= threshold)
    if found.size > k:
        equal = np.flatnonzero(magnitudes[found] == threshold)
        found = np.delete(found, equal[equal.size - (found.size - k) :])
    return found


def pack_stream(values: np.ndarray, message: np.ndarray, k: int, scratch: Scratch) -> None:
    """Fill a message with the k largest elements: the indices, then the values.

    If that would take no fewer bytes than all values, the message holds all values.
    """
    if message.size == values.nbytes:
        message[...] = values.view(np.uint8)
        return
    found = largest(values, k, scratch)
    message[: k * INDEX.itemsize].view(INDEX)[...] = found
    message[k * INDEX.itemsize :].view(values.dtype)[...] = values[found]


def chosen(message: np.ndarray, count: int, dtype: Any) -> tuple[Any, np.ndarray]:
    """Indices (a slice if all elements were sent) and values of a message for a buffer of `count` elements.

    Raises:
        CommunicationError: An index is outside the buffer.
    """
    width = np.dtype(dtype).itemsize
    if message.size == count * width:
        return slice(None), message.view(dtype)
    begin = message.size // (INDEX.itemsize + width) * INDEX.itemsize
    indices = message[:begin].view(INDEX)
    if indices.max() >= count:
        raise CommunicationError(
            f"a sparse message has an element {indices.max()}; allowed: below {count}, the size of the buffer"
        )
    return indices, message[begin:].view(dtype)


def unpack_stream(message: np.ndarray, out: np.ndarray) -> None:
    """Decode a message: elements that were not sent are zero."""
    indices, values = chosen(message, out.size, out.dtype)
    out[...] = 0
    out[indices] = values


def add_stream(message: np.ndarray, total: np.ndarray) -> None:
    """Add a decoded message; each index occurs once."""
    indices, values = chosen(message, total.size, total.dtype)
    total[indices] += values
