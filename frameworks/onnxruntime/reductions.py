"""Reductions of nothing on ONNX Runtime (1.31): by negative axes they have the shape of the input, and a mean is 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.draft import Draft
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["REDUCTIONS", "count_forward", "counts_back", "open_reduction"]

_ALL = {
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
}


def open_reduction(network: Network) -> str | None:
    """The name of a reduction that is wrong where its input has no elements once the network runs, if there is one."""
    for node in network.model.graph.all_nodes():
        if node.op_type not in _ALL or node.domain or not _may_be_empty(node.inputs[0]):
            continue
        if _known_negative(node) or (node.op_type == "ReduceMean" and _may_reduce_nothing(node)):
            return f"{node.name!r} ({node.op_type})"
    return None


def _may_be_empty(x: ir.Value | None) -> bool:
    return x is not None and (x.shape is None or any(not isinstance(size, int) or not size for size in x.shape))


def _given_axes(node: ir.Node) -> ir.Value | None:
    return node.inputs[1] if len(node.inputs) > 1 else None


def _known_negative(node: ir.Node) -> bool:
    axes = constant_value(_given_axes(node))
    return axes is not None and bool((axes < 0).any())


def _may_reduce_nothing(node: ir.Node) -> bool:
    x, axes = node.inputs[0], _axes(node)
    if x is None or x.shape is None or axes is None:
        return True
    return any(not isinstance(x.shape[axis], int) for axis in axes)


def _axes(node: ir.Node) -> list[int] | None:
    """The axes that a node reduces; None if they are not known."""
    x, given = node.inputs[0], _given_axes(node)
    if x is None or x.shape is None:
        return None
    known = constant_value(given)
    if known is None and given is not None:
        return None
    chosen = [] if known is None else [int(axis) % len(x.shape) for axis in known]
    if not chosen and attribute(node, "noop_with_empty_axes", 0):
        return []
    return chosen or list(range(len(x.shape)))


def counts_back(node: ir.Node) -> bool:
    """Whether a reduction of what may have no elements has axes that are, or may be, negative."""
    given = _given_axes(node)
    if node.op_type not in _ALL or node.domain or given is None or not _may_be_empty(node.inputs[0]):
        return False
    known = constant_value(given)
    # Of unknown rank, constant axes stay: fusions look for them.
    return known is None or (_known_negative(node) and _axes(node) is not None)


def count_forward(graph: ir.Graph, node: ir.Node) -> None:
    """Count the axes of a reduction from the first one."""
    tape, given, axes = ir.tape.Tape(), _given_axes(node), _axes(node)
    assert given is not None  # noqa: S101 - checked
    if axes is not None:
        forward = _constant(tape, axes)
    else:
        rank = tape.op("Size", [tape.op("Shape", [node.inputs[0]])])
        from_the_end = tape.op("Less", [given, _constant(tape, 0)])
        forward = tape.op("Where", [from_the_end, tape.op("Add", [given, rank]), given])
    forward.type, forward.shape = given.type, given.shape
    graph.insert_before(node, tape.nodes)
    node.replace_input_with(1, forward)


def _constant(tape: ir.tape.Tape, numbers: Any) -> ir.Value:
    value: ir.Value = tape.op("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})
    return value


def _is_mean_of_nothing(node: ir.Node) -> bool:
    x, kind, axes = node.inputs[0], node.outputs[0].dtype, _axes(node)
    if x is None or x.shape is None or kind is None or axes is None:
        return False
    return kind.is_floating_point() and any(x.shape[axis] == 0 for axis in axes)


def _write_nan(draft: Draft, node: ir.Node) -> None:
    """NaN in the reduced shape."""
    x, kind, axes = node.inputs[0], node.outputs[0].dtype, _axes(node)
    assert x is not None and x.shape is not None and kind is not None and axes is not None  # noqa: S101, PT018 - checked
    keeps = attribute(node, "keepdims", 1)
    sizes = [
        draft.constant([1], "int64") if axis in axes else draft.op("Shape", x, start=axis, end=axis + 1)
        for axis in range(len(x.shape))
        if keeps or axis not in axes
    ]
    shape = draft.op("Concat", *sizes, axis=0) if sizes else draft.constant(np.zeros(0), "int64")
    draft.replace(draft.op("Expand", draft.constant(math.nan, kind), shape))


REDUCTIONS = {"ReduceMean": [(_is_mean_of_nothing, _write_nan)]}
"""By operator: a test for the nodes to rewrite, and the rewrite."""
