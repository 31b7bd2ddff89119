"""A sum over axes that only a run determines, as in the gradient of what may be broadcast, without such axes."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.draft import Draft
from deep5.networks.nodes import rank, ranked
from deep5.networks.onnx.attributes import attribute

__all__ = ["sum_each_axis", "sums_computed_axes"]


def sums_computed_axes(node: ir.Node) -> bool:
    """Whether only a run determines the axes of a ReduceSum that keeps them, and there may be none."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    kept = attribute(node, "keepdims", 1) and attribute(node, "noop_with_empty_axes", 0)
    return bool(kept and axes is not None and constant_value(axes) is None and ranked(node) and rank(node))


def sum_each_axis(draft: Draft, node: ir.Node) -> None:
    """Axis by axis, the sum or what was there before; OpenVINO reads only a known number of axes."""
    total, axes = node.inputs
    dimensions = rank(node)
    axes = draft.op("Where", draft.op("Less", axes, draft.constant([0], "int64")),
                    draft.op("Add", axes, draft.constant([dimensions], "int64")), axes)  # fmt: skip
    # An axis that does not exist, so that there is at least one.
    axes = draft.op("Concat", axes, draft.constant([dimensions], "int64"), axis=0)
    zero, one = draft.constant([0], "int64"), draft.constant([1], "int64")
    for axis in range(dimensions):
        this = draft.constant([axis], "int64")
        found = draft.cast(draft.op("Equal", axes, this), ir.DataType.INT64)
        chosen = draft.op("Greater", draft.op("ReduceSum", found, zero, keepdims=1), zero)
        size = draft.op("Where", chosen, one, draft.op("Shape", total, start=axis, end=axis + 1))
        total = draft.op("Where", chosen, draft.op("ReduceSum", total, this, keepdims=1), total)
        total = draft.op("Slice", total, zero, size, this)
    draft.replace(total)
