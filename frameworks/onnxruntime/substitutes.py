"""Substitutes for nodes without a kernel in ONNX Runtime, or with a wrong one, by other kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from deep5.frameworks.onnxruntime.arrangements import ARRANGEMENTS
from deep5.frameworks.onnxruntime.draft import Draft
from deep5.frameworks.onnxruntime.whole_numbers import NUMBERS

__all__ = ["Change", "changed", "in_float32", "substitute"]

Change = Callable[[ir.Graph, ir.Node], None]
_RULES = {**NUMBERS, **ARRANGEMENTS}
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


def changed(model: ir.Model, chosen: Callable[[ir.Node], Change | None]) -> ir.Model:
    """The model with some of its nodes rewritten, including those in subgraphs.

    Args:
        model: The model; it is not changed.
        chosen: Returns the rewrite of a node; None to keep it.

    Returns:
        A model with the same inputs and outputs; the model itself if no node changes.
    """
    changes = {
        index: change for index, node in enumerate(model.graph.all_nodes()) if (change := chosen(node)) is not None
    }
    if not changes:
        return model
    model = model.clone()
    nodes = list(model.graph.all_nodes())
    for index, change in changes.items():
        graph = nodes[index].graph
        assert isinstance(graph, ir.Graph)  # noqa: S101 - every node is in a graph
        before = set(graph) if graph is not model.graph else set()
        kept = {value.name for value in nodes[index].outputs}
        change(graph, nodes[index])
        # A graph names new values automatically, and may reuse names of an enclosing graph.
        for number, made in enumerate(node for node in graph if before and node not in before):
            for value in made.outputs:
                if value.name and value.name not in kept:
                    value.name = f"changed:{index}/{number}/{value.index()}"
    return model


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
