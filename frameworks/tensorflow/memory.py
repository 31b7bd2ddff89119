"""NumPy's memory as TensorFlow's, on the host.

A fresh `tf.constant` costs a step ten times what it costs alone: 5 us, and 30 to 40 us in the function that is called
next.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from deep5.tensors import aligned_empty

__all__ = ["HostVector", "shared"]

_ALIGNMENT = 64


def shared(array: np.ndarray) -> tf.Tensor:
    """An array of numbers, not empty, as a tensor.

    Args:
        array: Shared where it is contiguous, writable and aligned as TensorFlow's kernels want it; otherwise copied.
    """
    if not array.flags.carray or _address(array) % _ALIGNMENT:
        # Not aligned_empty, which asks ctypes: between two steps, that takes as long as three copies of an image.
        raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
        start = -_address(raw) % _ALIGNMENT
        copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        array = copy
    if array.dtype.name == "bfloat16":  # which NumPy's exchange does not know
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__()), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class HostVector:
    """One float64 vector as an argument of a function that is called again and again, each time with other numbers.

    To be used where a function has finished when its call returns: then the memory may be written to.

    Args:
        size: How many numbers, at least one.
    """

    def __init__(self, size: int) -> None:
        self._memory = aligned_empty((size,), np.float64)
        self._tensor = shared(self._memory)

    def __call__(self, numbers: np.ndarray) -> tf.Tensor:
        """The tensor with these numbers, until the next call."""
        self._memory[:] = numbers
        return self._tensor
