"""The gradient of a registered operator: a node that calls its `backward`."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import FLOATS
from deep5.networks.custom import BACKWARD, backward_attributes
from deep5.networks.gradients.backward import Backward, Gradients

__all__ = ["backward_node"]


def backward_node(backward: Backward, node: ir.Node, output_grads: Gradients) -> Gradients:
    """The rule of every registered operator; see `deep5.operators.backward.Backward` for the node's inputs."""
    needs = [backward.wants(value) and value is not None and value.dtype in FLOATS for value in node.inputs]
    given = [
        backward.zeros(value) if gradient is None else gradient
        for value, gradient in zip(node.outputs, output_grads, strict=True)
        if value.dtype in FLOATS
    ]
    made = iter(
        backward.ops(
            f"{node.op_type}{BACKWARD}",
            sum(needs),
            *given,
            *node.inputs,
            *node.outputs,
            domain=node.domain,
            **backward_attributes(node, needs),
        )
    )
    return [next(made) if needed else None for needed in needs]
