"""Integer types that torch stores but barely supports: uint16, uint32, uint64, with int64 arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch

__all__ = ["logical_shift", "unsigned_quotient", "unsigned_remainder", "widening"]

_Conversions = Mapping[ir.DataType | None, Callable[[Any], Any]]
_WIDE = (ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64)
# Operators that torch supports for them directly, and operators that handle these types themselves.
_DIRECT = {
    *("BitShift", "BitCast", "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "Div", "Expand", "Flatten"),
    *("Identity", "Mod", "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze", "If", "Loop", "Scan"),
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
    *("Abs", "ReduceMean", "Sign"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "SequenceMap", "SplitToSequence", "ConcatFromSequence"),
}
# Operators that depend on the order of numbers: for uint64, that of int64 after flipping the highest bit.
_ORDERED = {
    *("ArgMax", "ArgMin", "Clip", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "ReduceMax"),
    *("ReduceMin", "TopK", "Unique"),
}
_LOWEST = -(2**63)


def _to_int64(x: Any) -> Any:
    return x.to(torch.int64)


def _turned(x: Any) -> Any:
    return x.view(torch.int64) ^ _LOWEST


def _as_uint16(x: Any) -> Any:
    return x.to(torch.uint16)


def _as_uint32(x: Any) -> Any:
    return x.to(torch.uint32)


def _as_uint64(x: Any) -> Any:
    return x.view(torch.uint64)


def _turned_back(x: Any) -> Any:
    return (x ^ _LOWEST).view(torch.uint64)


_BACK: _Conversions = dict(zip(_WIDE, (_as_uint16, _as_uint32, _as_uint64), strict=True))
_LIFT: _Conversions = dict.fromkeys(_WIDE, _to_int64)
_BACK_ORDERED: _Conversions = {**_BACK, ir.DataType.UINT64: _turned_back}
_LIFT_ORDERED: _Conversions = {**_LIFT, ir.DataType.UINT64: _turned}


def widening(node: ir.Node) -> tuple[_Conversions, _Conversions]:
    """Conversions of a node's unsigned inputs before it runs, and of its results; none if torch has kernels."""
    if node.domain != "" or node.op_type in _DIRECT:
        return {}, {}
    if not any(value is not None and value.dtype in _WIDE for value in (*node.inputs, *node.outputs)):
        return {}, {}
    return (_LIFT_ORDERED, _BACK_ORDERED) if node.op_type in _ORDERED else (_LIFT, _BACK)


def logical_shift(x: Any, bits: Any) -> Any:
    """x >> bits, for int64 that represent uint64; 0 from 64 bits on."""
    shifted = (x >> 1) & (2**63 - 1)
    return torch.where(bits == 0, x, torch.where((bits < 0) | (bits > 63), 0, shifted >> (bits - 1).clamp(0, 62)))


def unsigned_quotient(x: Any, y: Any) -> Any:
    """x / y for int64 that represent uint64.

    References:
        Warren, Hacker's Delight, second edition, section 9-3, "Unsigned short division from signed division".
    """
    estimate = torch.div((x >> 1) & (2**63 - 1), y, rounding_mode="trunc") << 1
    rest = x - estimate * y
    more = (rest ^ _LOWEST) >= (y ^ _LOWEST)
    # A divisor of at least 2^63 fits into a number once or not at all.
    once = (x ^ _LOWEST) >= (y ^ _LOWEST)
    return torch.where(y < 0, once.to(x.dtype), estimate + more.to(x.dtype))


def unsigned_remainder(x: Any, y: Any) -> Any:
    """x mod y for int64 that represent uint64."""
    return x - unsigned_quotient(x, y) * y
