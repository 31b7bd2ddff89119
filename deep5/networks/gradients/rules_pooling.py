"""Gradients of pooling."""

from __future__ import annotations

import math

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.window import Window, attribute

__all__ = ["RULES"]


def _average_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = mean of x over a window of K elements: every element of the window receives dy / K.

    References:
        ONNX, AveragePool-19.
    """
    (x,), (dy, *_) = operands(node, 1), grads
    space = extents(x)[2:]
    window = Window.of(node, len(space))
    if window.auto_pad not in ("NOTSET", "VALID"):
        raise refuse(node, f"got auto_pad={window.auto_pad!r}; allowed: NOTSET, VALID; remedy: write the pads out")
    if window.padded and not attribute(node, "count_include_pad", 0):
        raise refuse(
            node, "padding that does not count (count_include_pad=0); allowed: no pads, or count_include_pad=1"
        )
    fixed = tuple(extent for extent in space if isinstance(extent, int))
    if len(fixed) != len(space) and (window.ceil or window.padded or any(s != 1 for s in window.strides)):
        raise refuse(node, f"the input's spatial extents must be fixed, got {space}")
    rests = [0] * len(space)
    if len(fixed) == len(space):
        spans = window.spans(window.kernel)
        sides = zip(window.begins, window.ends, strict=True)
        rests = [
            (e + begin + end - span) % s
            for e, (begin, end), span, s in zip(fixed, sides, spans, window.strides, strict=True)
        ]
        if window.ceil and any(rests):
            raise refuse(node, "ceil_mode=1 with a last window that is not full; allowed: ceil_mode=0")
    share = b.scaled(dy, 1.0 / math.prod(window.kernel), x)
    if window.strides == window.kernel and not window.padded and set(window.dilations) == {1}:
        return [_spread(b, share, window, rests)]
    return [_spread_overlapping(b, share, x, window, rests)]


def _spread(b: Backward, share: ir.Value | None, window: Window, rests: list[int]) -> ir.Value:
    """Windows that tile the input: repeat each element over its window, zeros behind the last one."""
    rank = len(window.kernel)
    # Of the operators that repeat elements along two axes, ONNX Runtime is fastest at this one, by up to 25 times.
    spread = b.op(
        "Resize",
        share,
        None,
        b.floats(1.0, 1.0, *window.kernel),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return b.op("Pad", spread, b.ints(*[0] * (rank + 2), 0, 0, *rests)) if any(rests) else spread


def _spread_overlapping(b: Backward, share: ir.Value | None, x: ir.Value, window: Window, rests: list[int]) -> ir.Value:
    """Windows that overlap or leave gaps: each channel alone through a transposed convolution with ones."""
    rank = len(window.kernel)
    ones = b.op("Expand", b.like(1.0, x), b.ints(1, 1, *window.kernel))
    space = b.op("Shape", share, start=2)
    planes = b.op("Reshape", share, b.op("Concat", b.ints(-1, 1), space, axis=0))
    spread = b.op(
        "ConvTranspose",
        planes,
        ones,
        kernel_shape=list(window.kernel),
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.begins, *window.ends] if window.padded else [0] * (2 * rank),
        output_padding=rests,
    )
    return b.op("Reshape", spread, b.shape(x))


def _max_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max of x over a window: dy goes to the element that the forward pass chose, the first where several tie.

    References:
        ONNX, MaxPool-12. Zeiler and Fergus, Visualizing and understanding convolutional networks, ECCV 2014, section
        2.1: the element that was chosen is remembered.
    """
    (x,), (dy, second) = operands(node, 1), (*grads, None)[:2]
    if second is not None:
        raise refuse(node, "the loss depends on its Indices")
    if attribute(node, "storage_order", 0):
        raise refuse(node, "got storage_order=1; allowed: 0")
    indices = b.output(node, 1, node.outputs[0].shape, ir.DataType.INT64)
    window = Window.of(node, len(extents(x)) - 2)
    apart = all(t >= span for t, span in zip(window.strides, window.spans(window.kernel), strict=True))
    if apart and x.dtype == ir.DataType.FLOAT:  # ONNX Runtime has it in float32 alone
        return [b.op("MaxUnpool", dy, indices, b.shape(x), kernel_shape=window.kernel, strides=window.strides)]
    size = b.op("Reshape", b.op("Size", x), b.ints(1))
    # Indices count over the whole tensor; overlapping windows may choose one element more than once, hence add.
    zeros = b.op("Expand", b.like(0.0, x), size)
    flat, chosen = b.op("Reshape", dy, b.ints(-1)), b.op("Reshape", indices, b.ints(-1))
    return [b.op("Reshape", b.op("ScatterElements", zeros, chosen, flat, axis=0, reduction="add"), b.shape(x))]


def _global_average_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = mean of x over all of space: every element receives dy / (number of elements).

    References:
        ONNX, GlobalAveragePool-1.
    """
    (x,), (dy, *_) = operands(node, 1), grads
    space = [extent for extent in extents(x)[2:] if isinstance(extent, int)]
    if len(space) == len(extents(x)) - 2:
        share = b.scaled(dy, 1.0 / math.prod(space), x)
    else:
        count = b.op("ReduceProd", b.op("Shape", x, start=2), keepdims=0)
        share = b.op("Div", dy, b.op("Cast", count, to=x.dtype))
    return [b.op("Expand", share, b.shape(x))]


RULES: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "MaxPool": _max_pool,
}
