"""Element-wise operators: the standard's functions, activations, and tests and shifts of single elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

_NATIVE = {
    "Acos": "acos",
    "Acosh": "acosh",
    "And": "logical_and",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseAnd": "bitwise_and",
    "BitwiseNot": "bitwise_invert",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Equal": "equal",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "IsNaN": "isnan",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Log": "log",
    "Not": "logical_not",
    "Or": "logical_or",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
    "Where": "where",
    "Xor": "logical_xor",
}


def _celu(xp: Primitives, x: Array, *, alpha: float = 1.0) -> Array:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)), in which a negative alpha changes the sign of x / alpha."""
    if alpha > 0:
        return xp.elu(x) if alpha == 1.0 else alpha * xp.elu(x / alpha)
    return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x) / alpha))


def _clip(xp: Primitives, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    return xp.clamp(x, low, high)


def _elu(xp: Primitives, x: Array, *, alpha: float = 1.0) -> Array:
    if alpha == 1.0:
        return xp.elu(x)
    return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x)))


def _gelu(xp: Primitives, x: Array, *, approximate: str = "none") -> Array:
    """x times the normal distribution function, or its approximation by a hyperbolic tangent.

    References:
        Hendrycks and Gimpel, Gaussian error linear units, arXiv 1606.08415, section 2.
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return x * xp.normal_distribution(x)


def _check_gelu(node: ir.Node) -> str | None:
    chosen = attribute(node, "approximate", "none")
    return None if chosen in ("none", "tanh") else f"approximate={chosen}"


def _hard_sigmoid(xp: Primitives, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return xp.clamp(alpha * x + beta, 0.0, 1.0)


def _hard_swish(xp: Primitives, x: Array) -> Array:
    """x max(0, min(1, (x + 3) / 6)), whose gradient is 0 at -3 and 1 at 3; that of a clamp would be -1/2 and 3/2."""
    gate = xp.where(x >= 3, xp.ones_like(x), (x + 3) / 6)
    return x * xp.where(x <= -3, xp.zeros_like(x), gate)


def _leaky_relu(xp: Primitives, x: Array, *, alpha: float = 0.01) -> Array:
    return xp.where(x > 0, x, alpha * x)


def _mish(xp: Primitives, x: Array) -> Array:
    return x * xp.tanh(xp.softplus(x))


def _prelu(xp: Primitives, x: Array, slope: Array) -> Array:
    return xp.where(x < 0, x * slope, x)


def _selu(
    xp: Primitives, x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Array:
    return gamma * _elu(xp, x, alpha=alpha)


def _shrink(xp: Primitives, x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    wide = x if xp.is_floating(x.dtype) else xp.astype(x, xp.float64)
    low, high = (wide + bias, wide - bias) if bias else (wide, wide)
    return xp.astype(xp.where(wide < -lambd, low, xp.where(wide > lambd, high, xp.zeros_like(wide))), x.dtype)


def _softsign(xp: Primitives, x: Array) -> Array:
    return x / (1 + xp.abs(x))


def _swish(xp: Primitives, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.silu(x) if alpha == 1.0 else x * xp.sigmoid(alpha * x)


def _gated(xp: Primitives, gate: Array, x: Array, *, alpha: float = 1.0) -> Array:
    return _swish(xp, gate, alpha=alpha) * x


def _thresholded_relu(xp: Primitives, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.where(x > alpha, x, xp.zeros_like(x))


def _is_inf(xp: Primitives, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    found = xp.isinf(x)
    if detect_negative and detect_positive:
        return found
    return found & ((x < 0) if detect_negative else (x > 0)) if detect_negative or detect_positive else found & ~found


def _mod(xp: Primitives, x: Array, y: Array, *, fmod: int = 0) -> Array:
    return xp.fmod(x, y) if fmod else xp.remainder(x, y)


def _folded(name: str) -> Callable[..., Array]:
    """An operator of any number of inputs, from a function of two."""

    def fold(xp: Primitives, *inputs: Array) -> Array:
        return functools.reduce(getattr(xp, name), inputs)

    return fold


def _mean(xp: Primitives, *inputs: Array) -> Array:
    return functools.reduce(xp.add, inputs) / len(inputs)


def _bit_shift(xp: Primitives, x: Array, bits: Array, *, direction: str) -> Array:
    """Shifts; a distance of the width or more leaves only the sign."""
    unsigned, width = xp.limits(x.dtype)[0] == 0, _width(xp, x.dtype)
    beyond = (bits > width - 1) if unsigned else (bits > width - 1) | (bits < 0)
    by = xp.where(beyond, xp.full_like(bits, width - 1), bits)
    if direction == "LEFT":
        return xp.where(beyond, xp.zeros_like(x), xp.bitwise_left_shift(x, by))
    moved = xp.bitwise_right_shift(x, by)
    return xp.where(beyond, xp.zeros_like(x), moved) if unsigned else moved


def _width(xp: Primitives, dtype: object) -> int:
    low, high = xp.limits(dtype)
    return int(high).bit_length() + (low != 0)


def _native(name: str) -> Composite:
    def call(xp: Primitives, *inputs: Array) -> Array:
        return getattr(xp, name)(*inputs)

    return Composite(function=call, layout="elementwise", native=name)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "BitShift": _bit_shift,
    "Celu": _celu,
    "Clip": _clip,
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "IsInf": _is_inf,
    "LeakyRelu": _leaky_relu,
    "Max": _folded("maximum"),
    "Mean": _mean,
    "Min": _folded("minimum"),
    "Mish": _mish,
    "Mod": _mod,
    "PRelu": _prelu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Softsign": _softsign,
    "Sum": _folded("add"),
    "SwiGLU": _gated,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
}
OPERATORS = {
    **{op_type: _native(name) for op_type, name in _NATIVE.items()},
    **{op_type: Composite(function=function, layout="elementwise") for op_type, function in _FUNCTIONS.items()},
    "Gelu": Composite(function=_gelu, check=_check_gelu, layout="elementwise"),
}
