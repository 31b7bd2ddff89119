"""Which values of a graph are constants, which a back-end may read while it generates code, and which are trained."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from deep5.networks.slots import slot_of

__all__ = ["FLOATS", "Role", "constant_tensor", "constant_value", "role", "separate_roles"]

Role = Literal["statistics", "setting", "value"]

FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})


def role(node: ir.Node, position: int) -> Role:
    """How an operator uses an initial value.

    Args:
        node: The node that reads the value.
        position: Index of the value among the node's inputs.

    Returns:
        `"statistics"` if training changes it without a gradient, `"setting"` if it configures the operator, `"value"`
        otherwise.
    """
    slot = slot_of(node, position)
    if slot is not None and slot.kind == "statistic":
        return "statistics"
    return "setting" if slot is not None and slot.constant else "value"


def constant_value(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant, or None if the value varies between runs.

    Constants are the outputs of Constant nodes, initial values that are not floating-point (shapes, axes, indices), and
    floating-point ones that only configure operators (bounds, a ratio). Parameters and running statistics are not
    constants: executors hold their live values.

    Args:
        value: An input of a node; None, for an omitted input, has no value.

    Returns:
        The array; do not write to it.
    """
    if value is None:
        return None
    if value.is_initializer():
        if value.dtype in FLOATS and any(role(use.node, use.idx) != "setting" for use in value.uses()):
            return None
    elif value.const_value is not None:
        return None  # noted by an inference, not a constant
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initial value, or of a Constant node's dense output; else None."""
    node = value.producer()
    if node is not None and "sparse_value" in node.attributes:
        return None
    return ir.convenience.get_const_tensor(value)


def separate_roles(graph: ir.Graph) -> frozenset[str]:
    """Give each role a separate initial value.

    Exporters store equal values once, such as the zeros of a bias and of a running mean, which diverge in training.

    Returns:
        The names of the initial values of which there now are copies.
    """
    copied = set()
    for value in list(graph.initializers.values()):
        owner = None
        for node, position in [(use.node, use.idx) for use in value.uses()]:
            kind = role(node, position)
            # Running statistics are never shared between nodes; values of other roles are.
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
                copied.add(str(value.name))
    return frozenset(copied)
