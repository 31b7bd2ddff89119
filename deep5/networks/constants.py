"""Which values of a graph are constants: what a back-end may read while it writes code, and what is trained."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

__all__ = ["FLOATS", "Role", "constant_tensor", "constant_value", "role", "separate_roles"]

Role = Literal["statistics", "setting", "value"]

FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})
# Inputs of BatchNormalization that training changes but no gradient reaches: running mean and variance.
_STATISTICS = {"BatchNormalization": (3, 4)}
# Float inputs that say how an operator works and are not for training: a padding value, bounds, scales, a ratio,
# the weights of classes, the state that a recurrent layer starts from.
_SETTINGS = {
    "Clip": (1, 2),
    "Dropout": (1,),
    "GRU": (5,),
    "LSTM": (5, 6),
    "NegativeLogLikelihoodLoss": (2,),
    "Pad": (2,),
    "RNN": (5,),
    "Resize": (1, 2),
    "SoftmaxCrossEntropyLoss": (2,),
}


def role(node: ir.Node, position: int) -> Role:
    """What an operator does with an initial value.

    Args:
        node: The node that reads the value.
        position: Which of the node's inputs the value is.

    Returns:
        `"statistics"` where training changes it without a gradient, `"setting"` where it says how the operator
        works, `"value"` otherwise.
    """
    if node.domain == "":
        if position in _STATISTICS.get(node.op_type, ()):
            return "statistics"
        if position in _SETTINGS.get(node.op_type, ()):
            return "setting"
    return "value"


def constant_value(value: ir.Value | None) -> np.ndarray | None:
    """The array that a value always holds, or None where it holds another one from run to run.

    Constants are the outputs of Constant nodes, initial values that are no floating-point numbers (shapes, axes,
    indices), and floating-point ones that only set how an operator works (bounds, a ratio). Parameters and running
    statistics are not: executors hold their live values.

    Args:
        value: An input of a node; None, as for an input that is left out, has no value.

    Returns:
        The array, not to be written to.
    """
    if value is None:
        return None
    if value.is_initializer():
        if value.dtype in FLOATS and any(role(use.node, use.idx) != "setting" for use in value.uses()):
            return None
    elif value.const_value is not None:
        return None  # noted by an inference, not held
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initial value, or of a Constant node's output where it is dense; else None."""
    node = value.producer()
    if node is not None and "sparse_value" in node.attributes:
        return None
    return ir.convenience.get_const_tensor(value)


def separate_roles(graph: ir.Graph) -> None:
    """Give each role an initial value of its own.

    Exporters store equal values once: the zeros of a bias and of a running mean, say, which part when training begins.
    """
    for value in list(graph.initializers.values()):
        owner = None
        for node, position in [(use.node, use.idx) for use in value.uses()]:
            kind = role(node, position)
            # Running statistics belong to their node alone; other roles share.
            key = (kind, node) if kind == "statistics" else kind
            owner = key if owner is None else owner
            if key != owner:
                copy = ir.Value(
                    name=f"{value.name}/{node.name or node.op_type}/{position}",
                    shape=value.shape,
                    type=value.type,
                    const_value=value.const_value,
                )
                while copy.name in graph.initializers:
                    copy.name = f"{copy.name}'"
                graph.initializers[str(copy.name)] = copy
                node.replace_input_with(position, copy)
