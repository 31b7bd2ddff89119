"""Operators with weights, windows and statistics, and the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.table import attribute, axis, given, number, operator, rank, spare
from deep5.networks.kernels.windows import check_window
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []


@operator("Gemm")
def _gemm(emitter: Emitter, node: ir.Node) -> None:
    a, c = emitter.plain(node.inputs[0]), emitter.plain(given(node, 2))
    b, stored = emitter.weight(node.inputs[1])
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    turns = f"{bool(attribute(node, 'transA', 0))}, {bool(attribute(node, 'transB', 0)) and not stored}"
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.gemm)}({a}, {b}, {c}, {alpha}, {beta}, {turns})")


@operator("Conv", check_window)
def _conv(emitter: Emitter, node: ir.Node) -> None:
    weight, stored = emitter.weight(node.inputs[1])
    x, bias = emitter.last(node.inputs[0], rank(node)), emitter.plain(given(node, 2))
    window = emitter.bind(Window.of(node, rank(node) - 2))
    how = f"{window}, {attribute(node, 'group', 1)}, {stored}"
    text = f"{emitter.bind(layers.convolution)}({x}, {weight}, {bias}, {how})"
    emitter.assign(node.outputs[0], text, last=True)


def _check_batch_norm(node: ir.Node) -> str | None:
    if rank(node) < 2:
        return "no axis of channels"
    return None if attribute(node, "training_mode", 0) else spare(node)


@operator("BatchNormalization", _check_batch_norm)
def _batch_normalization(emitter: Emitter, node: ir.Node) -> None:
    axes = rank(node)
    inputs = ", ".join([emitter.last(node.inputs[0], axes), *(emitter.plain(value) for value in node.inputs[1:])])
    epsilon, momentum = number(node, "epsilon", 1e-5), number(node, "momentum", 0.9)
    if not attribute(node, "training_mode", 0):
        text = f"{emitter.bind(layers.batch_normalization)}({inputs}, {epsilon})"
        emitter.assign(node.outputs[0], text, last=axes > 2)
        return
    results, function = emitter.new(), emitter.bind(emitter.batch_norm)
    emitter.line(f"{results} = {function}({inputs}, {epsilon}, {momentum})")
    for index, value in enumerate(node.outputs):
        if value.name:
            emitter.assign(value, f"{results}[{index}]", last=axes > 2 and not index)


@operator("LayerNormalization", spare)
def _layer_normalization(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(3))
    how = f"{axis(node, -1)}, {number(node, 'epsilon', 1e-5)}"
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.layer_normalization)}({inputs}, {how})")
