"""Windows as a separate axis, for features that pooling kernels lack; and columns folded back into images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, extents, operator, rank
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = ["average_windows", "largest_in_windows"]


def _places(space: Sequence[int], window: Window) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each axis, the indices (outputs, kernel) that windows read, with padding; and the padding's bounds."""
    outputs, begins, ends = window.fit(tuple(space), window.kernel)
    found, bounds = [], []
    for axis, extent in enumerate(space):
        starts = np.arange(outputs[axis]) * window.strides[axis] - begins[axis]
        found.append(starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis])
        bounds.append(np.array([-begins[axis], extent + ends[axis]]))
    return found, bounds


def _unfolded(x: Any, places: Sequence[np.ndarray], fill: Any) -> Any:
    """(N, C, *space) as (N, C, *outputs, kernel elements); padding has the value `fill`."""
    axes = len(places)
    for axis, place in enumerate(places):
        extent = x.shape[2 + 2 * axis]
        picked = tf.gather(x, place.clip(0, max(extent - 1, 0)), axis=2 + 2 * axis)
        inside = ((place >= 0) & (place < extent)).reshape(place.shape + (1,) * (picked.shape.rank - 4 - 2 * axis))
        x = picked if inside.all() else tf.where(inside, picked, tf.cast(fill, x.dtype))
    turn = [0, 1, *range(2, 2 + 2 * axes, 2), *range(3, 3 + 2 * axes, 2)]
    x = tf.transpose(x, turn)
    sizes = tf.shape(x)[:2]
    outputs = [len(place) for place in places]
    return tf.reshape(x, tf.concat([sizes, [*outputs, math.prod(place.shape[1] for place in places)]], 0))


def _lowest(dtype: Any) -> Any:
    return -math.inf if dtype.is_floating else dtype.min


def largest_in_windows(x: Any, window: Window, columns_first: bool) -> tuple[Any, Any]:
    """The maximum of each window of (N, C, *space), and its flat index in x."""
    space = x.shape.as_list()[2:]
    places, _ = _places(space, window)
    windows = _unfolded(x, places, _lowest(x.dtype))
    chosen = tf.argmax(windows, -1)
    values = tf.gather(windows, chosen, batch_dims=chosen.shape.rank, axis=-1)
    # The index of each window element in its image; the same for all images.
    steps = [math.prod(space[:axis]) if columns_first else math.prod(space[axis + 1 :]) for axis in range(len(space))]
    shape, flat = [len(place) for place in places], np.zeros((1,) * (2 * len(space)), np.int64)
    for axis, (place, step) in enumerate(zip(places, steps, strict=True)):
        form = [1] * (2 * len(space))
        form[axis], form[len(space) + axis] = place.shape
        flat = flat + place.clip(0).reshape(form) * step
    flat = flat.reshape([*shape, -1])
    spread = tf.broadcast_to(flat, tf.shape(windows, tf.int64))
    inner = tf.gather(spread, chosen, batch_dims=chosen.shape.rank, axis=-1)
    count = tf.shape(x, tf.int64)
    image = tf.reshape(tf.range(count[0] * count[1]), tf.concat([count[:2], [1] * len(space)], 0))
    return values, inner + image * math.prod(space)


def average_windows(x: Any, window: Window, include: bool) -> Any:
    """The mean of each window of (N, C, *space); padding counts if included, elements beyond it never do."""
    places, bounds = _places(x.shape.as_list()[2:], window)
    total = tf.reduce_sum(_unfolded(x, places, 0), -1)
    counts = np.ones(())
    for place, bound, extent in zip(places, bounds, x.shape.as_list()[2:], strict=True):
        low, high = bound if include else (0, extent)
        counts = np.multiply.outer(counts, ((place >= low) & (place < high)).sum(1))
    return total / tf.constant(counts.astype(np.float64), x.dtype)


def _power_mean(x: Any, window: Window, p: int) -> Any:
    """The root of the sum of powers; its gradient is 0, not NaN, where all elements are 0."""
    places, _ = _places(x.shape.as_list()[2:], window)
    sums = tf.reduce_sum(tf.pow(tf.abs(_unfolded(x, places, 0)), tf.cast(p, x.dtype)), -1)
    nothing = tf.equal(sums, 0)
    root = tf.pow(tf.where(nothing, tf.ones_like(sums), sums), tf.cast(1 / p, x.dtype))
    return tf.where(nothing, tf.zeros_like(sums), root)


def _check_space(node: ir.Node) -> str | None:
    known = all(isinstance(extent, int) for extent in extents(node.inputs[0])[2:])
    return None if known else "windows over a dimension of unknown size"


@operator("LpPool", _check_space)
def _lp_pool(emitter: Emitter, node: ir.Node) -> None:
    window = emitter.bind(Window.of(node, rank(node) - 2))
    x = emitter.name(node.inputs[0])
    emitter.assign(node, f"{emitter.function(_power_mean)}({x}, {window}, {attribute(node, 'p', 2)})")


def _put_back(x: Any, image: Sequence[int], window: Window) -> Any:
    """Adds columns (N, C kernel, windows) at their positions in images (N, C, *image)."""
    padded = [begin + extent + end for begin, extent, end in zip(window.begins, image, window.ends, strict=True)]
    places, _ = _places(image, window)
    flat = np.zeros((1,) * (2 * len(image)), np.int64)
    for axis, (place, begin) in enumerate(zip(places, window.begins, strict=True)):
        form = [1] * (2 * len(image))
        form[len(image) + axis], form[axis] = place.shape
        flat = flat + (place.T + begin).reshape(form) * math.prod(padded[axis + 1 :])
    elements, windows = math.prod(window.kernel), flat.size // math.prod(window.kernel)
    count = tf.shape(x)[0]
    rows = tf.reshape(x, [count, -1, elements * windows])
    sums = tf.math.unsorted_segment_sum(tf.transpose(rows, [2, 0, 1]), flat.reshape(-1), math.prod(padded))
    whole = tf.reshape(tf.transpose(sums, [1, 2, 0]), [count, tf.shape(rows)[1], *padded])
    parts = [slice(begin, begin + extent) for begin, extent in zip(window.begins, image, strict=True)]
    return whole[(slice(None), slice(None), *parts)]


def _columns(x: Any, image: list[int], kernel: list[int], strides: Any, dilations: Any, pads: Any) -> Any:
    axes = len(image)
    window = Window(
        kernel=tuple(kernel),
        strides=tuple(strides or (1,) * axes),
        dilations=tuple(dilations or (1,) * axes),
        begins=tuple((pads or (0,) * (2 * axes))[:axes]),
        ends=tuple((pads or (0,) * (2 * axes))[axes:]),
    )
    return _put_back(x, image, window)


@operator("Col2Im", host=(1, 2))
def _col2im(emitter: Emitter, node: ir.Node) -> None:
    how = ", ".join(
        str(None if (given := attribute(node, name, None)) is None else list(given))
        for name in ("strides", "dilations", "pads")
    )
    inputs = f"{emitter.name(node.inputs[0])}, {emitter.setting(node, 1)}, {emitter.setting(node, 2)}"
    emitter.assign(node, f"{emitter.function(_columns)}({inputs}, {how})")
