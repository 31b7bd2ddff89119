"""NumPy memory shared with TensorFlow, on the host.

A fresh `tf.constant` costs a step ten times what it costs by itself: 5 us, plus 30 to 40 us in the next function call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.core.tensors import aligned_empty, is_bfloat16

__all__ = ["HostVector", "apart_from", "shared"]

_ALIGNMENT = 64
# Operations that may return the memory of their input, or a part of it: unchanged, reshaped, or if there is nothing to
# compute (a transpose of dimensions of size 1, a sum over no axes, a full slice).
_PASSING = {
    *("Bitcast", "CheckNumerics", "EnsureShape", "Identity", "Snapshot"),
    *("PreventGradient", "StopGradient"),
    *("ExpandDims", "Reshape", "Squeeze", "Einsum", "Transpose", "BroadcastTo", "Tile", "Roll", "ReverseV2"),
    *("Concat", "ConcatV2", "Pack", "Slice", "Split", "SplitV", "StridedSlice", "Unpack"),
    *("MirrorPad", "Pad", "PadV2", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"),
    *("BatchToSpaceND", "DepthToSpace", "SpaceToBatchND", "SpaceToDepth"),
    *("AddN", "Max", "Mean", "Min", "Prod", "Sum"),
    *("If", "StatelessIf", "While", "StatelessWhile", "Select", "SelectV2"),
    *("PartitionedCall", "StatefulPartitionedCall"),
}
# TensorFlow's graph rewriting removes two of these in a row.
_INVOLUTIONS = ("Conj", "LogicalNot", "Neg", "Reciprocal")


def shared(array: np.ndarray) -> tf.Tensor:
    """A non-empty array of numbers as a tensor.

    Args:
        array: Shared if it is contiguous, writable and aligned for TensorFlow's kernels; otherwise copied.
    """
    if not array.flags.carray or _address(array) % _ALIGNMENT:
        # Not aligned_empty, which uses ctypes: between two steps, that takes as long as three copies of an image.
        raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
        start = -_address(raw) % _ALIGNMENT
        copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        array = copy
    if is_bfloat16(array):  # which NumPy's buffer exchange does not support
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__()), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def apart_from(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a traced function, copying each that might share an input's memory; eagerly, copies of all."""
    if tf.executing_eagerly():
        return tuple([tf.raw_ops.DeepCopy(x=value) for value in outputs])
    fed = {value.ref() for value in inputs}
    # TensorFlow's graph rewriting keeps this operation, but would remove a sum with zero.
    return tuple([tf.raw_ops.DeepCopy(x=value) if _passed(value, fed) else value for value in outputs])


def _passed(output: Any, fed: set[Any]) -> bool:
    seen: set[Any] = set()
    left = [output]
    while left:
        value = left.pop()
        if value.ref() in fed:
            return True
        operation = value.op
        if operation.type == "IdentityN":  # each output is one input
            left.append(operation.inputs[value.value_index])
        elif value.ref() not in seen and operation.type in _PASSING:
            left += [given for given in operation.inputs if given.dtype == value.dtype or operation.type == "Bitcast"]
        elif operation.type in _INVOLUTIONS and operation.inputs[0].op.type == operation.type:
            left += operation.inputs[0].op.inputs
        seen.add(value.ref())
    return False


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class HostVector:
    """A float64 vector as an argument of a function that is called repeatedly with different numbers.

    Only for functions that finish before the call returns: then the memory can be overwritten.

    Args:
        size: Number of elements, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._memory = aligned_empty((size,), np.float64)
        self._tensor = shared(self._memory)

    def __call__(self, numbers: np.ndarray) -> tf.Tensor:
        """The tensor with these numbers, valid until the next call."""
        self._memory[:] = numbers
        return self._tensor
