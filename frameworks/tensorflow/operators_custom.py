"""Nodes of registered operators: user-written operators in a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.core.errors import Deep5Error, OperatorError, Unsupported
from deep5.core.framework import Support
from deep5.core.operator import Operator
from deep5.frameworks.tensorflow.operator_check import refusal
from deep5.frameworks.tensorflow.table import extents
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.network import Network
from deep5.operators.kinds import is_compiled
from deep5.operators.plan import CODES

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = ["emit_custom", "refuse_compiled", "supports_custom"]


def supports_custom(node: ir.Node, *, xla: bool) -> Support:
    """Whether a node of a registered operator can run, and if not, why."""
    for number, value in enumerate(node.inputs):
        if value is None:
            return Support(False, f"its input {number} is left out; allowed: all inputs of a registered operator")
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.dtype is None or value.shape is None:
            return Support(
                False, f"the value {value.name!r} has no shape or element type; shape inference did not reach it"
            )
        if str(value.dtype.numpy()) not in CODES:
            return Support(False, f"the element type {value.dtype.name} of {value.name!r}")
    try:
        reason = refusal(_operator(node), xla=xla, on_host=True)
    except Deep5Error as error:
        return Support(False, str(error))
    return Support(not reason, reason)


def refuse_compiled(network: Network) -> None:
    """Reject compiled operators on a GPU.

    Raises:
        Unsupported: The network contains compiled operators.
    """
    found = [
        f"{node.name or node.op_type} ({node.op_type}): {refusal(_operator(node), xla=False, on_host=False)}"
        for node in network.nodes
        if is_custom(node) and is_compiled(_operator(node))
    ]
    if found:
        raise Unsupported("tensorflow cannot run this network there:\n  " + "\n  ".join(found))


def emit_custom(emitter: Emitter, node: ir.Node) -> None:
    """Emit the call of a registered operator, on values in ONNX's axis order."""
    run = emitter.route(_operator(node))
    shapes = [
        [extent if isinstance(extent, int) else None for extent in extents(value)] if value.name else None
        for value in node.outputs
    ]

    def call(*inputs: Any) -> tuple[Any, ...]:
        return _known(run(*inputs), shapes, node.op_type)

    # Names first: lines that transpose an input to ONNX's order must precede the call.
    inputs = ", ".join(emitter.name(value) for value in node.inputs)
    names = [emitter.output(node, at) if value.name else "_" for at, value in enumerate(node.outputs)]
    emitter.line(f"{', '.join(names)}, = {emitter.bind(call)}({inputs})")


def _known(outputs: tuple[Any, ...], shapes: Sequence[list[int | None] | None], name: str) -> tuple[Any, ...]:
    """Keeps as many outputs as the node has, with the shapes that the network knows."""
    if len(outputs) < len(shapes):
        raise OperatorError(f"{name}.forward returned {len(outputs)} outputs; allowed: {len(shapes)}, as the node has")
    for value, shape in zip(outputs, shapes, strict=False):
        if shape is not None and not value.shape.is_fully_defined():
            value.set_shape(shape)
    return outputs[: len(shapes)]


def _operator(node: ir.Node) -> Operator:
    operator = operator_of(node)
    if operator is None:
        raise Unsupported(f"no operator {node.op_type!r} of the domain {node.domain!r} is registered")
    return operator
