"""Nodes that ONNX Runtime has no kernel for, or a wrong one, and that others of its kernels compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from deep5.frameworks.onnxruntime.arrangements import ARRANGEMENTS
from deep5.frameworks.onnxruntime.draft import Draft
from deep5.frameworks.onnxruntime.whole_numbers import NUMBERS

__all__ = ["Change", "in_float32", "substitute"]

Change = Callable[[ir.Graph, ir.Node], None]
_RULES = {**NUMBERS, **ARRANGEMENTS}
_SHORT = ir.DataType.BFLOAT16


def substitute(node: ir.Node) -> Change | None:
    """What writes a node in others; None where the node runs as it is, or not at all."""
    if node.domain:
        return None
    for asked, write in _RULES.get(node.op_type, ()):
        if asked(node):
            return partial(_written, write)
    return None


def _written(write: Callable[[Draft, ir.Node], None], graph: ir.Graph, node: ir.Node) -> None:
    write(Draft(graph, node), node)


def in_float32(graph: ir.Graph, node: ir.Node) -> None:
    """Compute a node of bfloat16 in float32, and round what comes out once."""
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
