"""Operators that compute element by element, and those that reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import OPERATORS, attribute, call, computed, fixed, is_whole, number, operator, rank
from deep5.networks.constants import constant_value

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emit import Emitter

__all__: list[str] = []


def _as_it_is(op_type: str, function: Callable[..., Any], **defaults: float) -> None:
    """torch's function takes what ONNX's operator takes; attributes follow the inputs, in this order."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        call(emitter, node, function, *(number(attribute(node, key, value)) for key, value in defaults.items()))

    OPERATORS[op_type] = emit


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return torch.clamp(x * alpha + beta, 0, 1)


def _softplus(x: Any) -> Any:
    # Above the threshold the argument itself, which is then right to the last bit of float64 too.
    return F.softplus(x, 1.0, 40.0)


for _name, _function in {
    "Abs": torch.abs,
    "And": torch.logical_and,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "HardSwish": F.hardswish,
    "IsNaN": torch.isnan,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": _softplus,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
    "Where": torch.where,
    "Xor": torch.logical_xor,
}.items():
    _as_it_is(_name, _function)
_as_it_is("Elu", F.elu, alpha=1.0)
_as_it_is("HardSigmoid", _hard_sigmoid, alpha=0.2, beta=0.5)
_as_it_is("LeakyRelu", F.leaky_relu, alpha=0.01)
_as_it_is("LogSoftmax", F.log_softmax, axis=-1)
_as_it_is("Softmax", F.softmax, axis=-1)


@operator("MatMul")
def _matmul(emitter: Emitter, node: ir.Node) -> None:
    operands = ", ".join(emitter.name(value) for value in node.inputs)
    emitter.assign(node, f"{emitter.product(node, torch.matmul)}({operands})")


def _scalar(value: ir.Value | None) -> str | None:
    """A constant number of shape () as source text; None for all else."""
    constant = constant_value(value)
    if constant is None or constant.shape or constant.dtype.kind not in "fiu":
        return None
    return number(constant.item())


def _binary(emitter: Emitter, node: ir.Node, function: Callable[..., Any], turned: Callable[..., Any] | None) -> None:
    """Emit a function of two; a constant number goes in as a number, which torch need not read from memory.

    `turned(y, x)` is what `function(x, y)` is, where torch has such a function.
    """
    first, second = node.inputs
    left, right = _scalar(first), _scalar(second)
    if right is not None and left is None:
        emitter.assign(node, f"{emitter.function(function)}({emitter.name(first)}, {right})")
    elif left is not None and right is None and turned is not None:
        emitter.assign(node, f"{emitter.function(turned)}({emitter.name(second)}, {left})")
    else:
        call(emitter, node, function)


@operator("Add")
def _add(emitter: Emitter, node: ir.Node) -> None:
    _binary(emitter, node, torch.add, torch.add)


@operator("Mul")
def _mul(emitter: Emitter, node: ir.Node) -> None:
    _binary(emitter, node, torch.mul, torch.mul)


@operator("Sub")
def _sub(emitter: Emitter, node: ir.Node) -> None:
    _binary(emitter, node, torch.sub, torch.rsub)


def _whole_div(x: Any, y: Any) -> Any:
    return torch.div(x, y, rounding_mode="trunc")


@operator("Div")
def _div(emitter: Emitter, node: ir.Node) -> None:
    _binary(emitter, node, _whole_div if is_whole(node.inputs[0]) else torch.div, None)


@operator("Mod")
def _mod(emitter: Emitter, node: ir.Node) -> None:
    _binary(emitter, node, torch.fmod if attribute(node, "fmod", 0) else torch.remainder, None)


def _cast_pow(x: Any, y: Any) -> Any:
    return torch.pow(x, y).to(x.dtype)


@operator("Pow")
def _pow(emitter: Emitter, node: ir.Node) -> None:
    base, exponent = node.inputs
    # The result has the base's element type, whatever the exponent's; a number does not change a float's type.
    keeps = base.dtype is exponent.dtype or (not is_whole(base) and _scalar(exponent))  # type: ignore[union-attr]
    _binary(emitter, node, torch.pow if keeps else _cast_pow, None)


def _fold(op_type: str, function: Callable[..., Any]) -> None:
    """An operator of any number of inputs, by a function of two."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        text = emitter.name(node.inputs[0])
        for value in node.inputs[1:]:
            text = f"{emitter.function(function)}({text}, {emitter.name(value)})"
        emitter.assign(node, text)

    OPERATORS[op_type] = emit


_fold("Max", torch.maximum)
_fold("Min", torch.minimum)
_fold("Sum", torch.add)


@operator("Clip")
def _clip(emitter: Emitter, node: ir.Node) -> None:
    x, *bounds = (*node.inputs, None, None)[:3]
    given = [value for value in bounds if value is not None]
    if not given:
        emitter.assign(node, emitter.name(x))
        return
    numbers = [_scalar(value) for value in bounds]
    # All numbers or all tensors: torch takes no mixture.
    if sum(text is not None for text in numbers) < len(given):
        numbers = [emitter.name(value) for value in bounds]
    emitter.assign(node, f"{emitter.function(torch.clamp)}({emitter.name(x)}, {numbers[0]}, {numbers[1]})")


@operator("Cast")
def _cast(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.name(node.inputs[0])}.to({emitter.dtype(node.outputs[0])})")


def _check_gelu(node: ir.Node) -> str | None:
    chosen = attribute(node, "approximate", "none")
    return None if chosen in ("none", "tanh") else f"approximate={chosen}"


@operator("Gelu", _check_gelu)
def _gelu(emitter: Emitter, node: ir.Node) -> None:
    tanh = attribute(node, "approximate", "none") == "tanh"
    call(emitter, node, F.gelu, *(["approximate='tanh'"] if tanh else []))


def _check_axes(node: ir.Node) -> str | None:
    return computed(node, 1)


def _reduction(op_type: str, write: Callable[[str, str], str]) -> None:
    """A reduction; `write` gives its text from the tensor's and from the arguments axes and keepdim."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        x, axes = emitter.name(node.inputs[0]), fixed(node, 1)
        if axes is not None and axes.size:
            chosen = tuple(sorted(int(entry) % rank(node) for entry in axes))
        else:
            chosen = () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank(node)))
        # To torch, no axes are all axes.
        keep = bool(attribute(node, "keepdims", 1))
        emitter.assign(node, write(x, f"{chosen}, {keep}") if chosen else write(f"{x}[None]", "(0,), False"))

    operator(op_type, _check_axes)(emit)


_reduction("ReduceMax", lambda x, how: f"{x}.amax({how})")
_reduction("ReduceMean", lambda x, how: f"{x}.mean({how})")
_reduction("ReduceMin", lambda x, how: f"{x}.amin({how})")
# torch adds whole numbers up in int64.
_reduction("ReduceSum", lambda x, how: f"{x}.sum({how}, dtype={x}.dtype)")


def _arg(op_type: str, method: str) -> None:
    def emit(emitter: Emitter, node: ir.Node) -> None:
        keep = bool(attribute(node, "keepdims", 1))
        emitter.assign(node, f"{emitter.name(node.inputs[0])}.{method}({attribute(node, 'axis', 0)}, {keep})")

    def check(node: ir.Node) -> str | None:
        return "the last of several equal ones" if attribute(node, "select_last_index", 0) else None

    operator(op_type, check)(emit)


_arg("ArgMax", "argmax")
_arg("ArgMin", "argmin")
