"""Images read at fractional coordinates: GridSample, RoiAlign; and non-maximum suppression of boxes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.operators_resize import cubic_weights
from deep5.frameworks.tensorflow.order import channels_last
from deep5.frameworks.tensorflow.table import attribute, extents, number, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _mirrored(place: Any, low: float, high: Any) -> Any:
    """Reflects coordinates outside the range, as often as needed."""
    span = tf.maximum(high - low, 1e-30)
    there = tf.math.floormod(place - low, 2 * span)
    return low + tf.minimum(there, 2 * span - there)


def _read(x: Any, places: list[Any], padding: str, align: bool) -> Any:
    """Elements (N, *out, C) of an image (N, *space, C) at integer coordinates along its axes, each (N, *out)."""
    inside = None
    found = []
    for axis, place in enumerate(places):
        extent = tf.cast(tf.shape(x)[axis + 1], place.dtype)
        if padding == "zeros":
            here = (place >= 0) & (place <= extent - 1)
            inside = here if inside is None else inside & here
        elif padding == "reflection":
            place = _mirrored(place, *((0.0, extent - 1) if align else (-0.5, extent - 0.5)))  # noqa: PLW2901
            place = tf.round(place) if align else tf.floor(place + 0.5)  # noqa: PLW2901
        found.append(tf.cast(tf.clip_by_value(place, 0, extent - 1), tf.int32))
    y = tf.gather_nd(x, tf.stack(found, -1), batch_dims=1)
    return y if inside is None else tf.where(inside[..., tf.newaxis], y, tf.zeros((), y.dtype))


def _sampled(x: Any, grid: Any, mode: str, padding: str, align: bool) -> Any:
    """The image (N, *space, C) sampled at a grid (N, *out, axes) of coordinates in -1 to 1, the last axis's first."""
    places = []
    for axis in range(grid.shape[-1]):
        extent = tf.cast(tf.shape(x)[axis + 1], grid.dtype)
        share = (grid[..., grid.shape[-1] - 1 - axis] + 1) / 2
        place = share * (extent - 1) if align else share * extent - 0.5
        if padding == "border" and mode != "cubic":
            place = tf.clip_by_value(place, 0, extent - 1)
        elif padding == "reflection" and mode != "cubic":
            place = _mirrored(place, *((0.0, extent - 1) if align else (-0.5, extent - 0.5)))
            place = tf.clip_by_value(place, 0, extent - 1)
        places.append(place)
    if mode == "nearest":
        return _read(x, [tf.round(place) for place in places], padding, align)
    first = [tf.stop_gradient(tf.floor(place)) for place in places]
    offsets = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
    weights = []
    for place, floor in zip(places, first, strict=True):
        distance = place - floor
        if mode == "linear":
            weights.append({0: 1 - distance, 1: distance})
        else:
            weights.append({offset: cubic_weights(distance - offset, -0.75) for offset in offsets})
    parts = []
    for chosen in itertools.product(offsets, repeat=len(places)):
        factor = 1.0
        for axis, offset in enumerate(chosen):
            factor = factor * weights[axis][offset]
        corner = _read(x, [floor + offset for floor, offset in zip(first, chosen, strict=True)], padding, align)
        parts.append(tf.cast(factor, x.dtype)[..., tf.newaxis] * corner)
    return tf.add_n(parts)


_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
_PADDINGS = ("zeros", "border", "reflection")


def _check_grid(node: ir.Node) -> str | None:
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    if mode not in _MODES or padding not in _PADDINGS:
        return f"mode {mode!r}, padding {padding!r}; allowed: {', '.join(_MODES)}; {', '.join(_PADDINGS)}"
    known = extents(node.inputs[1])[-1] == rank(node) - 2
    return None if known else "a grid whose number of coordinates is not known"


@operator("GridSample", _check_grid)
def _grid_sample(emitter: Emitter, node: ir.Node) -> None:
    order = channels_last(rank(node))
    x, grid = emitter.ordered(node.inputs[0], order), emitter.name(node.inputs[1])
    mode, padding = _MODES[attribute(node, "mode", "linear")], attribute(node, "padding_mode", "zeros")
    how = f"{mode!r}, {padding!r}, {bool(attribute(node, 'align_corners', 0))}"
    emitter.assign(node, f"{emitter.function(_sampled)}({x}, {grid}, {how})", order)


def _aligned(
    x: Any, rois: Any, images: Any, height: int, width: int, ratio: int, scale: float, half: bool, largest: bool
) -> Any:
    """Each region (rois, height, width, C) of images (N, H, W, C): the mean or the maximum of bilinear samples."""
    shift = tf.cast(0.5 if half else 0.0, rois.dtype)
    corners = rois * tf.cast(scale, rois.dtype) - shift
    (left, top, right, bottom), least = tf.unstack(corners, axis=1), 0.0 if half else 1.0
    spans = [tf.maximum(span, least) if not half else span for span in (bottom - top, right - left)]
    axes = []
    for begin, span, bins, extent in zip(
        (top, left), spans, (height, width), tf.unstack(tf.shape(x)[1:3]), strict=True
    ):
        count = tf.math.ceil(span / bins) if ratio <= 0 else tf.fill(tf.shape(span), tf.cast(ratio, span.dtype))
        most = tf.cast(
            tf.reduce_max(tf.concat([count, tf.zeros_like(count[:0]), tf.ones([1], count.dtype)], 0)), tf.int32
        )
        step = tf.cast(tf.range(most), span.dtype)
        share = (step + 0.5) / tf.maximum(count, 1)[:, tf.newaxis]
        bin_at = tf.cast(tf.range(bins), span.dtype)[:, tf.newaxis]
        place = (
            begin[:, tf.newaxis, tf.newaxis]
            + (bin_at + share[:, tf.newaxis]) * (span / bins)[:, tf.newaxis, tf.newaxis]
        )
        counted = tf.broadcast_to((step < count[:, tf.newaxis])[:, tf.newaxis], tf.shape(place))
        last = tf.cast(extent - 1, place.dtype)
        within = (place >= -1) & (place <= last + 1)
        axes.append((tf.clip_by_value(place, 0, last), counted, within, count))
    # (rois, height, samples, width, samples)
    (y, in_y, on_y, count_y), (z, in_z, on_z, count_z) = axes
    shape = tf.shape(y)[0], height, tf.shape(y)[2], width, tf.shape(z)[2]
    place_y = tf.broadcast_to(y[:, :, :, tf.newaxis, tf.newaxis], shape)
    place_z = tf.broadcast_to(z[:, tf.newaxis, tf.newaxis], shape)
    counted = in_y[:, :, :, tf.newaxis, tf.newaxis] & in_z[:, tf.newaxis, tf.newaxis]
    within = on_y[:, :, :, tf.newaxis, tf.newaxis] & on_z[:, tf.newaxis, tf.newaxis]
    batch = tf.cast(images, tf.int32)[:, tf.newaxis, tf.newaxis, tf.newaxis, tf.newaxis]
    parts = []
    for down, beside in itertools.product((0, 1), repeat=2):
        found, factor = [tf.broadcast_to(batch, shape)], tf.ones((), y.dtype)
        for place, offset, extent in ((place_y, down, tf.shape(x)[1]), (place_z, beside, tf.shape(x)[2])):
            low = tf.stop_gradient(tf.floor(place))
            found.append(tf.minimum(tf.cast(low, tf.int32) + offset, extent - 1))
            factor = factor * (place - low if offset else 1 - (place - low))
        parts.append(tf.gather_nd(x, tf.stack(found, -1)) * tf.cast(factor, x.dtype)[..., tf.newaxis])
    if largest:
        # The maximum of all weighted corners, as ONNX defines it.
        inside = (counted & within)[..., tf.newaxis]
        values = tf.where(inside, tf.reduce_max(tf.stack(parts), 0), tf.zeros((), x.dtype))
        values = tf.where(counted[..., tf.newaxis], values, tf.constant(x.dtype.min, x.dtype))
        return tf.reduce_max(values, [2, 4])
    values = tf.where((counted & within)[..., tf.newaxis], tf.add_n(parts), tf.zeros((), x.dtype))
    total = tf.cast(tf.maximum(count_y * count_z, 1), x.dtype)[:, tf.newaxis, tf.newaxis, tf.newaxis]
    return tf.reduce_sum(values, [2, 4]) / total


@operator("RoiAlign")
def _roi_align(emitter: Emitter, node: ir.Node) -> None:
    order = channels_last(4)
    x = emitter.ordered(node.inputs[0], order)
    rois, images = (emitter.name(value) for value in node.inputs[1:3])
    sizes = (attribute(node, "output_height", 1), attribute(node, "output_width", 1))
    half = attribute(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel"
    how = f"{attribute(node, 'sampling_ratio', 0)}, {number(attribute(node, 'spatial_scale', 1.0))}, {half}"
    largest = attribute(node, "mode", "avg") == "max"
    text = f"{emitter.function(_aligned)}({x}, {rois}, {images}, {sizes[0]}, {sizes[1]}, {how}, {largest})"
    emitter.assign(node, text, order)


def _check_boxes(node: ir.Node) -> str | None:
    known = isinstance(extents(node.inputs[1])[0], int) and isinstance(extents(node.inputs[1])[1], int)
    return None if known else "numbers of images and classes that are not known"


def _kept_boxes(boxes: Any, scores: Any, most: Any, overlap: Any, least: Any, centres: bool) -> Any:
    """Rows of image, class and box: the boxes that remain after suppressing overlaps with better ones."""
    if most is None:
        return tf.zeros([0, 3], tf.int64)
    if centres:
        x, y, width, height = tf.unstack(boxes, axis=-1)
        boxes = tf.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    most = tf.cast(tf.reshape(most, []), tf.int32)
    overlap = tf.zeros(()) if overlap is None else tf.reshape(overlap, [])
    least = tf.constant(-float("inf")) if least is None else tf.reshape(least, [])
    rows = []
    for image in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            found = tf.image.non_max_suppression(boxes[image], scores[image, kind], most, overlap, least)
            found = tf.cast(found, tf.int64)
            rows.append(
                tf.stack([tf.fill(tf.shape(found), tf.constant(each, tf.int64)) for each in (image, kind)] + [found], 1)
            )
    return tf.concat(rows, 0) if rows else tf.zeros([0, 3], tf.int64)


@operator("NonMaxSuppression", _check_boxes)
def _non_max_suppression(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, None, None, None)[:5])
    emitter.assign(node, f"{emitter.function(_kept_boxes)}({inputs}, {bool(attribute(node, 'center_point_box', 0))})")
