"""Operators on the bits of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, elementwise, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emit import Emitter

__all__: list[str] = []

for _name, _function in {
    "BitwiseAnd": tf.bitwise.bitwise_and,
    "BitwiseNot": tf.bitwise.invert,
    "BitwiseOr": tf.bitwise.bitwise_or,
    "BitwiseXor": tf.bitwise.bitwise_xor,
}.items():
    operator(_name, rankless=True)(lambda emitter, node, function=_function: elementwise(emitter, node, function))


def _shifted(x: Any, count: Any, left: bool) -> Any:
    """All bits are gone where as many are asked for; the kernels leave that to the processor."""
    y = (tf.bitwise.left_shift if left else tf.bitwise.right_shift)(x, count)
    return tf.where(count < 8 * x.dtype.size, y, tf.zeros((), x.dtype))


@operator("BitShift", rankless=True)
def _bit_shift(emitter: Emitter, node: ir.Node) -> None:
    elementwise(emitter, node, _shifted, str(attribute(node, "direction") == "LEFT"))


def _check_bit_cast(node: ir.Node) -> str | None:
    have, want = node.inputs[0].dtype, node.outputs[0].dtype  # type: ignore[union-attr]  # types were inferred
    if ir.DataType.BOOL in (have, want):
        return "the bits of truth values"
    return None if have.bitwidth == want.bitwidth else "another number of bits"  # type: ignore[union-attr]  # as above


@operator("BitCast", _check_bit_cast)
def _bit_cast(emitter: Emitter, node: ir.Node) -> None:
    elementwise(emitter, node, tf.bitcast, emitter.dtype(node.outputs[0]))
