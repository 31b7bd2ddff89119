"""Bitwise operators, shifts and casts of bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, elementwise, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _bitwise(op_type: str, function: Callable[..., Any]) -> None:
    def emit(emitter: Emitter, node: ir.Node) -> None:
        elementwise(emitter, node, function)

    operator(op_type, rankless=True)(emit)


_bitwise("BitwiseAnd", tf.bitwise.bitwise_and)
_bitwise("BitwiseNot", tf.bitwise.invert)
_bitwise("BitwiseOr", tf.bitwise.bitwise_or)
_bitwise("BitwiseXor", tf.bitwise.bitwise_xor)


def _shifted(x: Any, count: Any, left: bool) -> Any:
    """Shifts; a count of the bit width or more leaves only the sign. The kernels' own result depends on the CPU."""
    most = tf.constant(8 * x.dtype.size - 1, x.dtype)
    beyond = (count > most) if x.dtype.is_unsigned else (count > most) | (count < 0)
    y = (tf.bitwise.left_shift if left else tf.bitwise.right_shift)(x, tf.where(beyond, most, count))
    return y if not left and not x.dtype.is_unsigned else tf.where(beyond, tf.zeros((), x.dtype), y)


@operator("BitShift", rankless=True)
def _bit_shift(emitter: Emitter, node: ir.Node) -> None:
    elementwise(emitter, node, _shifted, str(attribute(node, "direction") == "LEFT"))


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
