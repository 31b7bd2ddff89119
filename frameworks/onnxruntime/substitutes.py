"""Substitutes for nodes without a kernel in ONNX Runtime, or with a wrong one, by other kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from deep5.frameworks.onnxruntime.arrangements import ARRANGEMENTS
from deep5.frameworks.onnxruntime.eight_bits import CONTRIBUTED_BITS, EIGHT_BITS
from deep5.frameworks.onnxruntime.padding import PADDING
from deep5.frameworks.onnxruntime.reductions import REDUCTIONS
from deep5.frameworks.onnxruntime.whole_numbers import NUMBERS
from deep5.networks.draft import Change, Draft
from deep5.networks.onnx.contributed_types import CONTRIBUTED

__all__ = ["in_float32", "substitute"]


def _in_float64(node: ir.Node) -> bool:
    return bool(node.outputs[0].dtype == ir.DataType.DOUBLE)


def _softplus(draft: Draft, node: ir.Node) -> None:
    """Without overflow; without a kernel, ONNX Runtime writes log(exp(x) + 1)."""
    x = node.inputs[0]
    zero, one = (draft.constant(number, ir.DataType.DOUBLE) for number in (0, 1))
    small = draft.op("Exp", draft.op("Neg", draft.op("Abs", x)))
    draft.replace(draft.op("Add", draft.op("Max", x, zero), draft.op("Log", draft.op("Add", one, small))))


def _of_scalar(node: ir.Node) -> bool:
    return node.inputs[0] is not None and node.inputs[0].shape is not None and not len(node.inputs[0].shape)


def _no_rows(draft: Draft, node: ir.Node) -> None:
    """Of a scalar the indices have no rows; ONNX Runtime gives one."""
    (indices,) = draft.same(node.inputs)
    none = draft.constant([0], "int64")
    draft.replace(draft.op("Slice", indices, none, none))


_OTHERS = {"NonZero": [(_of_scalar, _no_rows)], "Softplus": [(_in_float64, _softplus)]}
_TABLES = (REDUCTIONS, NUMBERS, ARRANGEMENTS, EIGHT_BITS, PADDING, _OTHERS)
_RULES = {name: [rule for table in _TABLES for rule in table.get(name, ())] for name in set().union(*_TABLES)}
_BY_DOMAIN = {"": _RULES, CONTRIBUTED: CONTRIBUTED_BITS}
_SHORT = ir.DataType.BFLOAT16


def substitute(node: ir.Node) -> Change | None:
    """The rewrite of a node into others; None if the node runs unchanged, or not at all."""
    for applies, write in _BY_DOMAIN.get(node.domain, {}).get(node.op_type, ()):
        if applies(node):
            return partial(_written, write)
    return None


def _written(write: Callable[[Draft, ir.Node], None], graph: ir.Graph, node: ir.Node) -> None:
    write(Draft(graph, node), node)


def in_float32(graph: ir.Graph, node: ir.Node) -> None:
    """Compute a bfloat16 node in float32, and round the result once."""
    draft = Draft(graph, node)
    inputs = []
    for value in node.inputs:
        short = value is not None and value.dtype == _SHORT
        inputs.append(draft.cast(draft.setting(value), ir.DataType.FLOAT) if short else value)
    made = [
        value if value is None or old.dtype != _SHORT else draft.cast(value, _SHORT)
        for value, old in zip(draft.same(inputs), node.outputs, strict=True)
    ]
    draft.replace(*made)
