"""Substitutes for nodes without a kernel in ONNX Runtime, or with a wrong one, by other kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from deep5.frameworks.onnxruntime.arrangements import ARRANGEMENTS
from deep5.frameworks.onnxruntime.padding import PADDING
from deep5.frameworks.onnxruntime.reductions import REDUCTIONS
from deep5.frameworks.onnxruntime.whole_numbers import NUMBERS
from deep5.networks.draft import Change, Draft

__all__ = ["in_float32", "substitute"]

_TABLES = (REDUCTIONS, NUMBERS, ARRANGEMENTS, PADDING)
_RULES = {name: [rule for table in _TABLES for rule in table.get(name, ())] for name in set().union(*_TABLES)}
_SHORT = ir.DataType.BFLOAT16


def substitute(node: ir.Node) -> Change | None:
    """The rewrite of a node into others; None if the node runs unchanged, or not at all."""
    if node.domain:
        return None
    for applies, write in _RULES.get(node.op_type, ()):
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
