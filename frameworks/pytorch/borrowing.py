"""Which values of a program may be memory of others: the caller's inputs, live parameters, constants."""

from __future__ import annotations

import onnx_ir as ir

from deep5.frameworks.pytorch.table import fixed
from deep5.networks.constants import constant_value
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.network import Network
from deep5.networks.nodes import reads
from deep5.operators.kinds import is_compiled

__all__ = ["borrowed"]

# Operators for which torch may return a view of the first input, or that input itself.
# fmt: off
_VIEWS = {
    "BitCast", "CastLike", "CenterCropPad", "DepthToSpace", "Dropout", "Expand", "Flatten", "Identity", "Optional",
    "OptionalGetElement", "Pad", "Reshape", "SequenceAt", "SequenceErase", "SpaceToDepth", "Split",
    "SplitToSequence", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Einsum", "ReduceSum", "Resize", "Upsample",
}
# Operators that may pass on any input, or captured values of inner graphs.
_HANDED_ON = {"ConcatFromSequence", "If", "Loop", "Scan", "SequenceConstruct", "SequenceInsert", "SequenceMap"}
# fmt: on
# Operators that do so with a single input.
_FOLDS = {"Max", "Min", "Sum"}


def borrowed(network: Network) -> set[str]:
    """Names of the values that may be memory that the program has not allocated.

    Args:
        network: A network of operators in the table.
    """
    found = {str(value.name) for value in network.model.graph.outputs if value.producer() is None}
    for node in network.nodes:
        if node.op_type == "Constant" and not node.domain:
            found.update(str(value.name) for value in node.outputs)
        elif any(value is not None and _is_borrowed(value, found) for value in _seen(node)):
            found.update(str(value.name) for value in node.outputs if value.name)
    return found


def _is_borrowed(value: ir.Value, found: set[str]) -> bool:
    return value.producer() is None or value.name in found


def _seen(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """The inputs whose memory an output of the node may share."""
    if is_custom(node):
        operator = operator_of(node)
        # A C++ operator writes to memory allocated for it; the results of others are unknown.
        return () if operator is not None and is_compiled(operator) else tuple(node.inputs)
    if node.op_type in _HANDED_ON:
        return tuple(reads(node))
    return tuple(node.inputs[:1]) if _is_view(node) else ()


def _is_view(node: ir.Node) -> bool:
    first, kind = node.inputs[0] if node.inputs else None, node.op_type
    if kind == "Cast":
        return first is not None and first.dtype == node.outputs[0].dtype
    if kind == "Clip":
        return all(value is None for value in node.inputs[1:])
    if kind == "Gather":  # a single row, which torch selects
        index = constant_value(node.inputs[1])
        return index is not None and not index.shape
    if kind == "Slice":  # torch copies for a negative step
        steps = fixed(node, 4)
        return len(node.inputs) < 5 or steps is None or bool((steps > 0).all())
    return kind in _VIEWS or (kind in _FOLDS and len(node.inputs) == 1)
