"""Ranks that follow from the nodes that read a value, where those that compute it do not determine them.

The branches of an If may differ in rank, as where an exporter writes "squeeze if the axis has one element". ONNX's
inference goes forward only and then knows nothing of what follows, although a convolution with a weight of rank 3 reads
only values of rank 3.
"""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute

__all__ = ["required_ranks"]

# Operators whose first input has the rank of their weight, with the position of the weight.
_AS_WEIGHT = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "DeformConv": 1, "QLinearConv": 3}
# Operators whose window has one size per axis after the first two.
_WINDOWS = frozenset({"AveragePool", "LpPool", "MaxPool", "MaxUnpool"})
_FIXED = {"Gemm": 2, "DepthToSpace": 4, "SpaceToDepth": 4}
# Recurrent layers, with the positions of the inputs of rank 3: sequences, and initial states.
_RECURRENT = {"GRU": (0, 5), "LSTM": (0, 5, 6), "RNN": (0, 5)}
# Operators whose axes are their second input: what each adds to the rank of the first.
_AXES = {"Squeeze": -1, "Unsqueeze": 1}
# Operators with an input that has one or two entries per axis of the first.
_ENTRIES = {"Tile": (1, 1), "Pad": (1, 2), "Resize": (2, 1)}


def required_ranks(model: ir.Model) -> set[ir.Value]:
    """Set the rank of the computed values that have none, where a node that reads them accepts only one.

    Args:
        model: The model, with inferred shapes; changed in place.

    Returns:
        The values whose rank was set: shapes that follow from them are not inferred yet.
    """
    found = set()
    for node in model.graph.all_nodes():
        if node.domain:
            continue
        for position in _RECURRENT.get(node.op_type, (0,)):
            value = _input(node, position)
            if value is None or value.shape is not None or value.dtype is None or value.producer() is None:
                continue
            if rank := _required(node):
                value.shape = ir.Shape([None] * rank)
                found.add(value)
    return found


def _required(node: ir.Node) -> int | None:
    """The only rank that the node accepts as its first input; None if it accepts several, or it is not known."""
    if node.op_type in _RECURRENT:
        return 3
    if node.op_type in _AXES:
        axes, shape = constant_value(_input(node, 1)), node.outputs[0].shape
        return None if axes is None or shape is None else len(shape) - _AXES[node.op_type] * axes.size
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type in _AS_WEIGHT:
        weight = _input(node, _AS_WEIGHT[node.op_type])
        return None if weight is None or weight.shape is None else len(weight.shape)
    if node.op_type in _WINDOWS:
        window = attribute(node, "kernel_shape")
        return None if window is None else len(window) + 2
    if node.op_type == "Transpose":
        order = attribute(node, "perm")
        return None if order is None else len(order)
    if node.op_type in _ENTRIES and not (node.op_type in ("Pad", "Resize") and _input(node, 3) is not None):
        position, each = _ENTRIES[node.op_type]
        entries = constant_value(_input(node, position))
        return None if entries is None else entries.size // each
    return None


def _input(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if position < len(node.inputs) else None
