"""Operators that gather and scatter elements by index."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.frameworks.tensorflow.table import attribute, axis, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = ["REFUSING"]

REFUSING = frozenset({"GatherElements", "GatherND", "ScatterElements", "ScatterND", "TensorScatter"})
"""Operators whose out-of-range indices only TensorFlow's CPU kernels reject."""


def _indexing(op_type: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a function that generates the source of an operator in `REFUSING`."""

    def register(text: Callable[..., str]) -> Callable[..., str]:
        @wraps(text)
        def emit(emitter: Emitter, node: ir.Node) -> None:
            if not emitter.device.startswith("/CPU"):
                raise Unsupported(
                    f"tensorflow cannot run the node {node.name!r} ({op_type}) on {emitter.device}: an index outside "
                    "its axis would give a number; remedy: device='cpu'"
                )
            emitter.assign(node, text(emitter, node, *map(emitter.name, node.inputs)))

        operator(op_type)(emit)
        return text

    return register


def _from_start(indices: Any, extent: Any) -> Any:
    """Converts negative indices, which count from the end."""
    return tf.where(indices < 0, indices + tf.cast(extent, indices.dtype), indices)


def _coordinates(x: Any, indices: Any, along: int) -> Any:
    """The coordinates in x of each element of the indices, one row per element."""
    indices = tf.cast(indices, tf.int64)
    places = tf.meshgrid(*(tf.range(extent) for extent in tf.unstack(tf.shape(indices, tf.int64))), indexing="ij")
    places[along] = _from_start(indices, tf.shape(x)[along])
    return tf.stack(places, -1)


def _gathered_elements(x: Any, indices: Any, along: int) -> Any:
    return tf.gather_nd(x, _coordinates(x, indices, along))


@_indexing("GatherElements")
def _gather_elements(emitter: Emitter, node: ir.Node, x: str, indices: str) -> str:
    return f"{emitter.function(_gathered_elements)}({x}, {indices}, {axis(node, 0)})"


def _gathered_rows(x: Any, indices: Any, batch: int) -> Any:
    if indices.shape.rank == 1:  # for a single element the gradient of gather_nd fails
        return _gathered_rows(x, indices[tf.newaxis], batch)[0]
    extents = tf.shape(x, indices.dtype)[batch : batch + indices.shape[-1]]
    return tf.gather_nd(x, _from_start(indices, extents), batch_dims=batch)


@_indexing("GatherND")
def _gather_nd(emitter: Emitter, node: ir.Node, x: str, indices: str) -> str:
    return f"{emitter.function(_gathered_rows)}({x}, {indices}, {attribute(node, 'batch_dims', 0)})"


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


def _scattered_elements(x: Any, indices: Any, updates: Any, along: int, put: Callable[..., Any]) -> Any:
    return put(x, _coordinates(x, indices, along), updates)


@_indexing("ScatterElements")
def _scatter_elements(emitter: Emitter, node: ir.Node, x: str, indices: str, updates: str) -> str:
    put = emitter.function(_PUT[attribute(node, "reduction", "none")])
    return f"{emitter.function(_scattered_elements)}({x}, {indices}, {updates}, {axis(node, 0)}, {put})"


def _scattered_rows(x: Any, indices: Any, updates: Any, put: Callable[..., Any]) -> Any:
    return put(x, _from_start(indices, tf.shape(x, indices.dtype)[: indices.shape[-1]]), updates)


@_indexing("ScatterND")
def _scatter_nd(emitter: Emitter, node: ir.Node, x: str, indices: str, updates: str) -> str:
    put = emitter.function(_PUT[attribute(node, "reduction", "none")])
    return f"{emitter.function(_scattered_rows)}({x}, {indices}, {updates}, {put})"


def _written(x: Any, update: Any, begins: Any, along: int, circular: bool) -> Any:
    """Writes each sample's update along an axis, at the sample's offset; wraps around the end if circular."""
    turn = [0, along, *(other for other in range(1, x.shape.rank) if other != along)]
    x, update = tf.transpose(x, turn), tf.transpose(update, turn)
    batch, steps, length = tf.shape(x, tf.int64)[0], tf.shape(update, tf.int64)[1], tf.shape(x, tf.int64)[1]
    begins = tf.zeros([batch], tf.int64) if begins is None else tf.cast(begins, tf.int64)
    places = begins[:, tf.newaxis] + tf.range(steps)
    places = places % length if circular else places
    samples = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], tf.shape(places))
    y = tf.tensor_scatter_nd_update(x, tf.stack([samples, places], -1), update)
    return tf.transpose(y, [turn.index(other) for other in range(len(turn))])


@_indexing("TensorScatter")
def _tensor_scatter(emitter: Emitter, node: ir.Node, x: str, update: str, begins: str = "None") -> str:
    circular = attribute(node, "mode", "linear") == "circular"
    return f"{emitter.function(_written)}({x}, {update}, {begins}, {axis(node, -2)}, {circular})"
