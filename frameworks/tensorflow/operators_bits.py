"""Bitwise operators, shifts and casts of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import elementwise, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _check_bit_cast(node: ir.Node) -> str | None:
    have, want = node.inputs[0].dtype, node.outputs[0].dtype  # type: ignore[union-attr]  # types were inferred
    return None if have.bitwidth == want.bitwidth else "another number of bits"  # type: ignore[union-attr]  # as above


def _same_bits(x: Any, dtype: Any) -> Any:
    """Bitcast; booleans are bytes of 0 and 1, and are True where the byte is not 0."""
    if tf.bool in (x.dtype, dtype):
        return (
            tf.cast(tf.bitcast(x, tf.uint8), dtype) if x.dtype != tf.bool else tf.bitcast(tf.cast(x, tf.uint8), dtype)
        )
    return tf.bitcast(x, dtype)


@operator("BitCast", _check_bit_cast)
def _bit_cast(emitter: Emitter, node: ir.Node) -> None:
    elementwise(emitter, node, _same_bits, emitter.dtype(node.outputs[0]))
