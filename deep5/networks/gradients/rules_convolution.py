"""Gradient of convolution."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.window import Window, attribute

__all__ = ["RULES"]


def _conv(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Y = X * W + bias, over any number of spatial axes.

    dX is the transposed convolution of dY with W. dW is the convolution of X with dY where batch and channels have
    changed places and strides have become dilations; dbias sums dY over batch and space.

    References:
        Dumoulin and Visin, A guide to convolution arithmetic for deep learning, arXiv:1603.07285, chapter 4.
    """
    x, w = operands(node, 2)
    (dy, *_) = grads
    rank = len(extents(w)) - 2
    window = Window.of(node, rank)
    if window.auto_pad != "NOTSET":
        raise refuse(node, f"got auto_pad={window.auto_pad!r}; allowed: NOTSET; remedy: write the pads out")
    if attribute(node, "group", 1) != 1:
        raise refuse(node, f"got group={attribute(node, 'group')}; allowed: 1")
    dx = _by_input(b, node, dy, window) if b.wants(x) else None
    dw = _by_weights(b, node, dy, window) if b.wants(w) else None
    dbias = None
    if len(node.inputs) > 2 and b.wants(node.inputs[2]):
        dbias = b.op("ReduceSum", dy, b.ints(0, *range(2, rank + 2)), keepdims=0)
    return [dx, dw, dbias][: len(node.inputs)]


def _by_input(b: Backward, node: ir.Node, dy: ir.Value | None, window: Window) -> ir.Value:
    x, w = operands(node, 2)
    kernel, space = extents(w)[2:], extents(x)[2:]
    output_padding = []
    for axis, stride in enumerate(window.strides):
        extent, size = space[axis], kernel[axis]
        if stride == 1:
            output_padding.append(0)
        elif isinstance(extent, int) and isinstance(size, int):
            # What the last stride left over at the end of the input: its gradient is zero or comes from padding.
            span = window.dilations[axis] * (size - 1) + 1
            output_padding.append((extent + window.begins[axis] + window.ends[axis] - span) % stride)
        else:
            raise refuse(node, f"with stride {stride} the input's spatial extents must be fixed, got {space}")
    return b.op(
        "ConvTranspose",
        dy,
        w,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.begins, *window.ends],
        output_padding=output_padding,
    )


def _by_weights(b: Backward, node: ir.Node, dy: ir.Value | None, window: Window) -> ir.Value:
    x, w = operands(node, 2)
    rank = len(window.strides)
    swap = [1, 0, *range(2, rank + 2)]
    # (C, N, *space) convolved with (M, N, *output): every element of the result is one element of the kernel.
    dw = b.op(
        "Conv",
        b.op("Transpose", x, perm=swap),
        b.op("Transpose", dy, perm=swap),
        strides=list(window.dilations),
        dilations=list(window.strides),
        pads=[*window.begins, *window.ends],
    )
    if any(stride != 1 for stride in window.strides):
        # The input beyond the last window yields kernel elements that do not exist.
        axes = b.ints(*range(2, rank + 2))
        fixed = [size for size in extents(w)[2:] if isinstance(size, int)]
        ends = b.ints(*fixed) if len(fixed) == rank else b.op("Shape", w, start=2)
        dw = b.op("Slice", dw, b.ints(*[0] * rank), ends, axes)
    return b.op("Transpose", dw, perm=swap)


RULES: dict[str, Rule] = {"Conv": _conv}
