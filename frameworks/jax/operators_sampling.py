"""Operators that read an image at fractional coordinates, and non-maximum suppression."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.kernels.host import host_array
from deep5.frameworks.jax.table import attribute, call, given, number, operator

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any


def _reflected(x: Array, extent: int, aligned: bool) -> Array:
    """Coordinates reflected at the centers of the first and last elements if `aligned`, else at their outer edges."""
    low, width = (0.0, extent - 1.0) if aligned else (-0.5, float(extent))
    if not width:
        return jnp.zeros_like(x)
    within = jnp.mod(x - low, 2 * width)
    return jnp.where(within > width, 2 * width - within, within) + low


def _cubic(distance: Array, a: float = -0.75) -> Array:
    """Keys' kernel; see `operators_resize`."""
    s = jnp.abs(distance)
    inner, outer = (a + 2) * s**3 - (a + 3) * s**2 + 1, a * s**3 - 5 * a * s**2 + 8 * a * s - 4 * a
    return jnp.where(s <= 1, inner, jnp.where(s < 2, outer, 0))


def _neighbours(x: Array, extent: int, mode: str, padding: str, aligned: bool) -> list[tuple[Array, Array]]:
    """Indices along an axis and the weight of each, for coordinates."""

    def kept(at: Array, share: Array) -> tuple[Array, Array]:
        inside = (at >= 0) & (at < extent)
        return jnp.clip(at, 0, extent - 1).astype("int32"), jnp.where(inside, share, 0)

    def moved(at: Array) -> Array:
        if padding == "border":
            return jnp.clip(at, 0, extent - 1)
        return jnp.clip(_reflected(at, extent, aligned), 0, extent - 1) if padding == "reflection" else at

    if mode == "cubic":
        first = jnp.floor(x)
        return [kept(moved(first + step), _cubic(x - first - step)) for step in (-1, 0, 1, 2)]
    x = moved(x)
    if mode == "nearest":
        return [kept(jnp.round(x), jnp.ones_like(x))]
    first = jnp.floor(x)
    return [kept(first, 1 - (x - first)), kept(first + 1, x - first)]


def _grid_sampled(x: Array, grid: Array, mode: str, padding: str, aligned: bool) -> Array:
    """ONNX's GridSample: shapes (N, C, space …) and (N, out …, axes) give (N, C, out …)."""
    kind = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.promote_types(grid.dtype, "float32")
    extents, along = x.shape[2:], []
    for axis, extent in enumerate(extents):
        place = grid[..., len(extents) - 1 - axis].astype(kind)
        place = (place + 1) / 2 * (extent - 1) if aligned else ((place + 1) * extent - 1) / 2
        along.append(_neighbours(place.reshape(x.shape[0], 1, -1), extent, mode, padding, aligned))
    images = x.reshape(*x.shape[:2], math.prod(extents))
    parts = []
    for corner in itertools.product(*along):
        share: Array = 1
        where: Array = 0
        for (at, own), extent in zip(corner, extents, strict=True):
            share, where = share * own, where * extent + at
        parts.append(jnp.take_along_axis(images, where, axis=2) * share)
    return functools.reduce(jnp.add, parts).astype(x.dtype).reshape(*x.shape[:2], *grid.shape[1:-1])


_MODES = {"bicubic": "cubic", "bilinear": "linear", "cubic": "cubic", "linear": "linear", "nearest": "nearest"}
_PADDINGS = ("border", "reflection", "zeros")


def _check_grid(node: ir.Node) -> str | None:
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    if mode not in _MODES:
        return f"mode={mode}; allowed: {', '.join(_MODES)}"
    return None if padding in _PADDINGS else f"padding_mode={padding}; allowed: {', '.join(_PADDINGS)}"


@operator("GridSample", _check_grid)
def _grid_sample(emitter: Emitter, node: ir.Node) -> None:
    mode, padding = _MODES[attribute(node, "mode", "linear")], attribute(node, "padding_mode", "zeros")
    aligned = bool(attribute(node, "align_corners", 0))
    call(emitter, node, _grid_sampled, f"{mode!r}, {padding!r}, {aligned}")


def _roi_aligned(
    x: Array,
    rois: Array,
    images: Array,
    goal: tuple[int, int],
    samples: int,
    scale: float,
    half: bool,
    highest: bool,
) -> Array:
    """ONNX's RoiAlign.

    References:
        He et al., Mask R-CNN, ICCV 2017, section 3.
    """
    bounds = rois.astype(x.dtype) * scale - (0.5 if half else 0.0)
    images = jnp.asarray(images)
    along = []
    for axis, count in enumerate(goal):
        first, last = bounds[:, 1 - axis], bounds[:, 3 - axis]
        width = last - first if half else jnp.maximum(last - first, 1)
        each = width / count
        if samples > 0:
            taken, most = jnp.full(rois.shape[0], samples), samples
        else:
            corners_of = host_array(rois) * scale
            wide = corners_of[:, 3 - axis] - corners_of[:, 1 - axis]
            taken = np.maximum(np.ceil((wide if half else np.maximum(wide, 1)) / count), 0).astype(np.int32)
            most = int(taken.max(initial=0))
        inner = (jnp.arange(most) + 0.5) / jnp.maximum(taken, 1)[:, None]
        place = first[:, None, None] + each[:, None, None] * (jnp.arange(count)[:, None] + inner[:, None])
        along.append((place.astype(x.dtype), jnp.arange(most) < taken[:, None], taken))
    (rows, row_there, row_count), (columns, column_there, column_count) = along
    corners = []
    for place, extent in ((rows, x.shape[2]), (columns, x.shape[3])):
        inside = (place >= -1) & (place <= extent)
        at = jnp.clip(place, 0, extent - 1)
        low = jnp.minimum(jnp.floor(at), max(extent - 2, 0))
        pairs = [(low, low + 1 - at), (jnp.minimum(low + 1, extent - 1), at - low)]
        corners.append([(where.astype("int32"), jnp.where(inside, share, 0)) for where, share in pairs])
    there = row_there[:, None, None, :, None] & column_there[:, None, None, None, :]
    parts = []
    for (row, row_share), (column, column_share) in itertools.product(*corners):
        # Shape (regions, rows, columns, samples, samples), followed by the channels.
        found = jnp.moveaxis(x, 1, -1)[
            images[:, None, None, None, None], row[:, :, None, :, None], column[:, None, :, None, :]
        ]
        parts.append(found * (row_share[:, :, None, :, None] * column_share[:, None, :, None, :])[..., None])
    if highest:
        most_of = jnp.where(there[..., None], functools.reduce(jnp.maximum, parts), -math.inf)
        y = jnp.max(most_of, axis=(3, 4), initial=-math.inf)
        y = jnp.where(jnp.isneginf(y), 0, y)
    else:
        count = jnp.maximum(row_count * column_count, 1)[:, None, None, None].astype(x.dtype)
        y = jnp.sum(jnp.where(there[..., None], functools.reduce(jnp.add, parts), 0), axis=(3, 4)) / count
    return jnp.moveaxis(y, -1, 1)


def _roi_settings(node: ir.Node) -> tuple[ir.Value | None, ...]:
    return () if attribute(node, "sampling_ratio", 0) > 0 else (node.inputs[1],)


@operator("RoiAlign", host=_roi_settings)
def _roi_align(emitter: Emitter, node: ir.Node) -> None:
    goal = attribute(node, "output_height", 1), attribute(node, "output_width", 1)
    half = attribute(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel"
    how = f"{attribute(node, 'sampling_ratio', 0)}, {number(node, 'spatial_scale', 1.0)}, {half}"
    call(emitter, node, _roi_aligned, f"{goal}, {how}, {attribute(node, 'mode', 'avg') == 'max'}")


def _boxes_left(
    boxes: Array,
    scores: Array,
    most: tuple[int, ...] | None,
    overlap: Array | None,
    least: Array | None,
    centred: bool,
) -> Array:
    """ONNX's NonMaxSuppression: batch, class and box of each remaining box, the best of a class first."""
    boxes, scores = (lax.stop_gradient(jnp.asarray(value)) for value in (boxes, scores))
    if centred:
        low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    else:
        low, high = jnp.minimum(boxes[..., :2], boxes[..., 2:]), jnp.maximum(boxes[..., :2], boxes[..., 2:])
    common = jnp.minimum(high[:, :, None], high[:, None]) - jnp.maximum(low[:, :, None], low[:, None])
    shared, area = jnp.prod(jnp.maximum(common, 0), -1), jnp.prod(high - low, -1)
    union = area[:, :, None] + area[:, None] - shared
    similar = jnp.where(union > 0, shared / jnp.where(union > 0, union, 1), 0)
    close = similar > (0 if overlap is None else jnp.reshape(overlap, ()))
    good = jnp.ones(scores.shape, bool) if least is None else scores > jnp.reshape(least, ())
    order = jnp.argsort(-scores, axis=-1, stable=True)
    chosen = jax.vmap(jax.vmap(_left, (None, 0, 0)))(close, good, order)
    if most is None:
        return jnp.zeros((0, 3), "int64")
    chosen = chosen & (jnp.cumsum(chosen, axis=-1) <= most[0])
    batch, kind, rank = jnp.nonzero(chosen)
    return jnp.stack([batch, kind, order[batch, kind, rank]], axis=-1).astype("int64")


def _left(close: Array, good: Array, order: Array) -> Array:
    """Which boxes remain, in their order: good ones that are not close to a preceding remaining box."""
    close, good = close[order][:, order], good[order]

    def look(at: Array, left: Array) -> Array:
        return left.at[at].set(good[at] & ~jnp.any(left & close[at]))

    return lax.fori_loop(0, order.shape[0], look, jnp.zeros(order.shape, bool))


@operator("NonMaxSuppression", host=(0, 1, 2, 3, 4))
def _non_max_suppression(emitter: Emitter, node: ir.Node) -> None:
    boxes, scores, _, overlap, least = (emitter.plain(given(node, position)) for position in range(5))
    how = f"{emitter.setting(given(node, 2))}, {overlap}, {least}, {bool(attribute(node, 'center_point_box', 0))}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_boxes_left)}({boxes}, {scores}, {how})")
