"""The inverse of pooling, and convolutions at moved positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.sampling import corners
from deep5.networks.kernels.table import Composite
from deep5.networks.nodes import rank

__all__ = ["OPERATORS", "check_plane", "moved_places", "unpooled_space", "weighted"]


def unpooled_space(extents: Sequence[Any], kernel_shape: Any, pads: Any, strides: Any) -> list[Any]:
    """The spatial sizes of what a MaxPool reduced to these."""
    axes = len(kernel_shape)
    strides, pads = strides or (1,) * axes, pads or (0,) * (2 * axes)
    return [
        (extent - 1) * stride + size - pads[at] - pads[axes + at]
        for at, (extent, stride, size) in enumerate(zip(extents, strides, kernel_shape, strict=True))
    ]


def _max_unpool(
    xp: Primitives,
    x: Array,
    places: Array,
    shape: Any = None,
    *,
    kernel_shape: Any,
    pads: Any = None,
    strides: Any = None,
) -> Array:
    """ONNX's MaxUnpool: elements at the places that a MaxPool returned; with zeros at the end to a requested shape."""
    axes, space = len(kernel_shape), unpooled_space(x.shape[2:], kernel_shape, pads, strides)
    planes = x.shape[0] * x.shape[1]
    flat = xp.blank((planes * math.prod(space),), x)
    y = xp.placed(flat, (xp.reshape(places, (-1,)),), xp.reshape(x, (-1,)), "none")
    y = xp.reshape(y, (*x.shape[:2], *space))
    if shape is None:
        return y
    for at in range(2, 2 + axes):
        goal = shape[at] if isinstance(shape[at], int) else xp.asarray(shape[at], dtype=xp.int32)
        rest = (*y.shape[:at], goal - y.shape[at], *y.shape[at + 1 :])
        y = xp.concat([y, xp.blank(rest, x)], axis=at)
    return y


def _deform_conv(
    xp: Primitives,
    x: Array,
    weight: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    offset_group: int = 1,
    pads: Any = None,
    strides: Any = None,
) -> Array:
    """A convolution whose sampling positions are each moved by an offset and read by bilinear interpolation.

    References:
        Dai et al., Deformable convolutional networks, ICCV 2017, section 2.1; with a mask: Zhu et al., CVPR 2019.
    """
    (n, channels, *space), size, outputs = x.shape, math.prod(weight.shape[2:]), offset.shape[2:]
    steps = math.prod(outputs)
    along = moved_places(
        xp, x, weight, offset, dilations=dilations, offset_group=offset_group, pads=pads, strides=strides
    )
    flat = xp.reshape(x, (n * offset_group, channels // offset_group, math.prod(space)))
    rows = xp.reshape(xp.permute_dims(flat, (0, 2, 1)), (n * offset_group * math.prod(space), -1))
    images = xp.reshape(xp.table(_range, n * offset_group, like=x), (-1, 1, 1, 1))
    sampled = None
    for where, share in corners(along, space, images):
        found = xp.take(rows, xp.reshape(where, (-1,)), axis=0) * xp.reshape(share, (-1, 1))
        sampled = found if sampled is None else sampled + found
    sampled = xp.reshape(sampled, (n, offset_group, size, steps, channels // offset_group))
    if mask is not None:
        sampled = sampled * xp.reshape(mask, (n, offset_group, size, steps, 1))
    return weighted(xp, xp.permute_dims(sampled, (0, 1, 4, 2, 3)), weight, bias, outputs, group)


def moved_places(
    xp: Primitives,
    x: Array,
    weight: Array,
    offset: Array,
    *,
    dilations: Any = None,
    offset_group: int = 1,
    pads: Any = None,
    strides: Any = None,
) -> list[list[tuple[Array, Array]]]:
    """For each axis, the indices that a deformable convolution reads along it, and the share of each, of shape (images
    and groups of offsets, kernel elements, rows, columns)."""
    kernel, outputs = weight.shape[2:], offset.shape[2:]
    strides, dilations, pads = strides or (1, 1), dilations or (1, 1), pads or (0, 0, 0, 0)
    moves = xp.reshape(offset, (x.shape[0] * offset_group, math.prod(kernel), 2, *outputs))
    along = []
    for axis in range(2):
        how = (*kernel, *outputs, axis, dilations[axis], strides[axis], pads[axis])
        at = xp.astype(xp.table(_kernel_places, *how, like=x), x.dtype) + moves[:, :, axis]
        low = xp.held(xp.floor(at))
        neighbors = (low, 1 - (at - low)), (low + 1, at - low)
        along.append([_inside(xp, *each, x.shape[2 + axis]) for each in neighbors])
    return along


def weighted(
    xp: Primitives, sampled: Array, weight: Array, bias: Array | None, outputs: Sequence[Any], group: int
) -> Array:
    """The products of a convolution's weight with what it read, in the order of images, channels, kernel elements and
    positions."""
    taken = xp.reshape(sampled, (sampled.shape[0], group, math.prod(weight.shape[1:]), math.prod(outputs)))
    y = xp.matmul(xp.reshape(weight, (group, weight.shape[0] // group, math.prod(weight.shape[1:]))), taken)
    y = xp.reshape(y, (sampled.shape[0], weight.shape[0], *outputs))
    return y if bias is None else y + xp.reshape(bias, (-1, 1, 1))


def _inside(xp: Primitives, at: Array, share: Array, extent: Any) -> tuple[Array, Array]:
    """Indices along an axis and their shares; outside, 0 and nothing."""
    inside, none = (at >= 0) & (at < extent), xp.zeros_like(at)
    return xp.astype(xp.where(inside, at, none), xp.int64), xp.where(inside, share, none)


def _kernel_places(
    xp: Any, rows: int, columns: int, height: int, width: int, axis: int, dilation: int, stride: int, begin: int
) -> Any:
    """Where the kernel's elements lie along an axis: float64, shape (kernel elements, height, width)."""
    kernel, outputs = (rows, columns), (height, width)
    inner = xp.reshape(
        xp.arange(0, kernel[axis], dtype=xp.float64) * dilation - begin, (-1, 1) if axis == 0 else (1, -1)
    )
    inner = xp.reshape(xp.broadcast_to(inner, kernel), (-1, 1, 1))
    outer = xp.arange(0, outputs[axis], dtype=xp.float64) * stride
    return xp.broadcast_to(inner + xp.reshape(outer, (-1, 1) if axis == 0 else (1, -1)), (rows * columns, *outputs))


def _range(xp: Any, count: Any) -> Any:
    return xp.arange(0, count, dtype=xp.int64)


def check_plane(node: ir.Node) -> str | None:
    """Why a DeformConv cannot run, or None."""
    return None if rank(node) == 4 else f"{rank(node) - 2} spatial axes; allowed: 2"


OPERATORS = {
    "DeformConv": Composite(function=_deform_conv, check=check_plane),
    "MaxUnpool": Composite(function=_max_unpool, settings=(2,), traced=(2,)),
}
