"""Quantized numbers: a scale times the distance from a zero point."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.casting import cast
from deep5.frameworks.reference.kernels.linear import along_rows, integer_convolution, integer_product
from deep5.frameworks.reference.kernels.memory import Array, Scratch
from deep5.frameworks.reference.kernels.order import axis_of
from deep5.frameworks.reference.window import Window

__all__ = ["dequantize", "dynamic_quantize", "quantize", "quantized_convolution", "quantized_product"]


def quantize(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    *,
    kind: ir.DataType,
    precision: Any,
    axis: int,
    block: int,
    saturate: bool,
) -> Array:
    """ONNX QuantizeLinear: x / scale, rounded half to even, plus the zero point, clipped to the range.

    Args:
        x: Numbers, any shape.
        scale: A number, one per index along the axis, or one per block along it.
        zero: The zero point, the shape of scale; None: 0.
        kind: The dtype of the result.
        precision: The dtype of the division; None: that of scale.
        axis: The axis of scales and blocks.
        block: The number of elements along the axis per scale; 0: no blocks.
        saturate: Whether values out of a float8's range become its largest number.
    """
    dtype = precision or scale.dtype
    ratio = x.astype(dtype) / _spread("QuantizeLinear", scale, x, axis, block).astype(dtype)
    offset = None if zero is None else _spread("QuantizeLinear", zero, x, axis, block)
    if not kind.is_integer():
        return cast(ratio if offset is None else ratio + offset.astype(dtype), kind=kind, saturate=saturate)
    return _held(np.rint(ratio), offset, kind.numpy())


def dequantize(x: Array, scale: Array, zero: Array | None = None, *, dtype: Any, axis: int, block: int) -> Array:
    """ONNX DequantizeLinear: (x - zero) scale.

    Args:
        x: Quantized values, any shape.
        scale: As in `quantize`.
        zero: The zero point, with the shape of scale and the dtype of x; None: 0.
        dtype: The dtype of the computation and the result; None: that of scale.
        axis: The axis of scales and blocks.
        block: As in `quantize`.
    """
    dtype = dtype or scale.dtype
    factor = _spread("DequantizeLinear", scale, x, axis, block).astype(dtype)
    if zero is None:
        return np.asarray(x.astype(dtype) * factor)
    offset = _spread("DequantizeLinear", zero, x, axis, block)
    wide = np.int64 if _is_whole(x.dtype) else dtype  # float32 is not exact for every int32
    return np.asarray((x.astype(wide) - offset.astype(wide)).astype(dtype) * factor)


def dynamic_quantize(x: Array) -> tuple[Array, Array, Array]:
    """ONNX DynamicQuantizeLinear: x as uint8, scaled by its range, including 0.

    Args:
        x: float32, any shape.

    Returns:
        The quantized values, the scale and the zero point. For all zeros or no elements, scale and zero point are 0.
    """
    low, high = x.min(initial=0.0), x.max(initial=0.0)
    scale = (high - low) / x.dtype.type(255)
    if scale == 0:
        return np.zeros(x.shape, np.uint8), np.asarray(scale, x.dtype), np.array(0, np.uint8)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale, x.dtype), np.asarray(zero, np.uint8)


def quantized_product(
    a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    """ONNX QLinearMatMul: the quantized product of two quantized matrices; shapes as in `integer_product`."""
    factor = along_rows(a_scale) * b_scale / along_rows(y_scale)
    product = integer_product(a, b, a_zero, b_zero).astype(np.result_type(factor.dtype, np.float32))
    return _held(np.rint(product * factor), along_rows(y_zero), y_zero.dtype)


def quantized_convolution(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
    *,
    window: Window,
    group: int,
    scratch: Scratch,
) -> Array:
    """ONNX QLinearConv: the quantized convolution of a quantized image with quantized weights.

    Args:
        x: (N, C, *space).
        x_scale: A number.
        x_zero: A number, also the value of padding.
        w: (M, C / group, *kernel).
        w_scale: A number, or one per output channel, (M,).
        w_zero: The same shape.
        y_scale: A number.
        y_zero: A number; its dtype is the result's.
        bias: (M,), int32, of the scale x_scale w_scale; or None.
        window: Strides, dilations and padding.
        group: Number of channel groups.
        scratch: The buffer for the columns.
    """
    total = integer_convolution(x, w, x_zero, w_zero, window=window, group=group, scratch=scratch)
    wide = (-1, *[1] * (x.ndim - 2))
    if bias is not None:
        total = total + bias.reshape(wide)
    factor = (x_scale.reshape(()) * w_scale / y_scale.reshape(())).reshape(wide)
    return _held(np.rint(total.astype(factor.dtype) * factor), y_zero.reshape(()), y_zero.dtype)


def _spread(operator: str, value: Array, x: Array, axis: int, block: int) -> Array:
    """Scales or zero points in a shape that broadcasts to that of x.

    Raises:
        ShapeError: They are neither one, nor one per index along the axis, nor one per block.
    """
    if value.size == 1 and value.ndim < 2 and not block:
        return value.reshape(())
    at = axis_of(operator, axis, x.ndim)
    expected = (x.shape[at],) if not block else (*x.shape[:at], -(-x.shape[at] // block), *x.shape[at + 1 :])
    if value.shape != expected:
        raise ShapeError(f"{operator}: got scales of shape {value.shape} for {x.shape}; allowed: {expected}, or one")
    if not block:
        return value.reshape(-1, *[1] * (x.ndim - 1 - at))
    return np.repeat(value, block, axis=at)[(slice(None),) * at + (slice(x.shape[at]),)]


def _held(whole: Array, offset: Array | None, dtype: Any) -> Array:
    """Integer-valued floats plus the zero point, clipped to the range of a narrow dtype."""
    range_ = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    if offset is not None:
        whole = whole + offset.astype(whole.dtype)
    wide = np.int32 if np.dtype(dtype).itemsize < 4 else np.int64
    return np.asarray(np.clip(whole, int(range_.min), int(range_.max))).astype(wide).astype(dtype)


def _is_whole(dtype: Any) -> bool:
    return np.dtype(dtype).kind in "iu" or np.dtype(dtype).name.lstrip("u").startswith("int")
