"""Rewrites for integers of dtypes or magnitudes that ONNX Runtime's kernels do not support."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.draft import Draft
from deep5.networks.onnx.attributes import attribute

__all__ = ["NUMBERS"]

_SHORT = {ir.DataType.INT16, ir.DataType.UINT16}
_LONG = {ir.DataType.INT64, ir.DataType.UINT64}
# The dtypes with a shift kernel.
_SHIFTED = {ir.DataType.UINT8, ir.DataType.UINT32, ir.DataType.UINT64}


def _kind(node: ir.Node) -> Any:
    """The dtype of the first input, if known."""
    return None if not node.inputs or node.inputs[0] is None else node.inputs[0].dtype


def _extremes(node: ir.Node) -> bool:
    return _kind(node) in _SHORT


def _extremes_in_int32(draft: Draft, node: ir.Node) -> None:
    (largest,) = draft.same([draft.cast(value, ir.DataType.INT32) for value in node.inputs if value is not None])
    draft.replace(draft.cast(largest, _kind(node)))


def _reduces_bools(node: ir.Node) -> bool:
    return bool(_kind(node) == ir.DataType.BOOL)


def _reduce_as_numbers(draft: Draft, node: ir.Node) -> None:
    """As uint8, whose extremes are the results for empty sets."""
    (found,) = draft.same([draft.cast(node.inputs[0], ir.DataType.UINT8), *node.inputs[1:]])
    draft.replace(draft.cast(found, ir.DataType.BOOL))


def _shifts(node: ir.Node) -> bool:
    """Whether a shift has another dtype, or its count may be negative or at least the number of bits."""
    kind, count = _kind(node), constant_value(node.inputs[1])
    if kind is None:
        return False
    return kind not in _SHIFTED or count is None or bool((count >= kind.itemsize * 8).any())


def _shift(draft: Draft, node: ir.Node) -> None:
    """In uint64: a negative number is shifted as its complement; counts out of range shift out all bits."""
    kind, long = _kind(node), ir.DataType.INT64
    bits, left = int(kind.itemsize * 8), attribute(node, "direction") == "LEFT"
    x, count = (draft.cast(value, long) for value in node.inputs)
    zero = draft.constant(0, long)
    far = draft.op("Or", draft.op("Less", count, zero), draft.op("GreaterOrEqual", count, draft.constant(bits, long)))
    below = draft.op("Less", x, zero) if kind.is_signed() and not left else None
    if below is not None:
        x = draft.op("Where", below, draft.op("BitwiseNot", x), x)
    wide = [draft.cast(value, ir.DataType.UINT64) for value in (x, draft.op("Where", far, zero, count))]
    shifted = draft.cast(draft.op("BitShift", *wide, direction="LEFT" if left else "RIGHT"), long)
    shifted = draft.op("Where", far, zero, shifted)
    if below is not None:
        shifted = draft.op("Where", below, draft.op("BitwiseNot", shifted), shifted)
    draft.replace(draft.cast(shifted, kind))


def _floors(node: ir.Node) -> bool:
    kind = _kind(node)
    return bool(kind is not None and kind.is_floating_point() and not attribute(node, "fmod", 0))


def _floor_mod(draft: Draft, node: ir.Node) -> None:
    """C's remainder, adjusted to the sign of the divisor."""
    kind, y = _kind(node), node.inputs[1]
    zero = draft.constant(0, kind)
    (rest,) = draft.same(node.inputs, fmod=1)
    other = draft.op("Xor", draft.op("Less", rest, zero), draft.op("Less", y, zero))
    other = draft.op("And", other, draft.op("Not", draft.op("Equal", rest, zero)))
    moved = draft.op("Where", other, draft.op("Add", rest, y), rest)
    # Zero has the divisor's sign, too, which neither a constant nor a Where of ONNX Runtime preserves.
    draft.replace(draft.op("Mul", draft.op("Abs", moved), draft.op("Sign", y)))


def _truncates(node: ir.Node) -> bool:
    kind = _kind(node)
    return kind in _LONG and bool(attribute(node, "fmod", 0))


def _truncated_mod(draft: Draft, node: ir.Node) -> None:
    """Python's remainder, which is computed in integers, adjusted to the sign of the dividend."""
    kind, (x, y) = _kind(node), node.inputs
    (rest,) = draft.same(node.inputs, fmod=0)
    if kind == ir.DataType.INT64:
        zero = draft.constant(0, kind)
        other = draft.op("Xor", draft.op("Less", x, zero), draft.op("Less", y, zero))
        other = draft.op("And", other, draft.op("Not", draft.op("Equal", rest, zero)))
        rest = draft.op("Where", other, draft.op("Sub", rest, y), rest)
    draft.replace(rest)


def _raises_to_unsigned(node: ir.Node) -> bool:
    power = node.inputs[1].dtype if node.inputs[1] is not None else None
    return power in (ir.DataType.UINT32, ir.DataType.UINT64) and _kind(node) in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _raise_to_float64(draft: Draft, node: ir.Node) -> None:
    draft.replace(*draft.same([node.inputs[0], draft.cast(node.inputs[1], ir.DataType.DOUBLE)]))


def _ranks_unsigned(node: ir.Node) -> bool:
    return bool(_kind(node) == ir.DataType.UINT64)


def _rank_signed(draft: Draft, node: ir.Node) -> None:
    """With the top bit flipped, unsigned numbers have the same order as signed ones."""
    kinds, first = (ir.DataType.INT64, ir.DataType.UINT64), np.iinfo(np.int64).min
    signed = draft.op("BitwiseXor", draft.cast(node.inputs[0], kinds[0]), draft.constant(first, kinds[0]))
    values, indices = draft.same([signed, *node.inputs[1:]])
    if values is not None:
        values = draft.cast(draft.op("BitwiseXor", values, draft.constant(first, kinds[0])), kinds[1])
    draft.replace(values, indices)


def _bits_of_bools(node: ir.Node) -> bool:
    return bool(_kind(node) == ir.DataType.BOOL)


def _cast_bools(draft: Draft, node: ir.Node) -> None:
    draft.replace(draft.cast(draft.cast(node.inputs[0], ir.DataType.UINT8), ir.DataType(attribute(node, "to"))))


def _has_no_terms(node: ir.Node) -> bool:
    x, kind = node.inputs[0], _kind(node)
    if kind in (None, ir.DataType.FLOAT) or x is None or not x.shape:
        return False
    return bool(x.shape[-1] == 0)


def _zeros_of_float32(draft: Draft, node: ir.Node) -> None:
    """In other dtypes the kernel leaves a product without terms unwritten."""
    (zeros,) = draft.same([draft.cast(value, ir.DataType.FLOAT) for value in node.inputs])
    draft.replace(draft.cast(zeros, _kind(node)))


NUMBERS = {
    "BitCast": [(_bits_of_bools, _cast_bools)],
    "BitShift": [(_shifts, _shift)],
    "MatMul": [(_has_no_terms, _zeros_of_float32)],
    "Max": [(_extremes, _extremes_in_int32)],
    "Min": [(_extremes, _extremes_in_int32)],
    "Mod": [(_floors, _floor_mod), (_truncates, _truncated_mod)],
    "Pow": [(_raises_to_unsigned, _raise_to_float64)],
    "ReduceMax": [(_reduces_bools, _reduce_as_numbers)],
    "ReduceMin": [(_reduces_bools, _reduce_as_numbers)],
    "TopK": [(_ranks_unsigned, _rank_signed)],
}
"""By operator: a test for the nodes to rewrite, and the rewrite."""
