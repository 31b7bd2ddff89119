"""Gradient of the transposed convolution, which is a convolution."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.rules_convolution import by_weights
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["RULES"]


class _Cut(NamedTuple):
    """How much a node crops before and after the region that its kernels write to; negative where it adds zeros."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]


def _cut(node: ir.Node, x: ir.Value, w: ir.Value, window: Window) -> _Cut:
    """Computed from `pads` and `output_padding`, or from the shape that `auto_pad` or `output_shape` requires.

    References:
        ONNX, ConvTranspose-11: the equations of `total_padding`.
    """
    rank = len(window.strides)
    more, requested = attribute(node, "output_padding", (0,) * rank), attribute(node, "output_shape", ())
    if not requested and window.auto_pad in ("NOTSET", "VALID"):
        padded = window.auto_pad == "NOTSET"
        sides = (window.begins, window.ends) if padded else ((0,) * rank, (0,) * rank)
        return _Cut(sides[0], tuple(end - extra for end, extra in zip(sides[1], more, strict=True)))
    space = [extent for extent in extents(x)[2:] if isinstance(extent, int)]
    kernel = [extent for extent in extents(w)[2:] if isinstance(extent, int)]
    if len(space) < rank or len(kernel) < rank:
        raise refuse(node, f"with auto_pad or output_shape the spatial dimensions must be fixed, got {extents(x)}")
    spans = window.spans(tuple(kernel))
    wanted = requested[-rank:] if requested else [e * t for e, t in zip(space, window.strides, strict=True)]
    begins, ends = [], []
    for axis, (extent, stride, span) in enumerate(zip(space, window.strides, spans, strict=True)):
        touched = stride * (extent - 1) + span
        total = max(touched + more[axis] - wanted[axis], 0)
        small, large = total // 2, total - total // 2
        begin = small if window.auto_pad == "SAME_UPPER" else large
        begins.append(begin)
        ends.append(touched - begin - wanted[axis])
    return _Cut(tuple(begins), tuple(ends))


def _conv_transpose(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Y = X *^T W + bias: dX is the convolution of dY with W, and dW is the dW of that convolution, with dY as its
    input and X as its output gradient.

    References:
        ONNX, ConvTranspose-11. Dumoulin and Visin, A guide to convolution arithmetic for deep learning,
        arXiv:1603.07285, chapter 4.
    """
    (x, w), dy = operands(node, 2), grads[0]
    rank = len(extents(w)) - 2
    window = Window.of(node, rank)
    cut = _cut(node, x, w, window)
    dx = dw = dbias = None
    if len(node.inputs) > 2 and b.wants(node.inputs[2]):
        dbias = b.op("ReduceSum", dy, b.ints(0, *range(2, rank + 2)), keepdims=0)
    if b.wants(x) or b.wants(w):
        touched = b.op("Pad", dy, b.ints(0, 0, *cut.begins, 0, 0, *cut.ends)) if any(cut.begins + cut.ends) else dy
        plain = Window(
            kernel=(), strides=window.strides, dilations=window.dilations, begins=(0,) * rank, ends=(0,) * rank
        )
        if b.wants(x):
            dx = b.op(
                "Conv",
                touched,
                w,
                strides=list(window.strides),
                dilations=list(window.dilations),
                group=attribute(node, "group", 1),
            )
        if b.wants(w) and touched is not None:
            batch_last = b.op("Transpose", x, perm=[*range(1, rank + 2), 0])
            dw = by_weights(b, node, (touched, w, x), batch_last, plain)
    return [dx, dw, dbias][: len(node.inputs)]


RULES: dict[str, Rule] = {"ConvTranspose": _conv_transpose}
