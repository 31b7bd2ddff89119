"""Window operators other than the table's convolution and pooling layers: in ONNX's axis order."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.core.errors import ShapeError
from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.table import attribute, call, given, operator, rank
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = ["max_pool_with_places"]

Array = Any


def _check_window(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    return None if axes in (1, 2, 3) else f"{axes} spatial axes; 1 to 3 are supported"


def _lp_pool(x: Array, window: Window, p: int) -> Array:
    """(sum |x|^p)^(1/p), channels last; the gradient of all-zero windows is zero."""
    powers, counts = layers.around(jnp.square(x) if p == 2 else jnp.abs(x) ** p, window, 0)
    for axis in reversed(range(1, x.ndim - 1)):
        powers = functools.reduce(lax.add, layers.places(powers, window, axis, counts[axis - 1]))
    some = powers > 0
    return jnp.where(some, jnp.power(jnp.where(some, powers, 1), 1 / p), 0)


@operator("LpPool", _check_window)
def _lp_pool_of(emitter: Emitter, node: ir.Node) -> None:
    x, window = emitter.last(node.inputs[0], rank(node)), emitter.bind(Window.of(node, rank(node) - 2))
    emitter.assign(node.outputs[0], f"{emitter.bind(_lp_pool)}({x}, {window}, {attribute(node, 'p', 2)})", last=True)


def max_pool_with_places(x: Array, window: Window, by_columns: bool) -> tuple[Array, Array]:
    """ONNX's MaxPool of a channels-last image, and the index of each maximum in the input, in ONNX's axis order."""
    batch, *extents, channels = x.shape
    whole = math.prod(extents)
    strides = [math.prod(extents[:axis] if by_columns else extents[axis + 1 :]) for axis in range(len(extents))]
    where = functools.reduce(
        np.add, (grid * stride for grid, stride in zip(np.indices(extents, sparse=True), strides, strict=True))
    )
    first = (np.arange(batch)[:, None] * channels + np.arange(channels)) * whole
    where = first.reshape(batch, *(1,) * len(extents), channels) + where[None, ..., None]
    low = -math.inf if jnp.issubdtype(x.dtype, jnp.inexact) else int(jnp.iinfo(x.dtype).min)
    (y, counts), (at, _) = layers.around(x, window, low), layers.around(jnp.asarray(where), window, -1)
    for axis in reversed(range(1, x.ndim - 1)):
        pairs = zip(*(layers.places(part, window, axis, counts[axis - 1]) for part in (y, at)), strict=True)
        y, at = functools.reduce(_larger_pair, pairs)
    return y, at


def _larger_pair(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    # Padding has no index: a real element wins even if it is equally small.
    first = ((one[0] >= other[0]) & (one[1] >= 0)) | (other[1] < 0) | jnp.isnan(one[0])
    return jnp.where(first, one[0], other[0]), jnp.where(first, one[1], other[1])


def _transposed(
    x: Array, weight: Array, bias: Array | None, window: Window, groups: int, extra: tuple[int, ...], requested: Any
) -> Array:
    """ONNX's ConvTranspose: the gradient of a convolution with respect to its input, as a convolution of a dilated
    image.

    Args:
        x: Shape (N, C, space …).
        weight: Shape (C, M / groups, kernel …).
        bias: Shape (M,), or None.
        window: Strides, dilations and padding of the convolution.
        groups: Number of channel groups.
        extra: Elements at the end that the convolution did not reach.
        requested: Spatial size of the result; None: computed.
    """
    kernel, sides = weight.shape[2:], []
    for axis, span in enumerate(window.spans(kernel)):
        stride, extent = window.strides[axis], x.shape[2 + axis]
        begin, end, whole = window.begins[axis], window.ends[axis], (extent - 1) * stride + span + extra[axis]
        goal = (
            requested[axis]
            if requested is not None
            else extent * stride
            if window.auto_pad.startswith("SAME")
            else None
        )
        if goal is not None:
            total = whole - goal
            # A result that is too small gets zeros at its end.
            begin = max(total // 2 if window.auto_pad == "SAME_UPPER" else total - total // 2, 0)
            end = total - begin
        sides.append((span - 1 - begin, span - 1 - end + extra[axis]))
    channels, made = weight.shape[:2]
    turned = weight.reshape(groups, channels // groups, made, *kernel).swapaxes(1, 2)
    turned = jnp.flip(turned.reshape(groups * made, channels // groups, *kernel), range(2, 2 + len(kernel)))
    y = lax.conv_general_dilated(
        x,
        turned,
        (1,) * len(kernel),
        sides,
        lhs_dilation=window.strides,
        rhs_dilation=window.dilations,
        feature_group_count=groups,
    )
    return y if bias is None else layers.with_bias(y, bias.reshape(-1, *(1,) * len(kernel)))


@operator("ConvTranspose", _check_window)
def _conv_transpose(emitter: Emitter, node: ir.Node) -> None:
    axes = rank(node) - 2
    x, weight, bias = (emitter.plain(given(node, position)) for position in range(3))
    extra, requested = tuple(attribute(node, "output_padding", (0,) * axes)), attribute(node, "output_shape", None)
    how = f"{attribute(node, 'group', 1)}, {extra}, {None if requested is None else tuple(requested)[-axes:]}"
    window = emitter.bind(Window.of(node, axes))
    emitter.assign(node.outputs[0], f"{emitter.bind(_transposed)}({x}, {weight}, {bias}, {window}, {how})")


def _image(x: Array, extents: tuple[int, ...], block: tuple[int, ...], steps: Sequence[Sequence[int]]) -> Array:
    """ONNX's Col2Im: adds blocks at the positions from which a window took them; overlaps are summed."""
    dilations, pads, strides = steps
    axes = len(extents)
    sides = list(zip(pads[:axes], pads[axes:], strict=True))
    wide = [extent + begin + end for extent, (begin, end) in zip(extents, sides, strict=True)]
    counts = [
        (extent - dilation * (kernel - 1) - 1) // stride + 1
        for extent, dilation, kernel, stride in zip(wide, dilations, block, strides, strict=True)
    ]
    if math.prod(counts) != x.shape[2] or x.shape[1] % math.prod(block):
        raise ShapeError(f"columns of shape {x.shape}; allowed: (N, C times {math.prod(block)}, {math.prod(counts)})")
    columns = x.reshape(x.shape[0], -1, math.prod(block), *counts)
    y = jnp.zeros((*columns.shape[:2], *wide), x.dtype)
    for number, place in enumerate(itertools.product(*map(range, block))):
        parts = [
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, count, stride in zip(place, dilations, counts, strides, strict=True)
        ]
        y = y.at[(slice(None), slice(None), *parts)].add(columns[:, :, number])
    inner = (slice(begin, begin + extent) for (begin, _), extent in zip(sides, extents, strict=True))
    return y[(slice(None), slice(None), *inner)]


def _image_by(x: Array, extents: tuple[int, ...], block: tuple[int, ...], *steps: Any) -> Array:
    defaults = ((1,) * len(extents), (0,) * (2 * len(extents)), (1,) * len(extents))
    return _image(x, extents, block, [own or other for own, other in zip(steps, defaults, strict=True)])


@operator("Col2Im", host=(1, 2))
def _col2im(emitter: Emitter, node: ir.Node) -> None:
    how = (repr(tuple(attribute(node, name, ()))) for name in ("dilations", "pads", "strides"))
    call(emitter, node, _image_by, *how, settings=(1, 2))
