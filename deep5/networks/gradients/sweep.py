"""The backward pass through nodes: which nodes a gradient passes, and how their rules are applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from deep5.networks.constants import FLOATS
from deep5.networks.custom import is_custom
from deep5.networks.gradients.backward import Backward, refuse
from deep5.networks.gradients.rules_custom import backward_node
from deep5.networks.nodes import captures, reads

__all__ = ["CONSTANT", "differentiate", "path_between", "targets"]

# fmt: off
# Operators whose outputs are piecewise constant: the gradient stops there.
CONSTANT = frozenset({
    "And", "ArgMax", "ArgMin", "Bernoulli", "Ceil", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "MelWeightMatrix", "NonZero", "Not", "Or",
    "RandomNormalLike", "RandomUniformLike", "Round", "Shape", "Sign", "Size", "Xor",
})
# fmt: on


def path_between(
    nodes: Sequence[ir.Node], sources: set[ir.Value], roots: Collection[ir.Value]
) -> tuple[set[ir.Value], list[ir.Node]]:
    """Values that depend on the sources and that the roots depend on, and the nodes between, in their order."""
    forward = set(sources)
    for node in nodes:
        constant = node.op_type in CONSTANT and not node.domain
        if not constant and any(value in forward for value in reads(node)):
            # Integers and booleans do not vary continuously: the gradient stops there.
            forward.update(value for value in node.outputs if value.dtype is None or value.dtype in FLOATS)
    active, path = (set(roots) & forward), []
    for node in reversed(nodes):
        if any(value in active for value in node.outputs):
            active.update(value for value in reads(node) if value in forward)
            path.append(node)
    return active, path[::-1]


def targets(node: ir.Node) -> list[ir.Value | None]:
    """The values whose gradients a node's rule returns: its inputs, then values of enclosing graphs that its subgraphs
    read.
    """
    return [*node.inputs, *captures(node)]


def differentiate(
    backward: Backward, node: ir.Node, active: set[ir.Value], gradients: dict[ir.Value, ir.Value]
) -> None:
    """Apply a node's rule and add the results to the gradients of the node's `targets`."""
    rule = backward_node if is_custom(node) else backward.rules[node.op_type]
    backward.prefix = f"{node.name}/backward"
    by = targets(node)
    sent = rule(backward, node, [gradients.get(value) for value in node.outputs])
    for value, gradient in zip(by, sent, strict=True):
        if value is None or value not in active:
            continue
        if gradient is None:
            raise refuse(node, f"its rule has no gradient by the input {value.name!r}")
        known = gradients.get(value)
        gradients[value] = gradient if known is None else backward.op("Add", known, gradient)
