"""Memory of arrays: aligned parameters, scratch space, and the batch-last order that the kernels prefer.

Arrays keep ONNX's logical shape (N, C, *space); only their strides differ. With the batch innermost in memory a
sliding window is a copy of long contiguous runs, and every convolution is one large matrix product without transposes.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

__all__ = ["Array", "Scratch", "batch_last", "channels_last", "strided"]

Array = np.ndarray[Any, Any]

# The alignment that DLPack consumers (JAX) require to share memory without a copy.
_ALIGNMENT_BYTES = 64


def _aligned_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + _ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    aligned: Array = raw[start : start + size_bytes].view(dtype)
    return aligned.reshape(shape)


class Scratch(threading.local):
    """One buffer per thread for the columns of all convolutions of a network; it grows to the largest request.

    What `take` returns is overwritten by the thread's next `take`: a kernel must not return it.
    """

    def __init__(self) -> None:
        self._buffer: Array = np.empty(0, dtype=np.uint8)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialized C-contiguous array."""
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if self._buffer.nbytes < size_bytes:
            self._buffer = _aligned_empty((size_bytes,), np.uint8)
        return np.ndarray(shape, dtype, self._buffer)


def _padded(x: Array, begins: tuple[int, ...], ends: tuple[int, ...], first: int) -> Array:
    """Zero-pad the axes from `first`, with one entry of `begins` and `ends` per axis; C-contiguous."""
    if not any(begins) and not any(ends):
        return np.ascontiguousarray(x)
    rank = len(begins)
    space = x.shape[first : first + rank]
    padded = tuple(b + s + e for b, s, e in zip(begins, space, ends, strict=True))
    result = np.zeros((*x.shape[:first], *padded, *x.shape[first + rank :]), dtype=x.dtype)
    inner = tuple(slice(b, b + s) for b, s in zip(begins, space, strict=True))
    result[(slice(None),) * first + inner] = x
    return result


def batch_last(x: Array, begins: tuple[int, ...], ends: tuple[int, ...]) -> Array:
    """(N, C, *space) as (C, *space, N), zero-padded, C-contiguous; no copy if it already has this layout."""
    return _padded(x.transpose(*range(1, x.ndim), 0), begins, ends, 1)


def channels_last(x: Array, begins: tuple[int, ...], ends: tuple[int, ...]) -> Array:
    """(N, C, *space) as (N, *space, C), zero-padded, C-contiguous; no copy if it already has this layout."""
    return _padded(x.transpose(0, *range(2, x.ndim), 1), begins, ends, 1)


def strided(base: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of a contiguous array; `numpy.lib.stride_tricks.as_strided` without its 5 us of checks."""
    return np.ndarray(shape, base.dtype, base, 0, strides)
