"""Gradients of trigonometric and hyperbolic functions and of their inverses."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, operands

__all__ = ["RULES"]


def _one_less_square(b: Backward, x: ir.Value) -> ir.Value:
    """1 - x^2 as (1 - x) (1 + x), which avoids cancellation near 1."""
    one = b.like(1.0, x)
    return b.op("Mul", b.op("Sub", one, x), b.op("Add", one, x))


def _one_and_square(b: Backward, x: ir.Value) -> ir.Value:
    return b.op("Add", b.like(1.0, x), b.op("Mul", x, x))


def _sin(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sin(x): dx = dy cos(x).

    References:
        ONNX, Sin-7.
    """
    return [b.op("Mul", grads[0], b.op("Cos", *operands(node, 1)))]


def _cos(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = cos(x): dx = -dy sin(x).

    References:
        ONNX, Cos-7.
    """
    return [b.op("Neg", b.op("Mul", grads[0], b.op("Sin", *operands(node, 1))))]


def _tan(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = tan(x): dx = dy (1 + y^2).

    References:
        ONNX, Tan-7.
    """
    return [b.op("Mul", grads[0], _one_and_square(b, node.outputs[0]))]


def _asin(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = arcsin(x): dx = dy / sqrt(1 - x^2).

    References:
        ONNX, Asin-7.
    """
    return [b.op("Div", grads[0], b.op("Sqrt", _one_less_square(b, *operands(node, 1))))]


def _acos(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = arccos(x): dx = -dy / sqrt(1 - x^2).

    References:
        ONNX, Acos-7.
    """
    return [b.op("Neg", b.op("Div", grads[0], b.op("Sqrt", _one_less_square(b, *operands(node, 1)))))]


def _atan(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = arctan(x): dx = dy / (1 + x^2).

    References:
        ONNX, Atan-7.
    """
    return [b.op("Div", grads[0], _one_and_square(b, *operands(node, 1)))]


def _sinh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = sinh(x): dx = dy cosh(x).

    References:
        ONNX, Sinh-9.
    """
    return [b.op("Mul", grads[0], b.op("Cosh", *operands(node, 1)))]


def _cosh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = cosh(x): dx = dy sinh(x).

    References:
        ONNX, Cosh-9.
    """
    return [b.op("Mul", grads[0], b.op("Sinh", *operands(node, 1)))]


def _asinh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = arsinh(x): dx = dy / sqrt(x^2 + 1).

    References:
        ONNX, Asinh-9.
    """
    return [b.op("Div", grads[0], b.op("Sqrt", _one_and_square(b, *operands(node, 1))))]


def _acosh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = arcosh(x): dx = dy / sqrt(x^2 - 1), as (x - 1) (x + 1), which avoids cancellation near 1.

    References:
        ONNX, Acosh-9.
    """
    (x,) = operands(node, 1)
    one = b.like(1.0, x)
    return [b.op("Div", grads[0], b.op("Sqrt", b.op("Mul", b.op("Sub", x, one), b.op("Add", x, one))))]


def _atanh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = artanh(x): dx = dy / (1 - x^2).

    References:
        ONNX, Atanh-9.
    """
    return [b.op("Div", grads[0], _one_less_square(b, *operands(node, 1)))]


RULES: dict[str, Rule] = {
    "Acos": _acos,
    "Acosh": _acosh,
    "Asin": _asin,
    "Asinh": _asinh,
    "Atan": _atan,
    "Atanh": _atanh,
    "Cos": _cos,
    "Cosh": _cosh,
    "Sin": _sin,
    "Sinh": _sinh,
    "Tan": _tan,
}
