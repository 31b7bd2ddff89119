"""Element-wise operators and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.table import (
    OPERATORS,
    attribute,
    call,
    number,
    operator,
    pointwise,
)

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = ["few_bits"]


def _as_it_is(op_type: str, function: Callable[..., Any], **defaults: float) -> None:
    """Register a function with the same inputs as ONNX's operator; attributes follow the inputs, in this order."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        pointwise(emitter, node, function, *(number(node, key, value) for key, value in defaults.items()))

    OPERATORS[op_type] = emit


def _divide(x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.div(*jnp.broadcast_arrays(x, y))  # rounds toward zero, as ONNX requires
    return jnp.divide(x, y)


def _power(x: Any, y: Any) -> Any:
    # The result has the base's dtype, whatever the exponent's. Of integers and a negative exponent it is the quotient
    # 1 / x^-y without its fraction; JAX's has no meaning.
    if jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(y.dtype, jnp.signedinteger):
        power = jnp.power(x, jnp.abs(y)).astype(x.dtype)
        return jnp.where(y < 0, jnp.where(jnp.abs(x) == 1, power, 0).astype(x.dtype), power)
    return jnp.power(x, y).astype(x.dtype)


@jax.custom_jvp  # type: ignore[untyped-decorator]  # JAX is not type-checked
def absolute(x: Any) -> Any:
    """|x|, whose derivative at 0 is 0; JAX's own is 1."""
    return jnp.abs(x)


@absolute.defjvp  # type: ignore[untyped-decorator]  # JAX is not type-checked
def _absolute_along(values: Any, directions: Any) -> Any:
    (x,), (moved,) = values, directions
    return jnp.abs(x), moved * jnp.sign(x)


_AS_IT_IS: dict[str, Callable[..., Any]] = {
    "Abs": absolute,
    "Add": jnp.add,
    "Div": _divide,
    "Mul": jnp.multiply,
    "Neg": jnp.negative,
    "Pow": _power,
    "Sign": jnp.sign,
    "Sub": jnp.subtract,
}
for _name, _function in _AS_IT_IS.items():
    _as_it_is(_name, _function)


def _determinant(x: Any) -> Any:
    """Of float16 and bfloat16, which JAX does not factor, in float32."""
    wide = x if x.dtype.itemsize > 2 else x.astype(jnp.float32)
    return jnp.linalg.det(wide).astype(x.dtype)


@operator(
    "BitShift", override="1.8 times at (2, 3, 8, 8): XLA's shifts beyond the width leave only the sign, as ONNX's"
)
def _bit_shift(emitter: Emitter, node: ir.Node) -> None:
    pointwise(emitter, node, jnp.left_shift if attribute(node, "direction") == "LEFT" else jnp.right_shift)


@operator("Det")
def _det(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _determinant)


_FEW = ("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2")
FEW_BITS = {kind for kind in ir.DataType if kind.name.startswith(_FEW)}
"""Dtypes of at most eight bits that JAX can cast to and from, but cannot compute in."""


def few_bits(x: Any, dtype: Any, saturate: bool) -> Any:
    """ONNX's Cast to a type of few bits; with `saturate`, values that are too large become the largest number."""
    if jnp.issubdtype(dtype, jnp.integer):
        return x.astype("int32").astype(dtype)  # keeps the lowest bits
    if jnp.finfo(dtype).bits == 4 or saturate:
        x = jnp.clip(x.astype("float32"), float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max))
    return lax.convert_element_type(x, dtype)


def _powers(x: Any, dtype: Any, mode: str, saturate: bool) -> Any:
    """ONNX's Cast to float8e8m0, which has only powers of two: the exponent of a float32, rounded; no sign."""
    bits = lax.bitcast_convert_type(x.astype("float32"), "uint32")
    exponent, rest = bits >> 23 & 0xFF, bits & 0x7FFFFF
    more = {"down": 1 << 23, "nearest": 1 << 22, "up": 1}[mode]
    power = exponent + (rest >= more)
    power = jnp.where(power < 255, power, 254 if saturate else 255)
    power = jnp.where(jnp.isnan(x) | (x < 0), 255, power)
    return lax.bitcast_convert_type(power.astype("uint8"), dtype)


def _check_cast(node: ir.Node) -> str | None:
    mode = attribute(node, "round_mode", "up")
    return None if mode in ("down", "nearest", "up") else f"round_mode={mode}; allowed: up, down, nearest"


@operator("Cast", _check_cast)
def _cast(emitter: Emitter, node: ir.Node) -> None:
    _typed(emitter, node)


@operator("CastLike", _check_cast)
def _cast_like(emitter: Emitter, node: ir.Node) -> None:
    _typed(emitter, node)


def _typed(emitter: Emitter, node: ir.Node) -> None:
    """Emit the first input cast to the dtype of the output."""
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    if emitter.is_stored(node.inputs[0]):
        weight, _ = emitter.weight(node.inputs[0])
        emitter.assign_weight(node.outputs[0], f"{emitter.bind(lax.convert_element_type)}({weight}, {dtype})")
    elif node.outputs[0].dtype == ir.DataType.FLOAT8E8M0:
        mode, saturate = attribute(node, "round_mode", "up"), bool(attribute(node, "saturate", 1))
        pointwise(emitter, node, _powers, dtype, f"{mode!r}, {saturate}", count=1)
    elif node.outputs[0].dtype in FEW_BITS:
        pointwise(emitter, node, few_bits, dtype, str(bool(attribute(node, "saturate", 1))), count=1)
    else:
        pointwise(emitter, node, lax.convert_element_type, dtype, count=1)


@operator("MatMul")
def _matmul(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, layers.product)
