"""Operators on the bits of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["bit_cast", "bit_shift"]

_NIBBLES = {
    ir.DataType.INT4: 4,
    ir.DataType.UINT4: 4,
    ir.DataType.FLOAT4E2M1: 4,
    ir.DataType.INT2: 2,
    ir.DataType.UINT2: 2,
}
_SIGNED = (ir.DataType.INT4, ir.DataType.INT2)


def bit_shift(x: Array, by: Array, *, left: bool) -> Array:
    """ONNX BitShift: shift the bits of x; a right shift of a negative number keeps its sign.

    Args:
        x: Integers.
        by: The shift counts, of the dtype of x, broadcast; a count that is negative or at least the number of bits of x
            leaves only copies of the sign.
        left: Whether to shift towards the higher bits.
    """
    width = 8 * x.dtype.itemsize
    far = (by < 0) | (by >= width)
    moved = (np.left_shift if left else np.right_shift)(x, np.where(far, 0, by).astype(x.dtype))
    rest = np.zeros_like(x) if left or x.dtype.kind == "u" else np.right_shift(x, x.dtype.type(width - 1))
    return np.where(far, rest, moved)


def bit_cast(x: Array, *, kind: ir.DataType, was: ir.DataType) -> Array:
    """ONNX BitCast: the bits of x read as another dtype of the same width; the shape is preserved.

    Args:
        x: Any shape.
        kind: The new dtype.
        was: The dtype of x; NumPy stores 4-bit and 2-bit elements in one byte each.
    """
    if kind not in _NIBBLES:
        same: Array = np.ascontiguousarray(x).reshape(x.shape).view(kind.numpy())
        return same
    bits = (np.ascontiguousarray(x).reshape(x.shape).view(np.uint8) & ((1 << _NIBBLES[was]) - 1)).astype(np.int8)
    if kind in _SIGNED:
        sign = np.int8(1 << (_NIBBLES[kind] - 1))
        bits = (bits ^ sign) - sign
    target: Any = kind.numpy()
    return bits.view(target) if kind == ir.DataType.FLOAT4E2M1 else bits.astype(target)
