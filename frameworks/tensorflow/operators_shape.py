"""Operators that move elements, and those that read or compute shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.order import onnx_order
from deep5.frameworks.tensorflow.table import (
    attribute,
    axes_of,
    axis,
    computed,
    extents,
    fixed,
    number,
    operator,
    rank,
)
from deep5.networks.constants import constant_value

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Emits nothing: each reader binds the constant."""


@operator("Identity", rankless=True)
def _identity(emitter: Emitter, node: ir.Node) -> None:
    emitter.alias(node, onnx_order(len(extents(node.inputs[0]))))


@operator("Transpose", rankless=True)
def _transpose(emitter: Emitter, node: ir.Node) -> None:
    if node.inputs[0] is None or node.inputs[0].shape is None:
        permutation = attribute(node, "perm", None)
        given = None if permutation is None else list(permutation)
        emitter.assign(node, f"{emitter.function(tf.transpose)}({emitter.name(node.inputs[0])}, {given})")
        return
    emitter.alias(node, tuple(attribute(node, "perm", range(rank(node))[::-1])))


@operator("Concat", rankless=True)
def _concat(emitter: Emitter, node: ir.Node) -> None:
    order = emitter.common_order(node.inputs)
    inputs = ", ".join(emitter.ordered(value, order) if order else emitter.name(value) for value in node.inputs)
    place = order.index(axis(node, 0)) if order else attribute(node, "axis")
    emitter.assign(node, f"{emitter.function(tf.concat)}([{inputs}], {place})", order)


def _parts(x: Any, count: int, along: int) -> Any:
    """Equal parts; if the size is not divisible, the last is smaller."""
    extent = x.shape[along] if x.shape[along] is not None else tf.shape(x)[along]
    size = -(-extent // count)
    return tf.split(x, [size] * (count - 1) + [extent - size * (count - 1)], along)


@operator("Split", rankless=True)
def _split(emitter: Emitter, node: ir.Node) -> None:
    order, sizes, count = emitter.order(node.inputs[0]), fixed(node, 1), len(node.outputs)
    x, place = (
        emitter.ordered(node.inputs[0], order),
        order.index(axis(node, 0)) if order else attribute(node, "axis", 0),
    )
    if computed(node, 1) is not None:
        text = f"{emitter.function(tf.split)}({x}, {emitter.name(node.inputs[1])}, {place}, {count})"
    elif sizes is None:
        text = f"{emitter.function(_parts)}({x}, {count}, {place})"
    else:
        text = f"{emitter.function(tf.split)}({x}, {sizes.tolist()}, {place})"
    outputs = ", ".join(emitter.output(node, index, order) for index in range(count))
    emitter.line(f"{outputs}, = {text}")


def _flattened(x: Any, first: int) -> Any:
    shape = x.shape.as_list()
    rows, columns = shape[:first], shape[first:]
    if None not in columns and (size := math.prod(columns)):
        return tf.reshape(x, [-1, size])
    if None not in rows and (size := math.prod(rows)):
        return tf.reshape(x, [size, -1])
    sizes = tf.shape(x)
    return tf.reshape(x, [tf.reduce_prod(sizes[:first]), tf.reduce_prod(sizes[first:])])


@operator("Flatten")
def _flatten(emitter: Emitter, node: ir.Node) -> None:
    x = emitter.name(node.inputs[0])
    emitter.assign(node, f"{emitter.function(_flattened)}({x}, {axis(node, 1)})")


def _reshaped(x: Any, shape: list[int], copies: bool) -> Any:
    """ONNX's Reshape: 0 copies the input's dimension, -1 is inferred."""
    own = x.shape.as_list()
    goal = [own[index] if extent == 0 and copies else extent for index, extent in enumerate(shape)]
    if None not in goal:
        return tf.reshape(x, goal)
    known: list[int] = [extent for extent in own if extent is not None]
    given: list[int] = [extent for extent in goal if extent is not None and extent != -1]
    size, taken = math.prod(known), math.prod(given)
    if len(known) == len(own) - 1 and goal.count(None) == 1 and taken:
        # One unknown dimension is kept: then the remaining size is known.
        left = size // taken
        return tf.reshape(x, [-1 if extent is None else left if extent == -1 else extent for extent in goal])
    sizes = tf.shape(x)
    return tf.reshape(x, [sizes[index] if extent is None else extent for index, extent in enumerate(goal)])


def _reshaped_as_computed(x: Any, shape: Any, copies: bool) -> Any:
    """Same as `_reshaped`, with the shape as a tensor."""
    shape = tf.cast(shape, tf.int32)
    if copies:
        own = tf.shape(x)[: shape.shape[0]]
        own = tf.pad(own, [(0, shape.shape[0] - own.shape[0])])
        shape = tf.where(tf.equal(shape, 0), own, shape)
    return tf.reshape(x, shape)


@operator("Reshape", rankless=True)
def _reshape(emitter: Emitter, node: ir.Node) -> None:
    x, known, copies = emitter.name(node.inputs[0]), fixed(node, 1), not attribute(node, "allowzero", 0)
    if known is not None:
        emitter.assign(node, f"{emitter.function(_reshaped)}({x}, {known.tolist()}, {copies})")
    else:
        shape = emitter.name(node.inputs[1])
        emitter.assign(node, f"{emitter.function(_reshaped_as_computed)}({x}, {shape}, {copies})")


def _squeezes_unknown(node: ir.Node) -> str | None:
    unknown = any(not isinstance(extent, int) for extent in extents(node.inputs[0]))
    given = len(node.inputs) > 1 and node.inputs[1] is not None
    unknown |= node.inputs[0] is not None and node.inputs[0].shape is None
    return "no axes, with a dimension of unknown size" if unknown and not given else computed(node, 1)


def _squeezed(x: Any, axes: Sequence[int] | None) -> Any:
    """Without axes, removes all dimensions of size 1 of a shape known by now."""
    return x if axes is not None and not axes else tf.squeeze(x, axes)


@operator("Squeeze", host=_squeezes_unknown, rankless=True)
def _squeeze(emitter: Emitter, node: ir.Node) -> None:
    axes = emitter.setting(node, 1)
    emitter.assign(node, f"{emitter.function(_squeezed)}({emitter.name(node.inputs[0])}, {axes})")


def _unsqueezed(x: Any, axes: Sequence[int]) -> Any:
    for position in sorted(entry % (x.shape.rank + len(axes)) for entry in axes):
        x = tf.expand_dims(x, position)
    return x


@operator("Unsqueeze", host=(1,), rankless=True)
def _unsqueeze(emitter: Emitter, node: ir.Node) -> None:
    x, axes = emitter.name(node.inputs[0]), emitter.setting(node, 1)
    emitter.assign(node, f"{emitter.function(_unsqueezed)}({x}, {axes})")


def _expanded(x: Any, shape: Any) -> Any:
    return tf.broadcast_to(x, tf.broadcast_dynamic_shape(tf.shape(x), tf.cast(shape, tf.int32)))


@operator("Expand", rankless=True)
def _expand(emitter: Emitter, node: ir.Node) -> None:
    x, shape = (emitter.name(value) for value in node.inputs)
    emitter.assign(node, f"{emitter.function(_expanded)}({x}, {shape})")


def _tiled(x: Any, counts: Any) -> Any:
    if x.dtype == tf.uint16:  # which has no kernel
        return tf.bitcast(tf.tile(tf.bitcast(x, tf.int16), counts), x.dtype)
    return tf.tile(x, counts)


@operator("Tile")
def _tile(emitter: Emitter, node: ir.Node) -> None:
    x, counts = emitter.name(node.inputs[0]), fixed(node, 1)
    given = emitter.name(node.inputs[1]) if counts is None else f"{counts.tolist()}"
    emitter.assign(node, f"{emitter.function(_tiled)}({x}, {given})")


def _shape_of(x: Any, first: int, last: int | None) -> Any:
    return tf.shape(x, out_type=tf.int64)[first:last]


@operator("Shape", rankless=True)
def _shape(emitter: Emitter, node: ir.Node) -> None:
    part = f"{attribute(node, 'start', 0)}, {attribute(node, 'end', None)}"
    emitter.assign(node, f"{emitter.function(_shape_of)}({emitter.name(node.inputs[0])}, {part})")


def _filled(shape: Any, value: float, dtype: Any) -> Any:
    return tf.fill(tf.cast(shape, tf.int32), tf.constant(value, dtype))


@operator("ConstantOfShape", rankless=True)
def _constant_of_shape(emitter: Emitter, node: ir.Node) -> None:
    value = attribute(node, "value", None)
    text = "0.0" if value is None else number(value.numpy().reshape(-1)[0].item())
    shape, dtype = emitter.name(node.inputs[0]), emitter.dtype(node.outputs[0])
    emitter.assign(node, f"{emitter.function(_filled)}({shape}, {text}, {dtype})")


def _check_slice(node: ir.Node) -> str | None:
    count = extents(node.inputs[1])
    return None if count and isinstance(count[0], int) else "the number of sliced axes is unknown"


# TensorFlow's largest bound; ONNX's bounds may be as large as int64, meaning "to the end".
_LARGEST = np.iinfo(np.int32).max


def _sliced(x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    """ONNX's Slice with computed bounds and steps, as tensors."""
    starts, ends = (tf.clip_by_value(tf.cast(value, tf.int64), -_LARGEST, _LARGEST) for value in (starts, ends))
    steps = tf.ones_like(starts) if steps is None else tf.clip_by_value(tf.cast(steps, tf.int64), -_LARGEST, _LARGEST)
    parts, extents = [slice(None)] * x.shape.rank, tf.shape(x, tf.int64)
    for index, along in enumerate(range(starts.shape[0]) if axes is None else axes):
        # Same as in `slice_of`: going backwards, a start before the first element means the first element.
        first = tf.maximum(starts[index], tf.where(steps[index] < 0, -extents[along], -_LARGEST))
        parts[along] = slice(*(tf.cast(bound, tf.int32) for bound in (first, ends[index], steps[index])))
    return x[tuple(parts)] if parts else x


@operator("Slice", _check_slice, host=(3,), rankless=True)
def _slice(emitter: Emitter, node: ir.Node) -> None:
    steps = fixed(node, 4)
    backwards = steps is not None and steps.min(initial=1) < 0  # then bounds depend on dimensions
    if backwards or computed(node, 1, 2, 3, 4) is not None or node.inputs[0] is None or node.inputs[0].shape is None:
        x, first, last, _, by = (emitter.name(value) for value in (*node.inputs, None, None)[:5])
        how = f"{x}, {first}, {last}, {emitter.setting(node, 3)}, {by}"
        emitter.assign(node, f"{emitter.function(_sliced)}({how})")
        return
    starts, ends = (fixed(node, index).clip(-_LARGEST, _LARGEST).tolist() for index in (1, 2))
    axes = axes_of(node, 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps.tolist()
    order = emitter.order(node.inputs[0])
    parts = ["slice(None)"] * rank(node)
    for along, start, end, step in zip(axes, starts, ends, steps, strict=True):
        parts[order.index(along)] = f"slice({start}, {end}, {step})"
    x = emitter.ordered(node.inputs[0], order)
    emitter.assign(node, f"{x}[{', '.join(parts)}]" if parts else x, order)
