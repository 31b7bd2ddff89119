"""Axes: an attribute `axis` names a dimension that its operator's input has, as ONNX's texts say and nothing checks."""

from __future__ import annotations

import onnx_ir as ir

from deep5.errors import NetworkError
from deep5.networks.element_types import called

__all__ = ["check_axes"]

# Of the operators whose first input `axis` counts in; inference of shapes holds some of them to it, and no others.
_WITHIN = frozenset({
    "ArgMax", "ArgMin", "Compress", "Gather", "GatherElements", "Hardmax", "LayerNormalization", "LogSoftmax",
    "LpNormalization", "RMSNormalization", "ScatterElements", "Softmax", "Split", "TopK",
})  # fmt: skip


def check_axes(model: ir.Model, what: str) -> None:
    """Refuse nodes whose `axis` lies outside of their first input, those of nested graphs too.

    Args:
        model: The model, with inferred shapes; an input of unknown rank is left alone.
        what: What messages call it.

    Raises:
        NetworkError: The first such node, its axis, and the axes that there are.
    """
    for node in model.graph.all_nodes():
        if node.domain or node.op_type not in _WITHIN or "axis" not in node.attributes:
            continue
        value = node.inputs[0] if node.inputs else None
        if value is None or value.shape is None:
            continue
        axis, rank = node.attributes["axis"].as_int(), len(value.shape)
        if not -rank <= axis < rank:
            raise NetworkError(
                f"{what} is not valid ONNX: {called(node.name, node.op_type, [out.name for out in node.outputs])}: got "
                f"axis {axis} for {value.name!r} of {rank} dimensions; allowed: {-rank} to {rank - 1}"
            )
