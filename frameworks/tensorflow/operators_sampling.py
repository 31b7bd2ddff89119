"""Non-maximum suppression of boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, extents, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


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


_BOXES = "5.0 times for 800 boxes, 9.3 times for those of 20 classes"


@operator("NonMaxSuppression", _check_boxes, override=_BOXES)
def _non_max_suppression(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, None, None, None)[:5])
    emitter.assign(node, f"{emitter.function(_kept_boxes)}({inputs}, {bool(attribute(node, 'center_point_box', 0))})")
