"""Quantized numbers and their products: integer sums, scaled and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.operators_windows import convolution, convolution_window
from deep5.frameworks.tensorflow.order import channels_last, kernel_order
from deep5.frameworks.tensorflow.table import attribute, axis, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _along(setting: Any, x: Any, place: int, block: int) -> Any:
    """A scale or a zero point, broadcast to x: one for all, one per slice, or one per block."""
    if setting.shape.rank == 0 or setting.shape == (1,):
        return tf.reshape(setting, [])
    if block:
        repeated = tf.repeat(setting, block, axis=place)
        return repeated[(slice(None),) * place + (slice(0, tf.shape(x)[place]),)]
    return tf.reshape(setting, [-1 if at == place else 1 for at in range(x.shape.rank)])


def _rounded(x: Any, zero: Any, dtype: Any) -> Any:
    """Rounds to the nearest integer, half to even, adds the zero point, and saturates to the dtype."""
    x = tf.round(tf.cast(x, tf.float32))
    x = x if zero is None else x + tf.cast(zero, tf.float32)
    return tf.cast(tf.clip_by_value(x, float(dtype.min), float(dtype.max)), dtype)


def _quantised(x: Any, scale: Any, zero: Any, place: int, block: int, dtype: Any) -> Any:
    zero = None if zero is None else _along(zero, x, place, block)
    scale = _along(scale, x, place, block)
    kind = tf.float32 if x.dtype.is_integer else x.dtype
    return _rounded(tf.cast(x, kind) / tf.cast(scale, kind), zero, dtype)


@operator("QuantizeLinear")
def _quantize_linear(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, None)[:3])
    how = f"{axis(node, 1)}, {attribute(node, 'block_size', 0)}, {emitter.dtype(node.outputs[0])}"
    emitter.assign(node, f"{emitter.function(_quantised)}({inputs}, {how})")


def _unquantised(x: Any, scale: Any, zero: Any, place: int, block: int, dtype: Any) -> Any:
    wide = tf.float64 if x.dtype == tf.int32 else tf.float32  # exact for differences of integers
    y = tf.cast(x, wide)
    y = y if zero is None else y - tf.cast(_along(zero, x, place, block), wide)
    factor = tf.cast(_along(scale, x, place, block), wide)
    return tf.cast(y * factor, dtype)


@operator("DequantizeLinear")
def _dequantize_linear(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, None)[:3])
    how = f"{axis(node, 1)}, {attribute(node, 'block_size', 0)}, {emitter.dtype(node.outputs[0])}"
    emitter.assign(node, f"{emitter.function(_unquantised)}({inputs}, {how})")


def _centred(x: Any, zero: Any, rows: bool) -> Any:
    """Integers minus their zero point, as int32; for a matrix, one zero point per row or per column."""
    x = tf.cast(x, tf.int32)
    if zero is None:
        return x
    zero = tf.cast(zero, tf.int32)
    return x - (zero[..., tf.newaxis] if rows and zero.shape.rank == 1 and zero.shape[0] != 1 else zero)


def _integer_product(a: Any, b: Any, zero_a: Any, zero_b: Any) -> Any:
    a, b = _centred(a, zero_a, True), _centred(b, zero_b, False)
    if a.shape.rank == 1 or b.shape.rank == 1:
        left, right = (a[tf.newaxis] if a.shape.rank == 1 else a), (b[:, tf.newaxis] if b.shape.rank == 1 else b)
        gone = [place for place, value in ((-2, a), (-1, b)) if value.shape.rank == 1]
        return tf.squeeze(tf.matmul(left, right), gone)
    return tf.matmul(a, b)


@operator("MatMulInteger")
def _mat_mul_integer(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, None, None)[:4])
    emitter.assign(node, f"{emitter.function(_integer_product)}({inputs})")


def _quantised_product(
    a: Any, scale_a: Any, zero_a: Any, b: Any, scale_b: Any, zero_b: Any, scale: Any, zero: Any
) -> Any:
    sums = _integer_product(a, b, zero_a, zero_b)
    rows = scale_a[:, tf.newaxis] if scale_a.shape.rank == 1 and scale_a.shape[0] != 1 else scale_a
    factor = tf.cast(rows, tf.float32) * tf.cast(scale_b, tf.float32) / tf.cast(scale, tf.float32)
    return _rounded(tf.cast(sums, tf.float32) * factor, zero, zero.dtype)


@operator("QLinearMatMul")
def _q_linear_mat_mul(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.function(_quantised_product)}({', '.join(map(emitter.name, node.inputs))})")


def _integer_convolution(x: Any, weight: Any, zero_x: Any, zero_w: Any, *how: Any) -> Any:
    """Computed in float64, in which the integer sums are as exact as in int32; padded with the zero point."""
    x, weight = (
        tf.cast(value, tf.float64) if zero is None else tf.cast(value, tf.float64) - tf.cast(zero, tf.float64)
        for value, zero in ((x, zero_x), (weight, zero_w))
    )
    return tf.cast(convolution(x, weight, None, *how), tf.int32)


def _emit_convolution(emitter: Emitter, node: ir.Node, weight: int, zeros: Sequence[int]) -> str:
    window, group = convolution_window(node, weight), attribute(node, "group", 1)
    axes = rank(node)
    inputs = [
        emitter.ordered(node.inputs[0], channels_last(axes)),
        emitter.ordered(node.inputs[weight], kernel_order(axes)),
        *(emitter.name(node.inputs[at] if at < len(node.inputs) else None) for at in zeros),
    ]
    return f"{', '.join(inputs)}, {emitter.bind(window)}, {group}, False, False"


@operator("ConvInteger")
def _conv_integer(emitter: Emitter, node: ir.Node) -> None:
    how = _emit_convolution(emitter, node, 1, (2, 3))
    emitter.assign(node, f"{emitter.function(_integer_convolution)}({how})", channels_last(rank(node)))


def _quantised_convolution(
    x: Any, weight: Any, zero_x: Any, zero_w: Any, scales: Sequence[Any], zero: Any, bias: Any, *how: Any
) -> Any:
    sums = _integer_convolution(x, weight, zero_x, zero_w, *how)
    sums = sums if bias is None else sums + bias
    own, other, scale = (tf.cast(value, tf.float32) for value in scales)
    return _rounded(tf.cast(sums, tf.float32) * (own * other / scale), zero, zero.dtype)


@operator("QLinearConv")
def _q_linear_conv(emitter: Emitter, node: ir.Node) -> None:
    x, weight, zero_x, zero_w, *how = _emit_convolution(emitter, node, 3, (2, 5)).split(", ")
    scales = ", ".join(emitter.name(node.inputs[at]) for at in (1, 4, 6))
    zero, bias = emitter.name(node.inputs[7]), emitter.name(node.inputs[8] if len(node.inputs) > 8 else None)
    inputs = f"{x}, {weight}, {zero_x}, {zero_w}, ({scales}), {zero}, {bias}, {', '.join(how)}"
    emitter.assign(node, f"{emitter.function(_quantised_convolution)}({inputs})", channels_last(rank(node)))
