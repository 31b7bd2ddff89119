"""Windows beyond torch's functions: padding known only at run time, dilations, indices, transposition."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.short import in_float32
from deep5.frameworks.pytorch.table import kernel

__all__ = ["average_pool", "convolution", "max_pool"]

_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def _around(before: list[int], behind: list[int]) -> list[int]:
    """Padding as `F.pad` requires it: pairs, beginning with the last axis."""
    return [extent for pair in reversed(list(zip(before, behind, strict=True))) for extent in pair]


def _padding(
    extents: Any, window: Any, strides: Any, dilations: Any, auto_pad: str, pads: Any
) -> tuple[list[int], list[int]]:
    """The padding before and after each axis."""
    axes = len(window)
    if auto_pad in ("NOTSET", ""):
        pads = list(pads or [0] * 2 * axes)
        return pads[:axes], pads[axes:]
    if auto_pad == "VALID":
        return [0] * axes, [0] * axes
    before, behind = [], []
    for extent, size, stride, dilation in zip(extents, window, strides, dilations, strict=True):
        total = max((-(-extent // stride) - 1) * stride + dilation * (size - 1) + 1 - extent, 0)
        before.append(total // 2 if auto_pad == "SAME_UPPER" else total - total // 2)
        behind.append(total - before[-1])
    return before, behind


def convolution(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    pads: Any = None,
    strides: Any = None,
) -> Any:
    """ONNX's Conv with 1 to 3 spatial axes."""
    axes = x.ndim - 2
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    before, behind = _padding(x.shape[2:], weight.shape[2:], strides, dilations, auto_pad, pads)
    even = before == behind and min(before) >= 0
    x = x if even else F.pad(x, _around(before, behind))
    how = (tuple(strides), tuple(before) if even else 0, tuple(dilations), group)
    function = _CONVOLUTIONS[x.ndim]
    short = x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16)
    if short:
        wide = [None if value is None else value.float() for value in (x, weight, bias)]
        return function(*wide, *how).to(x.dtype)
    return function(x, weight, bias, *how)


def _check_transposed(node: ir.Node) -> str | None:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    return None if shape is not None and len(shape) in _TRANSPOSED else "a number of spatial axes other than 1 to 3"


@kernel("ConvTranspose", _check_transposed)
def _conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Any = None,
    output_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Any:
    axes = x.ndim - 2
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    more, pads = list(output_padding or [0] * axes), list(pads or [0] * 2 * axes)
    before, behind = pads[:axes], pads[axes:]
    if output_shape is not None or auto_pad.startswith("SAME"):
        for at, (extent, stride, dilation) in enumerate(zip(x.shape[2:], strides, dilations, strict=True)):
            whole = stride * (extent - 1) + more[at] + (weight.shape[2 + at] - 1) * dilation + 1
            total = whole - (extent * stride if output_shape is None else output_shape[len(output_shape) - axes + at])
            # A result that is too small gets zeros at its end.
            before[at] = max(total // 2 if auto_pad == "SAME_UPPER" else total - total // 2, 0)
            behind[at] = total - before[at]
    elif auto_pad == "VALID":
        before, behind = [0] * axes, [0] * axes
    function = _TRANSPOSED[x.ndim]
    if x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16):
        function = in_float32(function)
    # torch's output padding is smaller than the stride, and it crops both sides equally.
    even = before == behind and min(before) >= 0 and all(map(int.__lt__, more, strides))
    if even:
        return function(x, weight, bias, tuple(strides), tuple(before), tuple(more), group, tuple(dilations))
    y = function(x, weight, None, tuple(strides), 0, 0, group, tuple(dilations))
    y = F.pad(y, _around([-cut for cut in before], [extra - cut for extra, cut in zip(more, behind, strict=True)]))
    return y if bias is None else y + bias.reshape(-1, *[1] * axes)


def _windows(x: Any, window: Any, strides: Any, dilations: Any) -> Any:
    """The windows of a padded tensor as a view; the last axes are those within a window."""
    for at, (size, stride, dilation) in enumerate(zip(window, strides, dilations, strict=True)):
        x = x.unfold(2 + at, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return x


def _frame(
    x: Any, window: Any, strides: Any, dilations: Any, auto_pad: str, pads: Any, ceil_mode: int
) -> tuple[list[int], list[int], list[int]]:
    """Padding before and after, and how far the last window of each axis extends beyond it (`ceil_mode`)."""
    before, behind = _padding(x.shape[2:], window, strides, dilations, auto_pad, pads)
    beyond = []
    for at, (size, stride, dilation) in enumerate(zip(window, strides, dilations, strict=True)):
        room = x.shape[2 + at] + before[at] + behind[at] - dilation * (size - 1) - 1
        steps = -(-room // stride) if ceil_mode else room // stride
        if ceil_mode and steps * stride >= x.shape[2 + at] + before[at]:
            steps -= 1  # a window starts inside, or in the padding before
        beyond.append(max(steps * stride - room, 0))
    return before, behind, beyond


def _sum(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


def average_pool(
    x: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Any = None,
    kernel_shape: Any,
    pads: Any = None,
    strides: Any = None,
) -> Any:
    """ONNX's AveragePool for any number of axes, padding and dilations."""
    axes = len(kernel_shape)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    before, behind, beyond = _frame(x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    counted = x.new_ones((1, 1, *x.shape[2:]))
    counted = F.pad(counted, _around(before, behind), "constant", float(bool(count_include_pad)))
    counted = F.pad(counted, _around([0] * axes, beyond))
    inner = tuple(range(-axes, 0))
    padded = F.pad(x, _around(before, _sum(behind, beyond)))
    total = _windows(padded, kernel_shape, strides, dilations).sum(inner)
    return total / _windows(counted, kernel_shape, strides, dilations).sum(inner)


_MAX_POOLS = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}


def max_pool(
    x: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    kernel_shape: Any,
    pads: Any = None,
    storage_order: int = 0,
    strides: Any = None,
    outputs: int,
) -> tuple[Any, ...]:
    """ONNX's MaxPool with 1 to 3 axes, and the index of each maximum in the whole tensor."""
    axes = len(kernel_shape)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    before, behind, beyond = _frame(x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    floating = x.dtype.is_floating_point
    # torch has kernels for floating-point types; float32 represents all eight-bit values.
    wide = x if floating else x.float()
    padded = F.pad(wide, _around(before, _sum(behind, beyond)), "constant", float("-inf"))
    pool = _MAX_POOLS[x.ndim]
    y, places = pool(padded, kernel_shape, tuple(strides), 0, tuple(dilations), return_indices=True)
    y = y if floating else y.to(x.dtype)
    if outputs == 1:
        return (y,)
    # From indices in a padded plane to indices in the tensor.
    flat, step = torch.zeros_like(places), 1
    order = range(axes) if storage_order else range(axes)[::-1]
    along: list[Any] = [None] * axes
    for at in reversed(range(axes)):
        along[at] = places % padded.shape[2 + at] - before[at]
        places = places // padded.shape[2 + at]
    for at in order:
        flat = flat + along[at] * step
        step *= x.shape[2 + at]
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * axes)
    return y, planes * step + flat


@kernel("LpPool")
def _lp_pool(
    x: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    kernel_shape: Any,
    p: int = 2,
    pads: Any = None,
    strides: Any = None,
) -> Any:
    axes = len(kernel_shape)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    before, behind, beyond = _frame(x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    padded = F.pad(x, _around(before, _sum(behind, beyond)))
    windows = _windows(padded, kernel_shape, strides, dilations)
    return torch.linalg.vector_norm(windows, p, tuple(range(-axes, 0)))


@kernel("GlobalLpPool")
def _global_lp_pool(x: Any, *, p: int = 2) -> Any:
    return torch.linalg.vector_norm(x, p, tuple(range(2, x.ndim)), True)


@kernel("Col2Im", settings=(1, 2))
def _col2im(
    x: Any, image: list[int], block: list[int], *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> Any:
    axes = len(image)
    dilations, strides, pads = dilations or [1] * axes, strides or [1] * axes, list(pads or [0] * 2 * axes)
    if axes == 2 and pads[:axes] == pads[axes:]:
        return F.fold(x, tuple(image), tuple(block), tuple(dilations), tuple(pads[:axes]), tuple(strides))
    extents = [extent + pads[at] + pads[axes + at] for at, extent in enumerate(image)]
    inside, where = (
        torch.zeros((), dtype=torch.int64, device=x.device),
        torch.zeros((), dtype=torch.int64, device=x.device),
    )
    for at, extent in enumerate(extents):
        steps = (extent - dilations[at] * (block[at] - 1) - 1) // strides[at] + 1
        inside = (inside[..., None] * extent) + torch.arange(block[at], device=x.device) * dilations[at]
        where = (where[..., None] * extent) + torch.arange(steps, device=x.device) * strides[at]
    places = (inside.reshape(-1, 1) + where.reshape(-1)).reshape(-1)
    columns = x.reshape(x.shape[0], -1, places.numel())
    y = columns.new_zeros((*columns.shape[:2], math.prod(extents))).index_add(2, places, columns)
    y = y.reshape(*columns.shape[:2], *extents)
    return F.pad(y, [-cut for cut in _around(pads[:axes], pads[axes:])])
