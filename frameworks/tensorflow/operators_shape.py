"""Operators that move elements, and those that read or compute shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.order import onnx_order
from deep5.frameworks.tensorflow.table import (
    attribute,
    extents,
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


@operator("Transpose", rankless=True, override="another order of the axes instead of a copy: nothing is computed")
def _transpose(emitter: Emitter, node: ir.Node) -> None:
    if node.inputs[0] is None or node.inputs[0].shape is None:
        permutation = attribute(node, "perm", None)
        given = None if permutation is None else list(permutation)
        emitter.assign(node, f"{emitter.function(tf.transpose)}({emitter.name(node.inputs[0])}, {given})")
        return
    emitter.alias(node, tuple(attribute(node, "perm", range(rank(node))[::-1])))
