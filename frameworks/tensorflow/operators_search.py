"""Operators that search for elements: the largest, the unique, the nonzero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, axis, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _scalar(x: Any) -> Any:
    """The single element of a tensor of rank 0 or 1."""
    return tf.reshape(x, [])


def _swapped(x: Any, along: int) -> Any:
    """Swaps an axis with the last one."""
    axes = list(range(x.shape.rank))
    axes[along], axes[-1] = axes[-1], axes[along]
    return x if along == x.shape.rank - 1 else tf.transpose(x, axes)


def _top(x: Any, k: Any, along: int, largest: bool) -> tuple[Any, Any]:
    """The k largest or smallest and their indices; ties take the first. Integers are reversed by bitwise complement."""
    x, count = _swapped(x, along), tf.cast(_scalar(k), tf.int32)
    turned = x if largest else -x if x.dtype.is_floating else tf.bitwise.invert(x)
    values, places = tf.math.top_k(turned, count)  # int64 indices have no gradient
    values = values if largest else -values if x.dtype.is_floating else tf.bitwise.invert(values)
    return _swapped(values, along), _swapped(tf.cast(places, tf.int64), along)


@operator("TopK")
def _top_k(emitter: Emitter, node: ir.Node) -> None:
    x, k = (emitter.name(value) for value in node.inputs)
    largest = bool(attribute(node, "largest", 1))
    emitter.assign_all(node, f"{emitter.function(_top)}({x}, {k}, {axis(node, -1)}, {largest})")


def _nonzero(x: Any) -> Any:
    return tf.transpose(tf.where(x if x.dtype == tf.bool else tf.not_equal(x, tf.zeros((), x.dtype))))


@operator("NonZero")
def _non_zero(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.function(_nonzero)}({emitter.name(node.inputs[0])})")


def _compressed(x: Any, condition: Any, along: int | None) -> Any:
    places = tf.where(condition)[:, 0]
    return tf.gather(tf.reshape(x, [-1]) if along is None else x, places, axis=along or 0)


@operator("Compress")
def _compress(emitter: Emitter, node: ir.Node) -> None:
    x, condition = (emitter.name(value) for value in node.inputs)
    along = None if attribute(node, "axis", None) is None else axis(node, 0)
    emitter.assign(node, f"{emitter.function(_compressed)}({x}, {condition}, {along})")


def _check_unique(node: ir.Node) -> str | None:
    value = node.inputs[0]
    if attribute(node, "axis", None) is None or not attribute(node, "sorted", 1) or value is None:
        return None
    others = [extent for index, extent in enumerate(value.shape or ()) if index != axis(node, 0)]
    return None if all(isinstance(extent, int) for extent in others) else "sorted slices of unknown size"


def _unique_slices(x: Any, along: int | None, ordered: bool) -> tuple[Any, Any, Any, Any]:
    """The unique slices, the index of each one's first occurrence, the inverse index of each slice, and the counts."""
    kind = x.dtype
    x = tf.cast(x, tf.uint8) if kind == tf.bool else x
    rows = tf.reshape(x, [-1]) if along is None else x
    along = along or 0
    shape = [None if at == along else extent for at, extent in enumerate(rows.shape.as_list())]
    found = tf.raw_ops.UniqueWithCountsV2(
        x=tf.stop_gradient(rows), axis=tf.constant([along], tf.int64), out_idx=tf.int64
    )
    y, inverse, counts = tf.ensure_shape(found.y, shape), found.idx, found.count
    kinds = tf.size(counts, tf.int64)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(inverse, tf.int64)), inverse, kinds)
    if ordered:
        turn = [along, *(axis for axis in range(rows.shape.rank) if axis != along)]
        flat = tf.transpose(y, turn)
        width = 1
        for extent in flat.shape.as_list()[1:]:
            width *= extent
        flat = tf.reshape(flat, [kinds, width])
        places = tf.range(kinds)
        for column in range(width)[::-1]:  # least significant column first
            key = tf.gather(flat[:, column], places)
            places = tf.gather(places, tf.argsort(key, stable=True))
        first, counts = tf.gather(first, places), tf.gather(counts, places)
        inverse = tf.gather(tf.math.invert_permutation(places), inverse)
    # Gathered again, because UniqueWithCountsV2 has no gradient.
    return tf.ensure_shape(tf.cast(tf.gather(rows, first, axis=along), kind), shape), first, inverse, counts


@operator("Unique", _check_unique)
def _unique(emitter: Emitter, node: ir.Node) -> None:
    along = None if attribute(node, "axis", None) is None else axis(node, 0)
    how = f"{emitter.name(node.inputs[0])}, {along}, {bool(attribute(node, 'sorted', 1))}"
    emitter.assign_all(node, f"{emitter.function(_unique_slices)}({how})")
