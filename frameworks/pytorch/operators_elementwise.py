"""More elementwise operators: trigonometry, bits, conversions, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.determinant import determinant
from deep5.frameworks.pytorch.short import in_float32
from deep5.frameworks.pytorch.table import kernel
from deep5.frameworks.pytorch.unsigned import logical_shift

__all__ = ["converted"]

_UINT64 = torch.uint64


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function, with a readable signature."""

    def own(*inputs: Any) -> Any:
        return function(*inputs)

    own.__name__ = function.__name__
    return own


for _name, _function in {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseNot": torch.bitwise_not,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Cosh": torch.cosh,
    "Det": determinant,
    "Mish": F.mish,
    "Sinh": torch.sinh,
    "Softsign": F.softsign,
    "Tan": torch.tan,
}.items():
    kernel(_name)(_plain(_function))


@kernel("Selu")
def _selu(x: Any, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Any:
    return gamma * F.elu(x, alpha)


@kernel("Celu")
def _celu(x: Any, *, alpha: float = 1.0) -> Any:
    return F.celu(x, alpha)


@kernel("ThresholdedRelu")
def _thresholded_relu(x: Any, *, alpha: float = 1.0) -> Any:
    return F.threshold(x, alpha, 0.0)


@kernel("Shrink")
def _shrink(x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x))).to(x.dtype)


@kernel("PRelu")
def _prelu(x: Any, slope: Any) -> Any:
    return torch.where(x < 0, x * slope, x)


@kernel("Swish")
def _swish(x: Any, *, alpha: float = 1.0) -> Any:
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@kernel("IsInf")
def _is_inf(x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if detect_negative else torch.zeros_like(x, dtype=torch.bool)


@kernel("Mean")
def _mean(*inputs: Any) -> Any:
    total = inputs[0]
    for value in inputs[1:]:
        total = total + value
    return total / len(inputs)


@kernel("BitShift")
def _bit_shift(x: Any, bits: Any, *, direction: str, kind: Any) -> Any:
    wide, by = (value.view(torch.int64) if kind == _UINT64 else value.to(torch.int64) for value in (x, bits))
    if direction == "LEFT":
        shifted = torch.where((by < 0) | (by > 63), 0, wide << by.clamp(0, 63))
    elif kind.is_signed:  # sign bits move in; a negative distance is larger than all bits
        shifted = wide >> torch.where((by < 0) | (by > 63), 63, by)
    else:
        shifted = logical_shift(wide, by)
    return shifted.view(kind) if kind == _UINT64 else shifted.to(kind)


def _check_bits(node: ir.Node) -> str | None:
    bits = [value.dtype.bitwidth for value in (node.inputs[0], node.outputs[0])]  # type: ignore[union-attr]
    return None if bits[0] == bits[1] else f"numbers of {bits[0]} bits as those of {bits[1]}"


@kernel("BitCast", _check_bits)
def _bit_cast(x: Any, *, kind: Any) -> Any:
    return x.clone() if x.dtype == kind else x.view(kind)


_INTO_NARROW = {
    torch.float8_e4m3fn: (448.0, 464.0),
    torch.float8_e4m3fnuz: (240.0, 248.0),
    torch.float8_e5m2: (57344.0, 61440.0),
    torch.float8_e5m2fnuz: (57344.0, 61440.0),
}


def converted(x: Any, kind: Any, saturate: int = 1) -> Any:
    """A tensor converted to another element type, by ONNX's rules for values out of range of an eight-bit float.

    References:
        ONNX operator specification, Cast, table of conversions to eight-bit floats.
    """
    if kind not in _INTO_NARROW or x.dtype == kind:
        return x.to(kind)
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    largest, beyond = _INTO_NARROW[kind]
    if saturate:
        return wide.clamp(-largest, largest).to(kind)
    # The midpoint between the largest number and the next step beyond it rounds to even: away from the largest number.
    over = wide.abs() >= beyond if kind != torch.float8_e4m3fn else wide.abs() > beyond
    inside = wide.clamp(-largest, largest)
    if kind == torch.float8_e5m2:
        return torch.where(over, wide.sign() * float("inf"), inside).to(kind)
    return _poisoned(inside.to(kind), over, kind)


def _poisoned(narrow: Any, over: Any, kind: Any) -> Any:
    """The NaN of an eight-bit type for values that are too large."""
    bits = {torch.float8_e4m3fn: 0x7F}.get(kind, 0x80)
    return torch.where(over, bits, narrow.view(torch.uint8)).to(torch.uint8).view(kind)


@kernel("CastLike")
def _cast_like(x: Any, like: Any, *, saturate: int = 1, kind: Any) -> Any:
    return converted(x, kind, saturate)


def _accumulated(function: Callable[..., Any], start: int) -> Callable[..., Any]:
    """A cumulative sum or product along an axis that is an input."""

    def run(x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
        along = axis[0] if isinstance(axis, list) else axis
        x = x.flip(along) if reverse else x
        kind = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        if exclusive:
            extent = x.shape[along]
            first = torch.full_like(x.narrow(along, 0, min(extent, 1)), start)
            x = torch.cat((first, x.narrow(along, 0, max(extent - 1, 0))), along)
        result = function(x, along, dtype=kind).to(x.dtype)
        return result.flip(along) if reverse else result

    run.__name__ = function.__name__
    return run


kernel("CumSum", settings=(1,))(_accumulated(torch.cumsum, 0))
kernel("CumProd", settings=(1,))(_accumulated(torch.cumprod, 1))


@kernel("Einsum")
def _einsum(*operands: Any, equation: str) -> Any:
    text = equation.replace(" ", "")
    if operands[0].dtype == torch.float16 and operands[0].device.type == "cpu":
        return in_float32(lambda *wide: torch.einsum(text, *wide))(*operands)
    return torch.einsum(text, *operands)


@kernel("Hardmax")
def _hardmax(x: Any, *, axis: int = -1) -> Any:
    # The product has a zero gradient, like the function wherever it is differentiable.
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, True), 1.0)


@kernel("Size")
def _size(x: Any, *, place: Any) -> Any:
    return torch.tensor(x.numel(), device=place)


@kernel("Range", eager=True)
def _range(start: Any, limit: Any, delta: Any) -> Any:
    first, end, step = (
        float(value.detach()) if value.dtype.is_floating_point else int(value) for value in (start, limit, delta)
    )
    count = max(math.ceil((end - first) / step) if isinstance(first, float) else -((first - end) // step), 0)
    # For float32 and shorter types: values computed in float64, rounded once.
    wide = torch.float64 if start.dtype.is_floating_point else torch.int64
    places = torch.arange(count, dtype=wide, device=start.device)
    return (start.reshape(()).to(wide) + places * delta.reshape(()).to(wide)).to(start.dtype)
