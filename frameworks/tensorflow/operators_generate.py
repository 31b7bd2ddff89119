"""Ranges and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _steps(start: Any, limit: Any, delta: Any) -> Any:
    """Values from start, exclusive of limit, in steps of delta; files have vectors of one number for these."""
    start, limit, delta = (value if value.shape.rank == 0 else tf.reshape(value, []) for value in (start, limit, delta))
    if start.dtype in (tf.int32, tf.int64):
        return tf.range(start, limit, delta)
    if start.dtype.is_integer:
        return tf.cast(tf.range(*(tf.cast(value, tf.int32) for value in (start, limit, delta))), start.dtype)
    count = tf.cast(tf.maximum(tf.math.ceil((limit - start) / delta), 0), tf.int64)
    return start + tf.cast(tf.range(count), start.dtype) * delta


@operator("Range")
def _range(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.function(_steps)}({', '.join(map(emitter.name, node.inputs))})")
