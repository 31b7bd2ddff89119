"""Elementwise operators, and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.operators_elementwise import converted
from deep5.frameworks.pytorch.table import OPERATORS, attribute, call, is_whole, number, operator
from deep5.frameworks.pytorch.unsigned import unsigned_quotient, unsigned_remainder
from deep5.networks.constants import constant_value

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []

_UNSIGNED = {ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}


_ELU = "4.6 and 2.8 times at (32, 64), 20 and 18 at (16, 64, 56, 56), with alpha 0.5"
_GELU = "4.8 and 1.3 times at (32, 64), 14 and 11 at (16, 64, 56, 56)"
_HARD_SWISH = "17 and 2.5 times at (32, 64), 12 and 6.0 at (16, 64, 56, 56)"
_MISH = "2.7 and 2.2 times the peak memory at (8, 64, 56, 56); 0.6 and 0.7 times at (16, 64, 56, 56)"
_LEAKY = "3.5 and 3.7 times at (32, 64), 30 and 19 at (16, 64, 56, 56)"
_SELU = "4.0 and 2.4 times at (2, 3, 8, 8), 7.6 and 8.2 at (8, 64, 56, 56)"
_THRESHOLD = "1.2 and 1.1 times at (2, 3, 8, 8), 6.9 and 3.2 at (8, 64, 56, 56)"
_CLIP = "bounds that are numbers: 2.7 and 1.2 times at (32, 64), 5.0 and 1.1 at (16, 64, 56, 56)"
_UNSIGNED_TYPES = "torch has no remainders of unsigned integers of more than eight bits"


def _as_it_is(op_type: str, function: Callable[..., Any], override: str = "", **defaults: float) -> None:
    """torch's function has the same arguments as ONNX's operator; attributes follow the inputs, in this order."""

    def emit(emitter: Emitter, node: ir.Node) -> str:
        return call(emitter, node, function, *(number(attribute(node, key, value)) for key, value in defaults.items()))

    operator(op_type, override=override)(emit)


_as_it_is("Neg", torch.neg)


def _unless_unsigned(op_type: str, function: Callable[..., Any], otherwise: Callable[..., Any]) -> None:
    """torch's function, which takes the upper half of uint64 for negative numbers, and another for unsigned types."""

    def emit(emitter: Emitter, node: ir.Node) -> str:
        kind = None if node.inputs[0] is None else node.inputs[0].dtype
        return call(emitter, node, otherwise if kind in _UNSIGNED else function)

    OPERATORS[op_type] = emit


def _positive_sign(x: Any) -> Any:
    return (x != 0).to(x.dtype)


_unless_unsigned("Abs", torch.abs, torch.clone)
_unless_unsigned("Sign", torch.sign, _positive_sign)
_as_it_is("Elu", F.elu, override=_ELU, alpha=1.0)
_as_it_is("HardSwish", F.hardswish, override=_HARD_SWISH)
_as_it_is("Mish", F.mish, override=_MISH)
_as_it_is("LeakyRelu", F.leaky_relu, override=_LEAKY, alpha=0.01)
# torch's elu also takes the scale.
_as_it_is("Selu", torch._C._nn.elu, override=_SELU, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)


def _thresholded(x: Any, alpha: float) -> Any:
    y = F.threshold(x, alpha, 0.0)
    y.detach().nan_to_num_(0.0, math.inf)  # NaN is not above the threshold
    return y


_as_it_is("ThresholdedRelu", _thresholded, override=_THRESHOLD, alpha=1.0)


@operator("MatMul")
def _matmul(emitter: Emitter, node: ir.Node) -> str:
    operands = ", ".join(emitter.name(value) for value in node.inputs)
    return f"{emitter.product(node, torch.matmul)}({operands})"


def _scalar(value: ir.Value | None) -> str | None:
    """A constant of shape () as source; None for anything else."""
    constant = constant_value(value)
    if constant is None or constant.shape or constant.dtype.kind not in "fiu":
        return None
    return number(constant.item())


def _binary(emitter: Emitter, node: ir.Node, function: Callable[..., Any], turned: Callable[..., Any] | None) -> str:
    """Emit a function of two arguments; a scalar constant is passed as a number, which torch need not read from memory.

    `turned(y, x)` is equal to `function(x, y)`, if torch has such a function.
    """
    first, second = node.inputs
    left, right = _scalar(first), _scalar(second)
    if right is not None and left is None:
        return f"{emitter.function(function)}({emitter.name(first)}, {right})"
    if left is not None and right is None and turned is not None:
        return f"{emitter.function(turned)}({emitter.name(second)}, {left})"
    return call(emitter, node, function)


@operator("Add")
def _add(emitter: Emitter, node: ir.Node) -> str:
    return _binary(emitter, node, torch.add, torch.add)


@operator("Mul")
def _mul(emitter: Emitter, node: ir.Node) -> str:
    return _binary(emitter, node, torch.mul, torch.mul)


@operator("Sub")
def _sub(emitter: Emitter, node: ir.Node) -> str:
    return _binary(emitter, node, torch.sub, torch.rsub)


def _whole_div(x: Any, y: Any) -> Any:
    return torch.div(x, y, rounding_mode="trunc")


def _unsigned(function: Callable[..., Any], of_64_bits: Callable[..., Any]) -> Callable[..., Any]:
    """A function of unsigned integers, computed in int64, since torch has no kernel for them."""

    def run(x: Any, y: Any) -> Any:
        if x.dtype == torch.uint64:
            return of_64_bits(x.view(torch.int64), y.view(torch.int64)).view(torch.uint64)
        return function(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)

    run.__name__ = of_64_bits.__name__
    return run


_UNSIGNED_DIV = _unsigned(_whole_div, unsigned_quotient)
_UNSIGNED_MOD = _unsigned(torch.remainder, unsigned_remainder)


def _is_unsigned(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in (ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64)


@operator("Div")
def _div(emitter: Emitter, node: ir.Node) -> str:
    if _is_unsigned(node.inputs[0]):
        return call(emitter, node, _UNSIGNED_DIV)
    return _binary(emitter, node, _whole_div if is_whole(node.inputs[0]) else torch.div, None)


@operator("Mod", override=_UNSIGNED_TYPES)
def _mod(emitter: Emitter, node: ir.Node) -> str:
    if _is_unsigned(node.inputs[0]):
        return call(emitter, node, _UNSIGNED_MOD)
    return _binary(emitter, node, torch.fmod if attribute(node, "fmod", 0) else torch.remainder, None)


def _cast_pow(x: Any, y: Any) -> Any:
    return torch.pow(x, y).to(x.dtype)


@operator("Pow")
def _pow(emitter: Emitter, node: ir.Node) -> str:
    base, exponent = node.inputs
    # The result has the base's element type for any exponent type; a number does not change a float type.
    keeps = base.dtype is exponent.dtype or (not is_whole(base) and _scalar(exponent))  # type: ignore[union-attr]
    return _binary(emitter, node, torch.pow if keeps else _cast_pow, None)


@operator("Clip", override=_CLIP)
def _clip(emitter: Emitter, node: ir.Node) -> str:
    x, *bounds = (*node.inputs, None, None)[:3]
    given = [value for value in bounds if value is not None]
    if not given:
        return emitter.name(x)
    numbers = [_scalar(value) for value in bounds]
    # All numbers or all tensors: torch does not accept a mixture. Tensors of uint64 are in the order of int64.
    if given[0].dtype == ir.DataType.UINT64 or sum(text is not None for text in numbers) < len(given):
        numbers = [emitter.name(value) for value in bounds]
    return f"{emitter.function(torch.clamp)}({emitter.name(x)}, {numbers[0]}, {numbers[1]})"


@operator("Cast")
def _cast(emitter: Emitter, node: ir.Node) -> str:
    x, kind = emitter.name(node.inputs[0]), emitter.dtype(node.outputs[0])
    if str(node.outputs[0].dtype).startswith("FLOAT8"):
        return f"{emitter.function(converted)}({x}, {kind}, {attribute(node, 'saturate', 1)})"
    return f"{x}.to({kind})"


def _check_gelu(node: ir.Node) -> str | None:
    chosen = attribute(node, "approximate", "none")
    return None if chosen in ("none", "tanh") else f"approximate={chosen}"


@operator("Gelu", _check_gelu, override=_GELU)
def _gelu(emitter: Emitter, node: ir.Node) -> str:
    tanh = attribute(node, "approximate", "none") == "tanh"
    return call(emitter, node, F.gelu, *(["approximate='tanh'"] if tanh else []))
