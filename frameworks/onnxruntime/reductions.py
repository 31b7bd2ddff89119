"""Reductions of nothing: ONNX Runtime (1.31) returns the shape of the input, and not the reduced one."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.draft import Draft
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["REDUCTIONS", "open_reduction"]

_LEAST, _MOST = -math.inf, math.inf
# What each gives of an empty set; the least and the largest number of an integer type stand for the infinities.
_NOTHING = {
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceLogSum": _LEAST,
    "ReduceLogSumExp": _LEAST,
    "ReduceMax": _LEAST,
    "ReduceMean": math.nan,
    "ReduceMin": _MOST,
    "ReduceProd": 1.0,
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
}


def open_reduction(network: Network) -> str | None:
    """The name of a reduction whose input may have no elements once the network runs; None if there is none."""
    for node in network.model.graph.all_nodes():
        x = node.inputs[0] if node.op_type in _NOTHING and not node.domain else None
        if x is not None and not _is_fixed(x):
            return f"{node.name!r} ({node.op_type})"
    return None


def _is_fixed(x: ir.Value) -> bool:
    return x.shape is not None and all(isinstance(size, int) for size in x.shape)


def _axes(node: ir.Node) -> list[int] | None:
    """The axes that a node reduces; None if they are not known, or if it reduces none."""
    x, given = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if x is None or x.shape is None:
        return None
    axes = attribute(node, "axes", None) if given is None else constant_value(given)
    if axes is None and given is not None:
        return None
    chosen = [] if axes is None else [int(axis) % len(x.shape) for axis in axes]
    if not chosen and attribute(node, "noop_with_empty_axes", 0):
        return None
    return chosen or list(range(len(x.shape)))


def _of_nothing(node: ir.Node) -> bool:
    x, kind = node.inputs[0], node.outputs[0].dtype
    if x is None or x.shape is None or 0 not in list(x.shape) or kind is None or _axes(node) is None:
        return False
    return kind.is_floating_point() or not math.isnan(_NOTHING[node.op_type])


def _write_number(draft: Draft, node: ir.Node) -> None:
    """Its number, in the reduced shape."""
    x, kind, number, axes = node.inputs[0], node.outputs[0].dtype, _NOTHING[node.op_type], _axes(node)
    assert x is not None and x.shape is not None and kind is not None and axes is not None  # noqa: S101, PT018 - checked
    if not kind.is_floating_point() and math.isinf(number):
        limits = (False, True) if kind == ir.DataType.BOOL else (kind.min, kind.max)
        number = int(limits[number > 0])
    keeps = attribute(node, "keepdims", 1)
    sizes = [
        draft.constant([1], "int64") if axis in axes else draft.op("Shape", x, start=axis, end=axis + 1)
        for axis in range(len(x.shape))
        if keeps or axis not in axes
    ]
    shape = draft.op("Concat", *sizes, axis=0) if sizes else draft.constant(np.zeros(0), "int64")
    draft.replace(draft.op("Expand", draft.constant(number, kind), shape))


REDUCTIONS = {name: [(_of_nothing, _write_number)] for name in _NOTHING}
"""By operator: a test for the nodes to rewrite, and the rewrite."""
