"""Quantization, and products of quantized numbers: sums of integers, scaled and rounded once."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.nodes import rank
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["OPERATORS"]

_PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""ONNX's numbers of element types."""


def _is_single(value: Array) -> bool:
    return value.ndim == 0 or (value.ndim == 1 and isinstance(value.shape[0], int) and value.shape[0] == 1)


def _along(xp: Primitives, value: Array | None, x: Array, axis: int, block: int) -> Array | None:
    """A scale or zero point, broadcast to x: one for all, one per slice of an axis, or one per block along it."""
    if value is None:
        return None
    if _is_single(value) and not block:
        return xp.reshape(value, ())
    axis = axis % x.ndim
    if block:
        every: Any = slice(None)
        return xp.repeat(value, block, axis=axis)[(every,) * axis + (slice(0, x.shape[axis]),)]
    return xp.reshape(value, tuple(-1 if at == axis else 1 for at in range(x.ndim)))


def _rounded(xp: Primitives, x: Array, zero: Array | None, kind: Any, saturate: int = 1) -> Array:
    """x plus the zero point; for integers rounded half to even before, and limited to the element type."""
    if xp.is_floating(kind):
        return xp.narrowed(x if zero is None else x + xp.astype(zero, x.dtype), kind, bool(saturate))
    y = xp.wide(xp.round(x))
    low, high = xp.limits(kind)
    y = y if zero is None else y + xp.astype(zero, y.dtype)
    return xp.narrowed(xp.clamp(y, float(low), float(high)), kind, True)


def _quantize_linear(
    xp: Primitives,
    x: Array,
    scale: Array,
    zero: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    precision: int = 0,
    saturate: int = 1,
    kind: Any,
) -> Array:
    by, zero = _along(xp, scale, x, axis, block_size), _along(xp, zero, x, axis, block_size)
    chosen = getattr(xp, _PRECISIONS[precision]) if precision else scale.dtype
    return _rounded(xp, xp.astype(x, chosen) / xp.astype(by, chosen), zero, kind, saturate)


def _dequantize_linear(
    xp: Primitives,
    x: Array,
    scale: Array,
    zero: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    kind: Any,
) -> Array:
    by, zero = _along(xp, scale, x, axis, block_size), _along(xp, zero, x, axis, block_size)
    # float32 represents differences of 16-bit integers.
    short = xp.is_floating(x.dtype) or xp.limits(x.dtype)[1] < 1 << 16
    moved = xp.wide(_centered(xp, x, zero, xp.float32 if short else xp.int32))
    return xp.astype(moved * xp.astype(by, moved.dtype), kind)


def _centered(xp: Primitives, x: Array, zero: Array | None, kind: Any = None) -> Array:
    """x minus its zero point, in a type that represents it; in int32 by default."""
    kind = kind or xp.int32
    return xp.astype(x, kind) if zero is None else xp.astype(x, kind) - xp.astype(zero, kind)


def _rows(value: Array | None) -> Array | None:
    """Numbers per row of a matrix as a column."""
    return value[:, None] if value is not None and value.ndim == 1 and not _is_single(value) else value


def _matmul_integer(
    xp: Primitives, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return xp.matmul(_centered(xp, a, _rows(a_zero)), _centered(xp, b, b_zero))


def _requantized(xp: Primitives, total: Array, factor: Array, scale: Array, zero: Array) -> Array:
    product = xp.astype(total, xp.float32) * factor
    return _rounded(xp, product / xp.astype(scale, xp.float32), zero, zero.dtype)


def _qlinear_matmul(
    xp: Primitives,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    total = _matmul_integer(xp, a, b, a_zero, b_zero)
    factor = xp.astype(_rows(a_scale), xp.float32) * xp.astype(b_scale, xp.float32)
    return _requantized(xp, total, factor, y_scale, y_zero)


def _window(weight: Array, auto_pad: str, dilations: Any, pads: Any, strides: Any) -> Window:
    axes = weight.ndim - 2
    around = tuple(pads or (0,) * (2 * axes))
    return Window(
        kernel=tuple(weight.shape[2:]),
        strides=tuple(strides or (1,) * axes),
        dilations=tuple(dilations or (1,) * axes),
        begins=around[:axes],
        ends=around[axes:],
        auto_pad=auto_pad,
    )


def _conv_integer(
    xp: Primitives,
    x: Array,
    weight: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Array:
    """ONNX's ConvInteger, of an image (N, space …, C) and a weight (M, C / group, kernel …)."""
    if w_zero is not None and not _is_single(w_zero):
        w_zero = xp.reshape(w_zero, (-1, *(1,) * (weight.ndim - 1)))
    window = _window(weight, auto_pad, dilations, pads, strides)
    return xp.integer_convolution(_centered(xp, x, x_zero), _centered(xp, weight, w_zero), window, group)


def _qlinear_conv(
    xp: Primitives,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    weight: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Array:
    how: dict[str, Any] = {"auto_pad": auto_pad, "dilations": dilations, "group": group, "pads": pads}
    total = _conv_integer(xp, x, weight, x_zero, w_zero, strides=strides, **how)
    total = total if bias is None else total + bias
    return _requantized(xp, total, x_scale * w_scale, y_scale, y_zero)


def _check_axes(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    return None if axes in (1, 2, 3) else f"{axes} spatial axes; 1 to 3 are supported"


def _check_precision(node: ir.Node) -> str | None:
    chosen = attribute(node, "precision", 0)
    return None if chosen in (0, *_PRECISIONS) else f"precision={chosen}; allowed: {', '.join(map(str, _PRECISIONS))}"


OPERATORS = {
    "ConvInteger": Composite(function=_conv_integer, check=_check_axes, layout="channels last"),
    "DequantizeLinear": Composite(function=_dequantize_linear),
    "MatMulInteger": Composite(function=_matmul_integer),
    "QLinearConv": Composite(function=_qlinear_conv, check=_check_axes, layout="channels last"),
    "QLinearMatMul": Composite(function=_qlinear_matmul),
    "QuantizeLinear": Composite(function=_quantize_linear, check=_check_precision),
}
