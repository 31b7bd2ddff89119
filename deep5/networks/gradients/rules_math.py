"""Gradients of arithmetic and of activations."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands
from deep5.networks.gradients.window import attribute

__all__ = ["RULES"]


def _fit(b: Backward, node: ir.Node, *gradients: ir.Value | None) -> Gradients:
    """Sum each gradient to the shape of its input."""
    shape = extents(node.outputs[0])
    return [
        None if gradient is None or value is None else b.unbroadcast(gradient, shape, value)
        for gradient, value in zip(gradients, node.inputs, strict=True)
    ]


def _add(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a + c: da = dy, dc = dy."""
    return _fit(b, node, *(grads[0] if b.wants(value) else None for value in node.inputs))


def _sub(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a - c: da = dy, dc = -dy."""
    a, c = operands(node, 2)
    return _fit(b, node, grads[0] if b.wants(a) else None, b.op("Neg", grads[0]) if b.wants(c) else None)


def _mul(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a c: da = dy c, dc = dy a."""
    a, c = operands(node, 2)
    return _fit(
        b,
        node,
        b.op("Mul", grads[0], c) if b.wants(a) else None,
        b.op("Mul", grads[0], a) if b.wants(c) else None,
    )


def _div(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a / c: da = dy / c, dc = -dy y / c."""
    (a, c), (y,) = operands(node, 2), node.outputs
    quotient = b.op("Div", grads[0], c)
    return _fit(
        b,
        node,
        quotient if b.wants(a) else None,
        b.op("Neg", b.op("Mul", quotient, y)) if b.wants(c) else None,
    )


def _neg(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = -x: dx = -dy."""
    return [b.op("Neg", grads[0])]


def _exp(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = exp(x): dx = dy y."""
    return [b.op("Mul", grads[0], node.outputs[0])]


def _tanh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = tanh(x): dx = dy (1 - y^2)."""
    y = node.outputs[0]
    return [b.op("Mul", grads[0], b.op("Sub", b.like(1.0, y), b.op("Mul", y, y)))]


def _sigmoid(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = 1 / (1 + exp(-x)): dx = dy y (1 - y)."""
    y = node.outputs[0]
    return [b.op("Mul", grads[0], b.op("Mul", y, b.op("Sub", b.like(1.0, y), y)))]


def _relu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max(x, 0): dx = dy where y > 0, else 0; at x = 0 the derivative is taken as 0."""
    y = node.outputs[0]
    zero = b.like(0.0, y)
    return [b.op("Where", b.op("Greater", y, zero), grads[0], zero)]


def _softmax(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = softmax(x) along an axis: dx = y (dy - sum(dy y))."""
    y, axis = node.outputs[0], attribute(node, "axis", -1)
    total = b.op("ReduceSum", b.op("Mul", grads[0], y), b.ints(axis), keepdims=1)
    return [b.op("Mul", y, b.op("Sub", grads[0], total))]


RULES: dict[str, Rule] = {
    "Add": _add,
    "Div": _div,
    "Exp": _exp,
    "Mul": _mul,
    "Neg": _neg,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Sub": _sub,
    "Tanh": _tanh,
}
