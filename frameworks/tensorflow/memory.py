"""NumPy's memory as TensorFlow's, on the host.

A fresh `tf.constant` costs a step ten times what it costs alone: 5 us, and 30 to 40 us in the function that is called
next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.core.tensors import aligned_empty

__all__ = ["HostVector", "apart_from", "shared"]

_ALIGNMENT = 64
# Operations that may give away the memory of what they are given, or a part of it: as it is, under another shape, or
# where there is nothing to do for them (a transpose of axes of extent 1, a sum over none, a slice of all).
_PASSING = {
    *("Bitcast", "CheckNumerics", "EnsureShape", "Identity", "IdentityN", "Snapshot"),
    *("PreventGradient", "StopGradient"),
    *("ExpandDims", "Reshape", "Squeeze", "Einsum", "Transpose", "BroadcastTo", "Tile", "Roll", "ReverseV2"),
    *("Concat", "ConcatV2", "Pack", "Slice", "Split", "SplitV", "StridedSlice", "Unpack"),
    *("MirrorPad", "Pad", "PadV2", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"),
    *("BatchToSpaceND", "DepthToSpace", "SpaceToBatchND", "SpaceToDepth"),
    *("AddN", "Max", "Mean", "Min", "Prod", "Sum"),
    *("If", "StatelessIf", "While", "StatelessWhile", "Select", "SelectV2"),
    *("PartitionedCall", "StatefulPartitionedCall"),
}
# Two of one after the other are left out when TensorFlow rewrites a graph.
_INVOLUTIONS = ("Conj", "LogicalNot", "Neg", "Reciprocal")


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


def apart_from(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a function that is traced, with a copy of each that might lie in the memory of an input; copies of
    all where nothing is traced, and nobody knows."""
    if tf.executing_eagerly():
        return tuple([tf.raw_ops.DeepCopy(x=value) for value in outputs])
    fed = {value.ref() for value in inputs}
    # TensorFlow's rewriting leaves this operation alone, as it would not a sum with zero.
    return tuple([tf.raw_ops.DeepCopy(x=value) if _passed(value, fed) else value for value in outputs])


def _passed(output: Any, fed: set[Any]) -> bool:
    seen: set[Any] = set()
    left = [output]
    while left:
        value = left.pop()
        if value.ref() in fed:
            return True
        operation = value.op
        if value.ref() not in seen and operation.type in _PASSING:
            left += [given for given in operation.inputs if given.dtype == value.dtype or operation.type == "Bitcast"]
        elif operation.type in _INVOLUTIONS and operation.inputs[0].op.type == operation.type:
            left += operation.inputs[0].op.inputs
        seen.add(value.ref())
    return False


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
