"""Operators with weights, windows and statistics, and the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.table import attribute, call, given, number, operator, rank, spare
from deep5.networks.kernels.reducing import check_space
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


_LRN = "1.4 and 2.5 times at (8, 32, 28, 28)"
_FOLD = "1.9 and 1.1 times at (8, 288, 676)"


@operator("LRN", check_space, override=_LRN)
def _lrn(emitter: Emitter, node: ir.Node) -> None:
    alpha, beta, bias = (number(node, *each) for each in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    how = f"{emitter.last(node.inputs[0], rank(node))}, {attribute(node, 'size', 1)}, {alpha}, {beta}, {bias}"
    emitter.assign(node.outputs[0], f"{emitter.bind(layers.local_response_normalization)}({how})", last=True)


def _folded(x: Any, image: tuple[int, ...], block: tuple[int, ...], strides: Any, dilations: Any, pads: Any) -> Any:
    ones = (1,) * len(image)
    pads = pads or (0,) * (2 * len(image))
    begins, ends = pads[: len(image)], pads[len(image) :]
    window = Window(kernel=block, strides=strides or ones, dilations=dilations or ones, begins=begins, ends=ends)
    return layers.columns_to_image(x, image, window)


@operator("Col2Im", host=(1, 2), override=_FOLD)
def _col2im(emitter: Emitter, node: ir.Node) -> None:
    how = (repr(tuple(attribute(node, name, ()))) for name in ("strides", "dilations", "pads"))
    call(emitter, node, _folded, *how, settings=(1, 2))
