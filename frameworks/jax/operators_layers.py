"""Operators with weights, windows and statistics, and the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import onnx_ir as ir

from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.operators_windows import max_pool_with_places
from deep5.frameworks.jax.table import attribute, axis, given, number, operator, rank, spare
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


def _check_window(node: ir.Node) -> str | None:
    axes = rank(node) - 2
    return None if axes in (1, 2, 3) else f"{axes} spatial axes; 1 to 3 are supported"


@operator("Conv", _check_window)
def _conv(emitter: Emitter, node: ir.Node) -> None:
    weight, stored = emitter.weight(node.inputs[1])
    x, bias = emitter.last(node.inputs[0], rank(node)), emitter.plain(given(node, 2))
    window = emitter.bind(Window.of(node, rank(node) - 2))
    how = f"{window}, {attribute(node, 'group', 1)}, {stored}"
    text = f"{emitter.bind(layers.convolution)}({x}, {weight}, {bias}, {how})"
    emitter.assign(node.outputs[0], text, last=True)


@operator("AveragePool", _check_window)
def _average_pool(emitter: Emitter, node: ir.Node) -> None:
    x, window = emitter.last(node.inputs[0], rank(node)), emitter.bind(Window.of(node, rank(node) - 2))
    counted = bool(attribute(node, "count_include_pad", 0))
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.average_pool)}({x}, {window}, {counted})", last=True)


@operator("MaxPool", _check_window)
def _max_pool(emitter: Emitter, node: ir.Node) -> None:
    x, window = emitter.last(node.inputs[0], rank(node)), emitter.bind(Window.of(node, rank(node) - 2))
    if len(node.outputs) > 1 and node.outputs[1].name:
        made, by_columns = emitter.new(), bool(attribute(node, "storage_order", 0))
        emitter.line(f"{made} = {emitter.bind(max_pool_with_places)}({x}, {window}, {by_columns})")
        for index, value in enumerate(node.outputs):
            emitter.assign(value, f"{made}[{index}]", last=True)
        return
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.max_pool)}({x}, {window})", last=True)


def _check_global(node: ir.Node) -> str | None:
    return None if rank(node) > 2 else "no spatial axes"


@operator("GlobalAveragePool", _check_global)
def _global_average_pool(emitter: Emitter, node: ir.Node) -> None:
    x, axes = emitter.last(node.inputs[0], rank(node)), tuple(range(1, rank(node) - 1))
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.mean)}({x}, {axes}, keepdims=True)", last=True)


@operator("GlobalMaxPool", _check_global)
def _global_max_pool(emitter: Emitter, node: ir.Node) -> None:
    x, axes = emitter.last(node.inputs[0], rank(node)), tuple(range(1, rank(node) - 1))
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.max)}({x}, {axes}, keepdims=True)", last=True)


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


@operator("LRN", _check_global)
def _lrn(emitter: Emitter, node: ir.Node) -> None:
    alpha, beta, bias = (number(node, *each) for each in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    how = f"{emitter.last(node.inputs[0], rank(node))}, {attribute(node, 'size', 1)}, {alpha}, {beta}, {bias}"
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.local_response_normalization)}({how})", last=True)


_REDUCTIONS = {"mean": "'mean'", "none": "'none'", "sum": "'sum'"}


def _loss(emitter: Emitter, node: ir.Node) -> str:
    """The arguments of both losses."""
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(3))
    return f"{inputs}, {attribute(node, 'ignore_index', None)}, {_REDUCTIONS[attribute(node, 'reduction', 'mean')]}"


@operator("SoftmaxCrossEntropyLoss")
def _cross_entropy(emitter: Emitter, node: ir.Node) -> None:
    results = emitter.new()
    emitter.line(f"{results} = {emitter.bind(layers.cross_entropy)}({_loss(emitter, node)})")
    for index, value in enumerate(node.outputs):
        if value.name:
            emitter.assign(value, f"{results}[{index}]")


@operator("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.negative_log_likelihood)}({_loss(emitter, node)})")
