"""Quantization, and products of quantized numbers: 8-bit numbers accumulate in int32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.operators_math import few_bits
from deep5.frameworks.jax.table import attribute, given, operator, rank
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any


def _along(value: Array | None, x: Array, axis: int, block: int) -> Array | None:
    """A scale or zero point, broadcast to x: one for all, one per element of an axis, or one per block along it."""
    if value is None or value.ndim == 0 or value.size == 1:
        return None if value is None else jnp.reshape(value, ())
    if value.ndim == 1 and not block:
        return jnp.reshape(value, [-1 if number == axis % x.ndim else 1 for number in range(x.ndim)])
    return lax.slice_in_dim(jnp.repeat(value, block, axis=axis), 0, x.shape[axis], axis=axis % x.ndim)


def _rounded(x: Array, zero: Array | None, dtype: Any) -> Array:
    """saturate(round(x) + zero), half to even."""
    kind = jnp.promote_types(x.dtype, "float32")
    y = jnp.round(x).astype(kind)
    y = y if zero is None else y + zero.astype(kind)
    info = jnp.iinfo(dtype)
    y = jnp.clip(y, int(info.min), int(info.max))
    return few_bits(y, dtype, True) if info.bits < 8 else y.astype(dtype)


def _quantised(
    x: Array, scale: Array, zero: Array | None, dtype: Any, axis: int, block: int, saturate: bool, precision: Any
) -> Array:
    kind = scale.dtype if precision is None else precision
    quotient = x.astype(kind) / _along(scale, x, axis, block).astype(kind)  # type: ignore[union-attr]  # there is one
    zero = _along(zero, x, axis, block)
    if jnp.issubdtype(dtype, jnp.integer):
        return _rounded(quotient, zero, dtype)
    return few_bits(quotient if zero is None else quotient + zero.astype(kind), dtype, saturate)


def _three(emitter: Emitter, node: ir.Node) -> str:
    return ", ".join(emitter.plain(given(node, position)) for position in range(3))


def _dtype(emitter: Emitter, node: ir.Node) -> str:
    return emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred


@operator("QuantizeLinear")
def _quantize_linear(emitter: Emitter, node: ir.Node) -> None:
    precision = attribute(node, "precision", 0)
    how = ", ".join(
        [
            _dtype(emitter, node),
            f"{attribute(node, 'axis', 1)}, {attribute(node, 'block_size', 0)}, {bool(attribute(node, 'saturate', 1))}",
            emitter.bind(ir.DataType(precision).numpy()) if precision else "None",
        ]
    )
    emitter.assign(node.outputs[0], f"{emitter.bind(_quantised)}({_three(emitter, node)}, {how})")


def _centred(x: Array, zero: Array | None) -> Array:
    """x - zero, in a dtype that can represent it."""
    wide = "int32" if jnp.issubdtype(x.dtype, jnp.integer) else "float32"
    return x.astype(wide) if zero is None else x.astype(wide) - zero.astype(wide)


def _dequantised(x: Array, scale: Array, zero: Array | None, dtype: Any, axis: int, block: int) -> Array:
    factor = _along(scale, x, axis, block).astype(dtype)  # type: ignore[union-attr]  # there is one
    return _centred(x, _along(zero, x, axis, block)).astype(dtype) * factor


@operator("DequantizeLinear")
def _dequantize_linear(emitter: Emitter, node: ir.Node) -> None:
    how = f"{_dtype(emitter, node)}, {attribute(node, 'axis', 1)}, {attribute(node, 'block_size', 0)}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_dequantised)}({_three(emitter, node)}, {how})")


def _of_rows(value: Array | None) -> Array | None:
    """Reshapes one element per row of a matrix for broadcasting."""
    return value[:, None] if value is not None and value.ndim == 1 and value.size > 1 else value


def _matmul_integer(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    return jnp.matmul(_centred(a, _of_rows(a_zero)), _centred(b, b_zero))


@operator("MatMulInteger")
def _matmul_integer_of(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(value) for value in node.inputs)
    emitter.assign(node.outputs[0], f"{emitter.bind(_matmul_integer)}({inputs})")


def _quantised_matmul(
    a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    product = _matmul_integer(a, b, a_zero, b_zero)
    factor = _of_rows(a_scale).astype("float32") * b_scale.astype("float32")  # type: ignore[union-attr]  # there is one
    return _rounded(product.astype("float32") * factor / y_scale.astype("float32"), y_zero, y_zero.dtype)


@operator("QLinearMatMul")
def _qlinear_matmul(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(value) for value in node.inputs)
    emitter.assign(node.outputs[0], f"{emitter.bind(_quantised_matmul)}({inputs})")


def _convolved(x: Array, weight: Array, window: Window, groups: int) -> Array:
    """A convolution of int32, in ONNX's axis order."""
    _, begins, ends = window.fit(x.shape[2:], weight.shape[2:])
    return lax.conv_general_dilated(
        x,
        weight,
        window.strides,
        tuple(zip(begins, ends, strict=True)),
        rhs_dilation=window.dilations,
        feature_group_count=groups,
    )


def _of_channels(value: Array | None, axis: int, axes: int) -> Array | None:
    """Reshapes one element per channel for broadcasting to this rank."""
    if value is None or value.size == 1:
        return None if value is None else jnp.reshape(value, ())
    return jnp.reshape(value, [-1 if number == axis else 1 for number in range(axes)])


def _conv_integer(
    x: Array, weight: Array, x_zero: Array | None, w_zero: Array | None, window: Window, groups: int
) -> Array:
    return _convolved(
        _centred(x, _of_channels(x_zero, 1, x.ndim)), _centred(weight, _of_channels(w_zero, 0, x.ndim)), window, groups
    )


def _check_window(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    return None if axes in (1, 2, 3) else f"{axes} spatial axes; 1 to 3 are supported"


@operator("ConvInteger", _check_window)
def _conv_integer_of(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(4))
    how = f"{emitter.bind(Window.of(node, rank(node) - 2))}, {attribute(node, 'group', 1)}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_conv_integer)}({inputs}, {how})")


def _quantised_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    weight: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None,
    window: Window,
    groups: int,
) -> Array:
    y = _conv_integer(x, weight, x_zero, w_zero, window, groups)
    y = y if bias is None else y + _of_channels(bias, 1, y.ndim)
    factor = jnp.reshape(x_scale, ()) * _of_channels(w_scale, 1, y.ndim) / jnp.reshape(y_scale, ())
    return _rounded(y.astype("float32") * factor, _of_channels(y_zero, 1, y.ndim), y_zero.dtype)


@operator("QLinearConv", _check_window)
def _qlinear_conv(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(9))
    how = f"{emitter.bind(Window.of(node, rank(node) - 2))}, {attribute(node, 'group', 1)}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_quantised_conv)}({inputs}, {how})")
