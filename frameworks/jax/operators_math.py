"""Operators that compute element by element, and those that reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import (
    OPERATORS,
    attribute,
    call,
    computed,
    fixed,
    is_whole,
    number,
    operator,
    pointwise,
    rank,
)

if TYPE_CHECKING:
    from deep5.frameworks.jax.emit import Emitter

__all__: list[str] = []


def _as_it_is(op_type: str, function: Callable[..., Any], **defaults: float) -> None:
    """The function takes what ONNX's operator takes; attributes follow the inputs, in this order."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        pointwise(emitter, node, function, *(number(node, key, value) for key, value in defaults.items()))

    OPERATORS[op_type] = emit


def _leaky_relu(x: Any, alpha: float) -> Any:
    return jnp.where(x > 0, x, alpha * x)


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return _clip(alpha * x + beta, 0, 1)


def _hard_swish(x: Any) -> Any:
    return x * _hard_sigmoid(x, 1 / 6, 0.5)


def _clip(x: Any, low: Any = None, high: Any = None) -> Any:
    # Not jnp.clip, whose gradient is a half on the bounds.
    x = x if low is None else jnp.where(x < low, low, x)
    return x if high is None else jnp.where(x > high, high, x)


def _divide(x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.div(*jnp.broadcast_arrays(x, y))  # towards zero, as ONNX has it
    return jnp.divide(x, y)


def _power(x: Any, y: Any) -> Any:
    # The result has the base's element type, whatever the exponent's.
    return jnp.power(x, y).astype(x.dtype)


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of any number of arrays, by a function of two."""

    def folded(first: Any, *others: Any) -> Any:
        for value in others:
            first = function(first, value)
        return first

    return folded


for _name, _function in {
    "Abs": jnp.abs,
    "Add": jnp.add,
    "And": jnp.logical_and,
    "Ceil": jnp.ceil,
    "Clip": _clip,
    "Cos": jnp.cos,
    "Div": _divide,
    "Equal": jnp.equal,
    "Erf": lax.erf,
    "Exp": jnp.exp,
    "Floor": jnp.floor,
    "Greater": jnp.greater,
    "GreaterOrEqual": jnp.greater_equal,
    "HardSwish": _hard_swish,
    "IsNaN": jnp.isnan,
    "Less": jnp.less,
    "LessOrEqual": jnp.less_equal,
    "Log": jnp.log,
    "Max": _fold(jnp.maximum),
    "Min": _fold(jnp.minimum),
    "Mul": jnp.multiply,
    "Neg": jnp.negative,
    "Not": jnp.logical_not,
    "Or": jnp.logical_or,
    "Pow": _power,
    "Reciprocal": jnp.reciprocal,
    "Relu": jax.nn.relu,
    "Round": jnp.round,
    "Sigmoid": jax.nn.sigmoid,
    "Sign": jnp.sign,
    "Sin": jnp.sin,
    "Softplus": jax.nn.softplus,
    "Sqrt": jnp.sqrt,
    "Sub": jnp.subtract,
    "Sum": _fold(jnp.add),
    "Tanh": jnp.tanh,
    "Where": jnp.where,
    "Xor": jnp.logical_xor,
}.items():
    _as_it_is(_name, _function)
_as_it_is("Elu", jax.nn.elu, alpha=1.0)
_as_it_is("HardSigmoid", _hard_sigmoid, alpha=0.2, beta=0.5)
_as_it_is("LeakyRelu", _leaky_relu, alpha=0.01)


@operator("Mod")
def _mod(emitter: Emitter, node: ir.Node) -> None:
    pointwise(emitter, node, jnp.fmod if attribute(node, "fmod", 0) else jnp.mod)


@operator("Cast")
def _cast(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    if emitter.is_stored(node.inputs[0]):
        weight, _ = emitter.weight(node.inputs[0])
        emitter.assign_weight(node.outputs[0], f"{emitter.bind(lax.convert_element_type)}({weight}, {dtype})")
    else:
        pointwise(emitter, node, lax.convert_element_type, dtype)


def _check_gelu(node: ir.Node) -> str | None:
    chosen = attribute(node, "approximate", "none")
    return None if chosen in ("none", "tanh") else f"approximate={chosen}"


@operator("Gelu", _check_gelu)
def _gelu(emitter: Emitter, node: ir.Node) -> None:
    pointwise(emitter, node, jax.nn.gelu, str(attribute(node, "approximate", "none") == "tanh"))


@operator("Softmax")
def _softmax(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jax.nn.softmax, str(attribute(node, "axis", -1)))


@operator("LogSoftmax")
def _log_softmax(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jax.nn.log_softmax, str(attribute(node, "axis", -1)))


@operator("MatMul")
def _matmul(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jnp.matmul)


def _reduction(op_type: str, function: Callable[..., Any]) -> None:
    def reduce(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        return function(x, axis=axes, keepdims=keep).astype(x.dtype)

    def emit(emitter: Emitter, node: ir.Node) -> None:
        axes = fixed(node, 1)
        if axes is not None and axes.size:
            chosen = tuple(sorted({int(entry) % rank(node) for entry in axes}))
        else:
            chosen = () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank(node)))
        x, keep = emitter.plain(node.inputs[0]), bool(attribute(node, "keepdims", 1))
        emitter.assign(node.outputs[0], f"{emitter.bind(reduce)}({x}, {chosen}, {keep})")

    def check(node: ir.Node) -> str | None:
        # A mean is that of floating-point numbers, which do not hold every whole one.
        return "whole numbers" if op_type == "ReduceMean" and is_whole(node.inputs[0]) else computed(node, 1)

    operator(op_type, check)(emit)


_reduction("ReduceMax", jnp.max)
_reduction("ReduceMean", jnp.mean)
_reduction("ReduceMin", jnp.min)
_reduction("ReduceProd", jnp.prod)
_reduction("ReduceSum", jnp.sum)


def _arg(op_type: str, function: Callable[..., Any]) -> None:
    def emit(emitter: Emitter, node: ir.Node) -> None:
        x, keep = emitter.plain(node.inputs[0]), bool(attribute(node, "keepdims", 1))
        text = f"{emitter.bind(function)}({x}, axis={attribute(node, 'axis', 0)}, keepdims={keep})"
        emitter.assign(node.outputs[0], f"{text}.astype('int64')")

    def check(node: ir.Node) -> str | None:
        return "the last of several equal ones" if attribute(node, "select_last_index", 0) else None

    operator(op_type, check)(emit)


_arg("ArgMax", jnp.argmax)
_arg("ArgMin", jnp.argmin)
