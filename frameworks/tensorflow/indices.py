"""Elements at indices, which only TensorFlow's CPU kernels check."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["classes", "gathered", "picked", "placed", "top_k"]

# Up to this width, slices are sorted without a loop: of three columns, the loop takes twice the time.
_FEW_COLUMNS = 16


def gathered(x: Any, indices: Any, axis: int, checked: bool) -> Any:
    """The slices at indices along an axis; if unchecked, one out of range gives NaN."""
    known, extent = tf.get_static_value(indices), x.shape[axis]
    if known is not None and not known.shape:
        return x[(slice(None),) * axis + (int(known),)]
    checked |= known is not None and extent is not None and bool(((known >= -extent) & (known < extent)).all())
    extent = tf.cast(tf.shape(x)[axis], indices.dtype) if extent is None else extent
    places = tf.where(indices < 0, indices + extent, indices)
    if checked:
        return tf.gather(x, places, axis=axis)
    inside = (places >= 0) & (places < extent)
    picked = tf.gather(x, tf.where(inside, places, tf.zeros_like(places)), axis=axis)
    inside = tf.reshape(inside, tf.concat([tf.shape(inside), tf.ones([x.shape.rank - 1 - axis], tf.int32)], 0))
    # Multiplied by NaN, so that the gradient of the data is NaN as well.
    return picked * tf.where(inside, tf.ones((), x.dtype), tf.constant(math.nan, x.dtype))


def _coordinates(x: Any, places: Sequence[Any]) -> Any:
    """Nonnegative coordinates along the first axes of x, of shape (…, axes), from those of each axis."""
    extents = tf.unstack(tf.shape(x, tf.int64)[: len(places)])
    places = [tf.cast(place, tf.int64) for place in places]
    places = [tf.where(place < 0, place + extent, place) for place, extent in zip(places, extents, strict=True)]
    if len(places) > 1:
        nothing = tf.zeros_like(functools.reduce(tf.add, places))
        places = [place + nothing for place in places]
    return tf.stack(places, -1)


def picked(x: Any, places: Sequence[Any]) -> Any:
    """x[places]."""
    where = _coordinates(x, places)
    # For a single element the gradient of gather_nd fails.
    return tf.gather_nd(x, where[tf.newaxis])[0] if where.shape.rank == 1 else tf.gather_nd(x, where)


def _multiplied(x: Any, places: Any, updates: Any) -> Any:
    """Each element, or slice, times all updates at its index."""
    depth = places.shape[-1]
    shape, extents = tf.shape(x), tf.shape(x, tf.int64)
    rows = tf.reduce_prod(shape[:depth])
    steps = tf.math.cumprod(extents[:depth], exclusive=True, reverse=True)
    places = tf.reshape(places, [-1, depth])
    inside = tf.debugging.assert_equal(tf.reduce_all((places >= 0) & (places < extents[:depth])), True, "an index")
    with tf.control_dependencies([] if inside is None else [inside]):
        flat = tf.reduce_sum(places * steps, -1)
    columns = tf.reshape(updates, tf.concat([tf.shape(flat), shape[depth:]], 0))
    factors = tf.math.unsorted_segment_prod(columns, flat, rows)
    return x * tf.reshape(factors, shape)


_PUT: dict[str, Callable[..., Any]] = {
    "add": tf.tensor_scatter_nd_add,
    "max": tf.tensor_scatter_nd_max,
    "min": tf.tensor_scatter_nd_min,
    "mul": _multiplied,
    "none": tf.tensor_scatter_nd_update,
}


def placed(x: Any, places: Sequence[Any], updates: Any, how: str) -> Any:
    """x with updates."""
    return _PUT[how](x, _coordinates(x, places), updates)


def _swapped(x: Any, along: int) -> Any:
    """Swaps an axis with the last one."""
    axes = list(range(x.shape.rank))
    axes[along], axes[-1] = axes[-1], axes[along]
    return x if along == x.shape.rank - 1 else tf.transpose(x, axes)


def top_k(x: Any, count: Any, axis: int, largest: bool) -> tuple[Any, Any]:
    """The largest or smallest elements along an axis, and their indices. Integers are reversed by complement."""
    x = _swapped(x, axis)
    reverse = tf.identity if largest else tf.negative if x.dtype.is_floating else tf.bitwise.invert
    values, places = tf.math.top_k(reverse(x), tf.cast(count, tf.int32))  # int64 indices have no gradient
    return _swapped(reverse(values), axis), _swapped(tf.cast(places, tf.int64), axis)


def classes(x: Any, axis: int) -> tuple[Any, Any, Any]:
    """The unique slices along an axis in ascending order: where each is first, the number of each slice, and counts."""
    turn = [axis, *(at for at in range(x.shape.rank) if at != axis)]
    rows = tf.transpose(tf.cast(x, tf.uint8) if x.dtype == tf.bool else x, turn)
    found = tf.raw_ops.UniqueWithCountsV2(x=rows, axis=tf.constant([0], tf.int64), out_idx=tf.int64)
    order, extents = tf.range(tf.size(found.count, tf.int64)), rows.shape.as_list()[1:]
    first = tf.math.unsorted_segment_min(tf.range(tf.size(found.idx, tf.int64)), found.idx, tf.size(order, tf.int64))
    width = tf.reduce_prod(tf.shape(rows)[1:]) if None in extents else math.prod(extents)
    columns = tf.reshape(found.y, [tf.size(order), width])

    def sort(column: Any, order: Any) -> tuple[Any, Any]:
        keys = tf.gather(tf.gather(columns, column, axis=1), order)
        return column - 1, tf.gather(order, tf.argsort(keys, stable=True))

    # The least significant column first.
    if isinstance(width, int) and width <= _FEW_COLUMNS:
        for column in reversed(range(width)):
            _, order = sort(column, order)
    else:
        _, order = tf.while_loop(lambda column, order: column >= 0, sort, [width - 1, order])
    numbers = tf.gather(tf.math.invert_permutation(order), found.idx)
    return tf.gather(first, order), numbers, tf.gather(found.count, order)
