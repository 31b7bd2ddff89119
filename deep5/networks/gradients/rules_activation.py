"""Gradients of activations."""

from __future__ import annotations

import math

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, operands
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _where_positive(b: Backward, value: ir.Value, dy: ir.Value | None, otherwise: ir.Value) -> ir.Value:
    return b.op("Where", b.op("Greater", value, b.like(0.0, value)), dy, otherwise)


def _relu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max(x, 0): dx = dy where y > 0, else 0; at x = 0 the derivative is taken as 0.

    References:
        ONNX, Relu-14. Nair and Hinton, Rectified linear units improve restricted Boltzmann machines, ICML 2010.
    """
    y = node.outputs[0]
    # A product with a 0/1 mask would be a quarter faster, but would turn an infinite dy into NaN.
    return [_where_positive(b, y, grads[0], b.like(0.0, y))]


def _leaky_relu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x where x > 0, else alpha x: dx = dy, or alpha dy; at x = 0 the derivative is taken as alpha.

    References:
        ONNX, LeakyRelu-16. Maas, Hannun and Ng, Rectifier nonlinearities improve neural network acoustic models, ICML
        2013, section 2.
    """
    (x,) = operands(node, 1)
    return [_where_positive(b, x, grads[0], b.op("Mul", grads[0], b.like(attribute(node, "alpha", 0.01), x)))]


def _elu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x where x > 0, else alpha (exp(x) - 1): dx = dy, or dy (y + alpha).

    References:
        ONNX, Elu-6. Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by ELUs, ICLR 2016,
        equation 15.
    """
    (x,), (y,) = operands(node, 1), node.outputs
    slope = b.op("Add", y, b.like(attribute(node, "alpha", 1.0), x))
    return [_where_positive(b, x, grads[0], b.op("Mul", grads[0], slope))]


def _celu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x where x > 0, else alpha (exp(x / alpha) - 1): dx = dy, or dy exp(x / alpha).

    References:
        ONNX, Celu-12. Barron, Continuously differentiable exponential linear units, arXiv:1704.07483, equation 2.
    """
    (x,) = operands(node, 1)
    left = b.op("Min", x, b.like(0.0, x))  # no overflow in the branch that is not selected
    return [b.op("Mul", grads[0], b.op("Exp", b.op("Div", left, b.like(attribute(node, "alpha", 1.0), x))))]


def _selu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = gamma x where x > 0, else gamma alpha (exp(x) - 1): dx = gamma dy, or dy (y + gamma alpha).

    References:
        ONNX, Selu-6. Klambauer et al., Self-normalizing neural networks, NeurIPS 2017, equation 2.
    """
    (x,), (y,) = operands(node, 1), node.outputs
    alpha = attribute(node, "alpha", 1.67326319217681884765625)
    gamma = attribute(node, "gamma", 1.05070102214813232421875)
    slope = b.op("Add", y, b.like(alpha * gamma, x))
    return [_where_positive(b, x, b.op("Mul", grads[0], b.like(gamma, x)), b.op("Mul", grads[0], slope))]


def _softplus(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = log(1 + exp(x)): dx = dy / (1 + exp(-x)).

    References:
        ONNX, Softplus-1.
    """
    return [b.op("Mul", grads[0], b.op("Sigmoid", *operands(node, 1)))]


def _tanh(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = tanh(x): dx = dy (1 - y^2).

    References:
        ONNX, Tanh-13.
    """
    y = node.outputs[0]
    # Every node needs dy. ONNX Runtime sorts nodes in a time that grows with the number of those that the forward pass
    # makes ready: with 1 - y^2 it starts 4,000 nodes in 20 s, so in 4 s.
    return [b.op("Sub", grads[0], b.op("Mul", b.op("Mul", grads[0], y), y))]


def _sigmoid(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = 1 / (1 + exp(-x)): dx = dy y (1 - y).

    References:
        ONNX, Sigmoid-13. Bishop, Pattern Recognition and Machine Learning, 2006, equation 4.88.
    """
    y = node.outputs[0]
    return [b.op("Mul", grads[0], b.op("Mul", y, b.op("Sub", b.like(1.0, y), y)))]


def _between(b: Backward, x: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    return b.op("And", b.op("Greater", x, low), b.op("Less", x, high))


def _hard_sigmoid(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max(0, min(1, z)), z = alpha x + beta: dx = alpha dy where 0 <= z <= 1, else 0; as Clip, also at the bounds.

    References:
        ONNX, HardSigmoid-6.
    """
    (x,) = operands(node, 1)
    alpha = b.like(attribute(node, "alpha", 0.2), x)
    z = b.op("Add", b.op("Mul", x, alpha), b.like(attribute(node, "beta", 0.5), x))
    zero = b.like(0.0, x)
    outside = b.op("Or", b.op("Less", z, zero), b.op("Greater", z, b.like(1.0, x)))
    return [b.op("Where", outside, zero, b.op("Mul", grads[0], alpha))]


def _hard_swish(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x max(0, min(1, x / 6 + 1/2)): dx = 0 up to -3, dy (x / 3 + 1/2) up to 3, dy beyond.

    References:
        ONNX, HardSwish-14. Howard et al., Searching for MobileNetV3, ICCV 2019, section 5.2.
    """
    (x,) = operands(node, 1)
    low, high, half = b.like(-3.0, x), b.like(3.0, x), b.like(0.5, x)
    slope = b.op("Where", b.op("Less", x, high), b.op("Add", b.op("Div", x, high), half), b.like(1.0, x))
    return [b.op("Where", b.op("Greater", x, low), b.op("Mul", grads[0], slope), b.like(0.0, x))]


def _clip(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = min(max(x, low), high): dx = dy where low <= x <= high, dlow = the sum of dy where x < low, dhigh = the sum
    of dy where x > high or low > high.

    References:
        ONNX, Clip-13.
    """
    x, *bounds = (*node.inputs, None, None)[:3]
    low, high = (_bound(b, value, node.outputs[0]) for value in bounds)
    (dx,), zero = grads, b.like(0.0, node.outputs[0])
    dlow = dhigh = None
    raised = x if low is None else b.op("Max", x, low)
    if high is not None:
        over = b.op("Greater", raised, high)
        dhigh = _total(b, over, grads[0], high, zero)
        dx = b.op("Where", over, zero, dx)
    if low is not None:
        under = b.op("Less", x, low)
        dlow = _total(b, under, dx, low, zero)
        dx = b.op("Where", under, zero, dx)
    return [dx, dlow, dhigh][: len(node.inputs)]


def _bound(b: Backward, value: ir.Value | None, like: ir.Value) -> ir.Value | None:
    """A bound; a constant one anew, since a node that reads it as a number would turn the setting into a parameter."""
    known = constant_value(value)
    return value if known is None else b.like(float(known.reshape(())), like)


def _total(b: Backward, where: ir.Value, dy: ir.Value | None, bound: ir.Value, zero: ir.Value) -> ir.Value | None:
    return b.op("ReduceSum", b.op("Where", where, dy, zero), keepdims=0) if b.wants(bound) else None


def _erf(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = erf(x): dx = dy 2 / sqrt(pi) exp(-x^2).

    References:
        ONNX, Erf-13.
    """
    (x,) = operands(node, 1)
    bell = b.op("Exp", b.op("Neg", b.op("Mul", x, x)))
    return [b.op("Mul", grads[0], b.op("Mul", bell, b.like(2.0 / math.sqrt(math.pi), x)))]


def _gelu(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x P(x), P the normal CDF: dx = dy (P(x) + x p(x)), with the density p.

    `approximate="tanh"`: P(x) = (1 + t) / 2, t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3), and
    p(x) = (1 - t^2) u' / 2.

    References:
        ONNX, Gelu-20. Hendrycks and Gimpel, Gaussian error linear units, arXiv:1606.08415, section 2.
    """
    (x,) = operands(node, 1)
    one, half, square = b.like(1.0, x), b.like(0.5, x), b.op("Mul", x, x)
    if attribute(node, "approximate", "none") == "tanh":
        root, cubic = math.sqrt(2.0 / math.pi), 0.044715
        inner = b.op("Add", b.op("Mul", square, b.like(root * cubic, x)), b.like(root, x))
        slope = b.op("Add", b.op("Mul", square, b.like(3.0 * root * cubic, x)), b.like(root, x))
        t = b.op("Tanh", b.op("Mul", x, inner))
        total = b.op("Mul", half, b.op("Add", one, t))
        flat = b.op("Mul", half, b.op("Sub", one, b.op("Mul", t, t)))
        density = b.op("Mul", flat, slope)
    else:
        total = b.op("Mul", half, b.op("Add", one, b.op("Erf", b.op("Mul", x, b.like(math.sqrt(0.5), x)))))
        bell = b.op("Exp", b.op("Mul", square, b.like(-0.5, x)))
        density = b.op("Mul", bell, b.like(1.0 / math.sqrt(2.0 * math.pi), x))
    return [b.op("Mul", grads[0], b.op("Add", total, b.op("Mul", x, density)))]


def _softmax(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = softmax(x) along an axis: dx = y (dy - sum(dy y)).

    References:
        ONNX, Softmax-13. Bishop, Pattern Recognition and Machine Learning, 2006, equation 4.106.
    """
    y, axis = node.outputs[0], attribute(node, "axis", -1)
    total = b.op("ReduceSum", b.op("Mul", grads[0], y), b.ints(axis), keepdims=1)
    return [b.op("Mul", y, b.op("Sub", grads[0], total))]


def _log_softmax(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = log softmax(x) along an axis: dx = dy - exp(y) sum(dy).

    References:
        ONNX, LogSoftmax-13.
    """
    y, axis = node.outputs[0], attribute(node, "axis", -1)
    total = b.op("ReduceSum", grads[0], b.ints(axis), keepdims=1)
    return [b.op("Sub", grads[0], b.op("Mul", b.op("Exp", y), total))]


RULES: dict[str, Rule] = {
    "Celu": _celu,
    "Clip": _clip,
    "Elu": _elu,
    "Erf": _erf,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "Relu": _relu,
    "Selu": _selu,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Softplus": _softplus,
    "Tanh": _tanh,
}
