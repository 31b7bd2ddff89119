"""Eight-bit operators: quantization, and integer products computed by torch's int32 kernels."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from deep5.frameworks.pytorch.operators_elementwise import converted
from deep5.frameworks.pytorch.table import attribute, kernel

__all__ = ["dequantized", "quantized"]


def _along(parameter: Any, x: Any, axis: int, block: int) -> Any:
    """A scale or zero point in broadcastable shape: a scalar, one per slice of an axis, or one per block of it."""
    if parameter is None or (parameter.numel() == 1 and parameter.ndim <= 1 and not block):
        return None if parameter is None else parameter.reshape(())
    if block:
        return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.reshape(shape)


def _limits(kind: Any) -> tuple[int, int]:
    return torch.iinfo(kind).min, torch.iinfo(kind).max


def quantized(x: Any, scale: Any, zero: Any, kind: Any, saturate: int = 1) -> Any:
    """x / scale, rounded to even, plus the zero point, clipped to the range of the element type."""
    scaled = x / scale
    if kind.is_floating_point:
        return converted(scaled if zero is None else scaled + zero.to(scaled.dtype), kind, saturate)
    rounded = scaled.round().to(torch.float64)
    low, high = _limits(kind)
    moved = rounded if zero is None else rounded + zero.to(torch.float64)
    return moved.clamp(low, high).to(kind)


def dequantized(x: Any, scale: Any, zero: Any, kind: Any) -> Any:
    """(x - zero point) scale."""
    wide = x.to(torch.float32) if x.dtype.is_floating_point else x.to(torch.int32)
    moved = wide if zero is None else wide - zero.to(wide.dtype)
    return (moved.to(scale.dtype) * scale).to(kind)


def _check_precision(node: ir.Node) -> str | None:
    chosen = attribute(node, "precision", 0)
    return f"precision={chosen}" if chosen else None


@kernel("QuantizeLinear", _check_precision)
def _quantize(
    x: Any,
    scale: Any,
    zero: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    saturate: int = 1,
    kind: Any,
) -> Any:
    x = x if x.dtype.is_floating_point else x.float()
    axis = axis % x.ndim if x.ndim else 0
    scales, zeros = (_along(value, x, axis, block_size) for value in (scale, zero))
    return quantized(x, scales.to(x.dtype), zeros, kind, saturate)


@kernel("DequantizeLinear")
def _dequantize(x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, kind: Any) -> Any:
    axis = axis % x.ndim if x.ndim else 0
    scales, zeros = (_along(value, x, axis, block_size) for value in (scale, zero))
    return dequantized(x, scales, zeros, kind)


def _moved(x: Any, zero: Any, shape: tuple[int, ...] | None = None) -> Any:
    """x minus its zero point, in int32."""
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    zero = zero.to(torch.int32)
    if shape is not None and zero.numel() > 1:
        zero = zero.reshape(shape)
    return wide - (zero.reshape(()) if zero.numel() == 1 else zero)


def _rows(zero: Any, x: Any) -> Any:
    """Zero points per row, as a column."""
    return zero[:, None] if zero is not None and zero.ndim == 1 and zero.numel() > 1 and x.ndim > 1 else zero


@kernel("MatMulInteger")
def _matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return torch.matmul(_moved(a, _rows(a_zero, a)), _moved(b, b_zero))


def _convolved(x: Any, weight: Any, bias: Any, **how: Any) -> Any:
    """A convolution of integers in float64, which represents sums of eight-bit products exactly."""
    from deep5.frameworks.pytorch.operators_windows import convolution

    result = convolution(x.double(), weight.double(), None if bias is None else bias.double(), **how)
    return result.round().to(torch.int32)


def _check_axes(node: ir.Node) -> str | None:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    return None if shape is not None and len(shape) in (3, 4, 5) else "a number of spatial axes other than 1 to 3"


@kernel("ConvInteger", _check_axes)
def _conv_integer(
    x: Any,
    weight: Any,
    x_zero: Any = None,
    w_zero: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Any:
    moved = _moved(weight, w_zero, (-1, *[1] * (weight.ndim - 1)))
    how = {"auto_pad": auto_pad, "dilations": dilations, "group": group, "pads": pads, "strides": strides}
    return _convolved(_moved(x, x_zero), moved, None, **how)


def _requantized(total: Any, scale: Any, y_scale: Any, y_zero: Any) -> Any:
    return quantized(total.float() * scale.float(), y_scale.float(), y_zero, y_zero.dtype)


@kernel("QLinearConv", _check_axes)
def _quantized_conv(
    x: Any,
    x_scale: Any,
    x_zero: Any,
    weight: Any,
    w_scale: Any,
    w_zero: Any,
    y_scale: Any,
    y_zero: Any,
    bias: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Any:
    moved = _moved(weight, w_zero, (-1, *[1] * (weight.ndim - 1)))
    how = {"auto_pad": auto_pad, "dilations": dilations, "group": group, "pads": pads, "strides": strides}
    total = _convolved(_moved(x, x_zero), moved, bias, **how)
    scale = x_scale * (w_scale.reshape(-1, *[1] * (weight.ndim - 2)) if w_scale.numel() > 1 else w_scale.reshape(()))
    return _requantized(total, scale, y_scale, y_zero)


@kernel("QLinearMatMul")
def _quantized_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    total = torch.matmul(_moved(a, _rows(a_zero, a)), _moved(b, b_zero))
    return _requantized(total, _rows(a_scale, a) * b_scale, y_scale, y_zero)
