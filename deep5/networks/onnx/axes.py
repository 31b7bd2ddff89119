"""Check that `axis` is within the input's rank and that arrays have a supported rank; ONNX's own checks leave gaps."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.networks.onnx.element_types import called

__all__ = ["check_axes", "check_widths"]

# Operators, and how far their axis may lie outside -r to r - 1, where r is the rank of the first input.
_BEYOND = {
    **dict.fromkeys((
        "ArgMax", "ArgMin", "Compress", "Concat", "DequantizeLinear", "Gather", "GatherElements", "Hardmax",
        "LayerNormalization", "LogSoftmax", "LpNormalization", "QuantizeLinear", "RMSNormalization", "Scatter",
        "ScatterElements", "Softmax", "Split", "SplitToSequence", "TensorScatter", "TopK", "Unique",
    ), (0, 0)),
    "Flatten": (0, 1),
    "OneHot": (1, 1),
}  # fmt: skip
# Operators whose output shape is one of their inputs, with that input's position; and the largest rank in NumPy.
_SHAPES = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}
_MOST_AXES = 64


def check_widths(what: str, nodes: Iterable[onnx.NodeProto]) -> None:
    """Reject an axis that needs more than 32 bits: ONNX's inference and conversion truncate it to another axis.

    Args:
        what: Name of the model in messages.
        nodes: Its nodes, including those of functions and nested graphs.

    Raises:
        NetworkError: The first such node and its axis.
    """
    for node in nodes:
        for entry in node.attribute:
            if entry.name == "axis" and not -(1 << 31) <= entry.i < 1 << 31:
                raise NetworkError(
                    f"{what} is not valid ONNX: {called(node.name, str(node.op_type), node.output)}: got axis "
                    f"{entry.i}; allowed: a dimension of its input"
                )


def check_axes(model: ir.Model, what: str) -> None:
    """Reject nodes whose `axis` is outside their first input's rank, or whose output has too many dimensions.

    Nested graphs are checked too.

    Args:
        model: The model, with inferred shapes; inputs of unknown rank are not checked.
        what: Its name in messages.

    Raises:
        NetworkError: The first such node, its axis, and the allowed axes.
    """
    for node in model.graph.all_nodes():
        if not node.domain and node.op_type in _SHAPES:
            _check_count(node, what)
        if node.domain or node.op_type not in _BEYOND or "axis" not in node.attributes:
            continue
        rank = _rank(node, 0)
        if rank is None or (node.op_type in ("QuantizeLinear", "DequantizeLinear") and not _rank(node, 1)):
            continue  # a per-tensor scale has no axis
        axis, (below, above) = node.attributes["axis"].as_int(), _BEYOND[node.op_type]
        least, most = -rank - below, rank - 1 + above
        if not least <= axis <= most:
            name = node.inputs[0].name if node.inputs[0] is not None else ""
            raise NetworkError(
                f"{what} is not valid ONNX: {called(node.name, node.op_type, [out.name for out in node.outputs])}: got "
                f"axis {axis} for {name!r} of {rank} dimensions; allowed: {least} to {most}"
            )


def _check_count(node: ir.Node, what: str) -> None:
    position = _SHAPES[node.op_type]
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None or value.shape is None or len(value.shape) != 1:
        return
    count = value.shape[0]
    if isinstance(count, int) and count > _MOST_AXES:
        raise NetworkError(
            f"{what} is not valid ONNX: {called(node.name, node.op_type, [out.name for out in node.outputs])}: would "
            f"make an array of {count:,} dimensions; allowed: at most {_MOST_AXES}"
        )


def _rank(node: ir.Node, number: int) -> int | None:
    value = node.inputs[number] if number < len(node.inputs) else None
    return None if value is None or value.shape is None else len(value.shape)
