"""Gradients of arithmetic and of elementary functions."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands

__all__ = ["RULES"]


def _fit(b: Backward, node: ir.Node, *gradients: ir.Value | None) -> Gradients:
    """Sum each gradient to the shape of its input."""
    shape = extents(node.outputs[0])
    return [
        None if gradient is None or value is None else b.unbroadcast(gradient, shape, value)
        for gradient, value in zip(gradients, node.inputs, strict=True)
    ]


def _add(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a + c + …: da = dy, dc = dy, ….

    References:
        ONNX, Add-14 and Sum-13.
    """
    return _fit(b, node, *(grads[0] if b.wants(value) else None for value in node.inputs))


def _sub(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a - c: da = dy, dc = -dy.

    References:
        ONNX, Sub-14.
    """
    a, c = operands(node, 2)
    return _fit(b, node, grads[0] if b.wants(a) else None, b.op("Neg", grads[0]) if b.wants(c) else None)


def _mul(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a c: da = dy c, dc = dy a.

    References:
        ONNX, Mul-14.
    """
    a, c = operands(node, 2)
    return _fit(
        b,
        node,
        b.op("Mul", grads[0], c) if b.wants(a) else None,
        b.op("Mul", grads[0], a) if b.wants(c) else None,
    )


def _div(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a / c: da = dy / c, dc = -dy y / c.

    References:
        ONNX, Div-14.
    """
    (a, c), (y,) = operands(node, 2), node.outputs
    quotient = b.op("Div", grads[0], c)
    return _fit(
        b,
        node,
        quotient if b.wants(a) else None,
        b.op("Neg", b.op("Mul", quotient, y)) if b.wants(c) else None,
    )


def _pow(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x^p: dx = dy p x^(p - 1), and 0 where p = 0; dp = dy y log(x), and 0 where x = 0 and p >= 0.

    References:
        ONNX, Pow-15.
    """
    (x, p), (y,) = operands(node, 2), node.outputs
    exponent = constant_value(p)
    dx = dp = None
    if b.wants(x) and exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 2.0:
        dx = b.op("Mul", grads[0], b.op("Mul", x, b.like(2.0, x)))
    elif b.wants(x):
        power = p if p.dtype == x.dtype else b.op("Cast", p, to=x.dtype)
        zero, slope = b.like(0.0, x), b.op("Pow", x, b.op("Sub", power, b.like(1.0, x)))
        dx = b.op("Mul", grads[0], b.op("Where", b.op("Equal", power, zero), zero, b.op("Mul", power, slope)))
    if b.wants(p):
        zero = b.like(0.0, p)
        gone = b.op("And", b.op("Equal", x, b.like(0.0, x)), b.op("GreaterOrEqual", p, zero))
        log = b.op("Where", gone, b.like(0.0, x), b.op("Log", x))
        dp = b.op("Mul", grads[0], b.op("Mul", y, log))
        dp = dp if p.dtype == x.dtype else b.op("Cast", dp, to=p.dtype)
    return _fit(b, node, dx, dp)


def _extreme(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max(a, c, …), or min: inputs that equal y share dy in equal parts, as in PyTorch and JAX.

    References:
        ONNX, Max-13 and Min-13.
    """
    y = node.outputs[0]
    if len(node.inputs) == 1:
        return [grads[0]]
    chosen = [b.op("Cast", b.op("Equal", value, y), to=y.dtype) for value in node.inputs]
    share = b.op("Div", grads[0], b.op("Sum", *chosen))
    return _fit(
        b,
        node,
        *(b.op("Mul", share, one) if b.wants(value) else None for value, one in zip(node.inputs, chosen, strict=True)),
    )


def _where(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a where the condition holds, c elsewhere: da = dy there, dc = dy elsewhere, 0 otherwise.

    References:
        ONNX, Where-16.
    """
    (condition, a, c), zero = operands(node, 3), b.like(0.0, node.outputs[0])
    return _fit(
        b,
        node,
        None,
        b.op("Where", condition, grads[0], zero) if b.wants(a) else None,
        b.op("Where", condition, zero, grads[0]) if b.wants(c) else None,
    )


def _neg(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = -x: dx = -dy.

    References:
        ONNX, Neg-13.
    """
    return [b.op("Neg", grads[0])]


def _exp(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = exp(x): dx = dy y.

    References:
        ONNX, Exp-13.
    """
    return [b.op("Mul", grads[0], node.outputs[0])]


def _log(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = log(x): dx = dy / x.

    References:
        ONNX, Log-13.
    """
    return [b.op("Div", grads[0], *operands(node, 1))]


def _sqrt(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sqrt(x): dx = dy / (2 y).

    References:
        ONNX, Sqrt-13.
    """
    y = node.outputs[0]
    return [b.op("Div", b.op("Mul", grads[0], b.like(0.5, y)), y)]


def _reciprocal(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = 1 / x: dx = -dy y^2.

    References:
        ONNX, Reciprocal-13.
    """
    y = node.outputs[0]
    return [b.op("Neg", b.op("Mul", grads[0], b.op("Mul", y, y)))]


def _abs(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = |x|: dx = dy sign(x), 0 at x = 0.

    References:
        ONNX, Abs-13.
    """
    return [b.op("Mul", grads[0], b.op("Sign", *operands(node, 1)))]


def _mod(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a - q c, with the quotient q = a / c rounded to an integer: da = dy, dc = -dy q.

    References:
        ONNX, Mod-13.
    """
    (a, c), (y,) = operands(node, 2), node.outputs
    dc = None
    if b.wants(c):
        dc = b.op("Neg", b.op("Mul", grads[0], b.op("Round", b.op("Div", b.op("Sub", a, y), c))))
    return _fit(b, node, grads[0] if b.wants(a) else None, dc)


def _average(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = (a + c + …) / n: da = dy / n, dc = dy / n, ….

    References:
        ONNX, Mean-13.
    """
    share = b.scaled(grads[0], 1.0 / len(node.inputs), node.outputs[0])
    return _fit(b, node, *(share if b.wants(value) else None for value in node.inputs))


RULES: dict[str, Rule] = {
    "Abs": _abs,
    "Add": _add,
    "Div": _div,
    "Exp": _exp,
    "Log": _log,
    "Max": _extreme,
    "Mean": _average,
    "Min": _extreme,
    "Mod": _mod,
    "Mul": _mul,
    "Neg": _neg,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Sqrt": _sqrt,
    "Sub": _sub,
    "Sum": _add,
    "Where": _where,
}
