"""Operators that move elements, and those that read or compute shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import onnx_ir as ir

from deep5.frameworks.jax.composites import emit_of
from deep5.frameworks.jax.table import operator, rank
from deep5.networks.constants import constant_value
from deep5.networks.kernels.operators import COMPOSITES

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Emits nothing: each reader binds the constant."""


@operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> None:
    value, last = node.inputs[0], emitter.is_last(node.inputs[0])
    text = emitter.last(value, rank(node)) if last else emitter.plain(value)
    emitter.assign(node.outputs[0], text, last=last)


@operator("Flatten", override="an image that a product reads keeps its channels last, as the stored weight")
def _flatten(emitter: Emitter, node: ir.Node) -> None:
    if node.outputs[0].name not in emitter.flat:
        emit_of(COMPOSITES["Flatten"])(emitter, node)
        return
    x = emitter.last(node.inputs[0], rank(node))
    size = " * ".join(f"{x}.shape[{at}]" for at in range(1, rank(node)))
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.reshape)}({x}, ({x}.shape[0], {size}))")
