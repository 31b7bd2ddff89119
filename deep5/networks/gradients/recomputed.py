"""The gradient of an operator, derived from an equivalent composition of other operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients
from deep5.networks.gradients.sweep import differentiate, path_between
from deep5.networks.onnx.shapes import infer_shapes

__all__ = ["recomputed"]

_IR_VERSION = 10

Written = Callable[[Backward, ir.Node, Sequence[ir.Value | None]], Sequence[ir.Value]]
"""A function of a node and its inputs that writes the node's outputs with other operators."""


def recomputed(b: Backward, node: ir.Node, grads: Gradients, write: Written) -> Gradients:
    """Recompute the node's outputs with operators that have rules, and differentiate those.

    The forward pass keeps the original node, which the engine runs as one kernel; only values that the gradient needs
    are recomputed.

    Args:
        b: The backward pass.
        node: The node.
        grads: The gradients of its outputs.
        write: Writes an equivalent computation.
    """
    copies = {value: _like(value, f"input_{at}") for at, value in enumerate(node.inputs) if value is not None}
    graph = ir.Graph(list(copies.values()), [], nodes=[], opset_imports=dict(b.graph.opset_imports), name=node.op_type)
    made = write(Backward(graph, prefix=node.op_type), node, [v if v is None else copies[v] for v in node.inputs])
    results = dict(zip(made, grads, strict=False))
    for result, same in zip(made, node.outputs, strict=False):
        result.type = same.type
    graph.outputs.extend(results)
    infer_shapes(ir.Model(graph, ir_version=_IR_VERSION), f"what {node.op_type} computes")

    roots = {result: _like(result, f"seed_{at}") for at, result in enumerate(results) if results[result] is not None}
    sources = {copies[value] for value in copies if b.wants(value)}
    active, path = path_between(list(graph), sources, roots)
    inner, gradients = (
        Backward(graph, active, rules=b.rules),
        {root: seed for root, seed in roots.items() if root in active},
    )
    for each in reversed(path):
        differentiate(inner, each, active, gradients)

    known = {copy: value for value, copy in copies.items()} | {seed: results[root] for root, seed in roots.items()}
    wanted = [gradients.get(copies[value]) if value is not None else None for value in node.inputs]
    needed = set(wanted)
    for each in reversed(list(graph)):
        if any(value in needed for value in each.outputs):
            needed.update(each.inputs)
    for each in graph:
        if any(value in needed for value in each.outputs):
            inputs = [None if value is None else known[value] for value in each.inputs]
            attributes = {name: value.value for name, value in each.attributes.items()}
            new = b.ops(each.op_type, len(each.outputs), *inputs, domain=each.domain, **attributes)
            known.update(zip(each.outputs, new, strict=True))
    found = [None if gradient is None else known[gradient] for gradient in wanted]
    return [
        b.zeros(value) if gradient is None and value is not None and b.wants(value) else gradient
        for value, gradient in zip(node.inputs, found, strict=True)
    ]


def _like(value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=name, shape=value.shape, type=value.type)
