"""Resize: one axis after another, as a weighted sum of a few elements with the interpolation weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, extents, fixed, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = ["cubic_weights"]


class _Rule(NamedTuple):
    """How coordinates and weights are computed; fields are ONNX's attributes of these names."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude: bool
    antialias: bool
    extrapolation: float
    policy: str


def _source(i: Any, extent: Any, length: Any, scale: Any, begin: Any, end: Any, how: str) -> Any:
    """The input coordinate of the output index i, all in float64.

    Args:
        i: Indices of the output.
        extent: Size of the input.
        length: Size of the output, not rounded.
        scale: Output size over input size.
        begin: Start of the region of interest, as a fraction of the input.
        end: End of the region of interest, as a fraction of the input.
        how: ONNX's coordinate_transformation_mode.
    """
    if how == "asymmetric":
        return i / scale
    if how == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if how == "align_corners":
        return tf.where(length > 1, i * (extent - 1) / tf.maximum(length - 1, 1e-300), tf.zeros_like(i))
    if how == "tf_crop_and_resize":
        step = (end - begin) * (extent - 1) / tf.maximum(length - 1, 1e-300)
        return tf.where(length > 1, begin * (extent - 1) + i * step, (begin + end) * (extent - 1) / 2 + 0 * i)
    centre = (i + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        return centre + extent / 2 * (1 - tf.floor(length) / length)
    return tf.where(length > 1, centre, tf.zeros_like(i)) if how == "pytorch_half_pixel" else centre


def _nearest(place: Any, how: str) -> Any:
    if how == "round_prefer_floor":
        return tf.math.ceil(place - 0.5)
    if how == "round_prefer_ceil":
        return tf.floor(place + 0.5)
    return tf.floor(place) if how == "floor" else tf.math.ceil(place)


def cubic_weights(distance: Any, a: float) -> Any:
    """The cubic convolution kernel.

    References:
        Keys, Cubic convolution interpolation for digital image processing, IEEE Transactions on Acoustics, Speech and
        Signal Processing 29(6), 1981.
    """
    t = tf.abs(distance)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return tf.where(t <= 1, near, tf.where(t < 2, far, tf.zeros_like(t)))


def _taps(place: Any, scale: Any, rule: _Rule) -> tuple[Any, Any]:
    """The indices of the elements that contribute to each coordinate, and their weights, both (coordinates, taps)."""
    if rule.mode == "nearest":
        found = _nearest(place, rule.nearest)[:, tf.newaxis]
        return found, tf.ones_like(found)
    reach = 1 if rule.mode == "linear" else 2
    narrow = tf.minimum(scale, 1.0) if rule.antialias else tf.ones((), tf.float64)
    below = tf.math.ceil(reach / narrow)
    offsets = tf.range(1 - below, below + 1, dtype=tf.float64)
    found = tf.floor(place)[:, tf.newaxis] + offsets
    distance = (place[:, tf.newaxis] - found) * narrow
    if rule.mode == "linear":
        return found, tf.maximum(1 - tf.abs(distance), 0)
    return found, cubic_weights(distance, rule.cubic)


def _along(x: Any, axis: int, size: Any, length: Any, scale: Any, region: tuple[Any, Any], rule: _Rule) -> Any:
    extent = tf.cast(tf.shape(x)[axis], tf.float64)
    place = _source(tf.cast(tf.range(size), tf.float64), extent, length, scale, *region, rule.coordinates)
    found, weights = _taps(place, scale, rule)
    if rule.exclude:
        weights = tf.where((found >= 0) & (found < extent), weights, tf.zeros_like(weights))
    weights = weights / tf.reduce_sum(weights, 1, keepdims=True)
    found = tf.cast(tf.clip_by_value(found, 0, extent - 1), tf.int32)
    if rule.mode == "nearest":
        y = tf.gather(x, found[:, 0], axis=axis)
    else:
        shape = [-1 if at == axis else 1 for at in range(x.shape.rank)]
        factors = tf.cast(weights, x.dtype)
        taps = found.shape[1]
        if taps is None:
            wide = [*shape[: axis + 1], tf.shape(found)[1], *shape[axis + 1 :]]
            wide[axis] = tf.shape(found)[0]
            y = tf.reduce_sum(tf.gather(x, found, axis=axis) * tf.reshape(factors, wide), axis + 1)
        else:
            parts = [tf.gather(x, found[:, t], axis=axis) * tf.reshape(factors[:, t], shape) for t in range(taps)]
            y = parts[0] if taps == 1 else tf.add_n(parts)
    if rule.coordinates == "tf_crop_and_resize":
        outside = tf.reshape(
            (place < 0) | (place > extent - 1), [-1 if at == axis else 1 for at in range(x.shape.rank)]
        )
        y = tf.where(outside, tf.cast(rule.extrapolation, y.dtype), y)
    return y


def _resized(x: Any, roi: Any, scales: Any, sizes: Any, places: list[int], kept: list[bool], rule: _Rule) -> Any:
    """Resizes the given axes, in the order of scales and sizes."""
    kind = x.dtype
    y = tf.cast(x, tf.float32) if kind.is_integer and rule.mode != "nearest" else x
    own = tf.cast(tf.gather(tf.shape(x), places), tf.float64)
    if sizes is None:
        scales = tf.cast(scales, tf.float64)
        lengths = own * scales
        sizes = tf.cast(tf.floor(lengths), tf.int32)
    else:
        lengths = tf.cast(sizes, tf.float64)
        scales = lengths / own
        if rule.policy != "stretch":
            one = (tf.reduce_min if rule.policy == "not_larger" else tf.reduce_max)(scales)
            scales = one + tf.zeros_like(scales)
            lengths = tf.floor(one * own + 0.5)
        sizes = tf.cast(lengths, tf.int32)
    count = len(places)
    region = None if roi is None else tf.cast(roi, tf.float64)
    for index, axis in enumerate(places):
        if kept[index]:
            continue
        none = tf.zeros((), tf.float64)
        ends = (none, none + 1) if region is None else (region[index], region[index + count])
        y = _along(y, axis, sizes[index], lengths[index], scales[index], ends, rule)
    return tf.cast(y, kind)


_POLICIES = ("stretch", "not_larger", "not_smaller")


def _check_resize(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        return f"the mode {mode!r}; allowed: nearest, linear, cubic"
    return None if node.outputs[0].shape is not None else "an output of unknown rank"


@operator("Resize", _check_resize)
def _resize(emitter: Emitter, node: ir.Node) -> None:
    given = (*node.inputs, None, None, None)[1:4]
    roi, scales, sizes = ((None if each is None or extents(each) == [0] else each) for each in given)
    axes = attribute(node, "axes", None)
    axes = list(range(rank(node))) if not axes else [each % rank(node) for each in axes]
    rule = _Rule(
        mode=attribute(node, "mode", "nearest"),
        coordinates=attribute(node, "coordinate_transformation_mode", "half_pixel"),
        nearest=attribute(node, "nearest_mode", "round_prefer_floor"),
        cubic=attribute(node, "cubic_coeff_a", -0.75),
        exclude=bool(attribute(node, "exclude_outside", 0)),
        antialias=bool(attribute(node, "antialias", 0)),
        extrapolation=attribute(node, "extrapolation_value", 0.0),
        policy=attribute(node, "keep_aspect_ratio_policy", "stretch"),
    )
    kept = [_stays(node, index, axis, rule) for index, axis in enumerate(axes)]
    order = emitter.order(node.inputs[0])
    places = [order.index(axis) for axis in axes]
    inputs = (
        f"{emitter.ordered(node.inputs[0], order)}, {', '.join(emitter.name(each) for each in (roi, scales, sizes))}"
    )
    emitter.assign(node, f"{emitter.function(_resized)}({inputs}, {places}, {kept}, {emitter.bind(rule)})", order)


def _stays(node: ir.Node, index: int, axis: int, rule: _Rule) -> bool:
    """Whether an axis is known to keep its size and values."""
    if rule.coordinates == "tf_crop_and_resize" or rule.policy != "stretch":
        return False
    scales, sizes = fixed(node, 2), fixed(node, 3)
    if sizes is not None and sizes.size:
        return bool(sizes[index] == extents(node.inputs[0])[axis])
    return scales is not None and bool(scales.size) and math.isclose(scales[index], 1.0, rel_tol=0.0)
