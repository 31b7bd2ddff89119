"""Gradients of pooling."""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.rules_convolution import fitted, resolved
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["RULES"]


def _average_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = mean of x over a window of K elements: every element of the window receives dy / K.

    K excludes elements of the window beyond the padding, and the padding itself unless `count_include_pad`.

    References:
        ONNX, AveragePool-19.
    """
    (x,), (dy, *_) = operands(node, 1), grads
    space = extents(x)[2:]
    window = resolved(node, x, tuple(attribute(node, "kernel_shape")))
    fixed = tuple(extent for extent in space if isinstance(extent, int))
    rests = [0] * len(space)
    if len(fixed) == len(space):
        spans = window.spans(window.kernel)
        sides = zip(window.begins, window.ends, strict=True)
        rests = [
            (e + begin + end - span) % s
            for e, (begin, end), span, s in zip(fixed, sides, spans, window.strides, strict=True)
        ]
    elif window.ceil or window.padded or any(s != 1 for s in window.strides):
        return [_spread_wide(b, _shared(b, node, dy, x, window), x, window)]
    if (window.ceil and any(rests)) or (window.padded and not attribute(node, "count_include_pad", 0)):
        return [_spread_wide(b, _shared(b, node, dy, x, window), x, window)]
    share = b.scaled(dy, 1.0 / math.prod(window.kernel), x)
    if window.strides == window.kernel and not window.padded and set(window.dilations) == {1}:
        return [_spread(b, share, window, rests)]
    return [_touched(b, share, x, window, rests)]


def _shared(b: Backward, node: ir.Node, dy: ir.Value | None, x: ir.Value, window: Window) -> ir.Value | None:
    """dy divided by the number of elements of each window."""
    include, rank = attribute(node, "count_include_pad", 0), len(window.kernel)
    for axis, (size, stride, dilation) in enumerate(zip(window.kernel, window.strides, window.dilations, strict=True)):
        first, behind = window.begins[axis], window.ends[axis] if include else 0
        windows, extent = (
            b.op("Squeeze", b.op("Shape", value, start=axis + 2, end=axis + 3)) for value in (node.outputs[0], x)
        )
        start = b.op("Mul", b.op("Range", b.integer(0), windows, b.integer(1)), b.integer(stride))
        places = b.op("Sub", b.ints(*(dilation * k for k in range(size))), b.integer(first))
        at = b.op("Add", b.op("Unsqueeze", start, b.ints(1)), places)
        inside = b.op(
            "And",
            b.op("GreaterOrEqual", at, b.integer(-first if include else 0)),
            b.op("Less", at, b.op("Add", extent, b.integer(behind))),
        )
        count = b.op("ReduceSum", b.op("Cast", inside, to=x.dtype), b.ints(1), keepdims=0)
        count = b.op("Max", count, b.like(1.0, x))  # a window of only padding, whose mean is 0
        dy = b.op("Div", dy, b.op("Reshape", count, b.ints(-1, *[1] * (rank - axis - 1))))
    return dy


def _spread_wide(b: Backward, share: ir.Value | None, x: ir.Value, window: Window) -> ir.Value:
    """Windows of any kind: the region that they touch, cropped or padded to x."""
    wide = replace(window, begins=(0,) * len(window.kernel), ends=(0,) * len(window.kernel))
    return fitted(b, _touched(b, share, x, wide, [0] * len(window.kernel)), x, window.begins)


def _spread(b: Backward, share: ir.Value | None, window: Window, rests: list[int]) -> ir.Value:
    """Windows that tile the input: repeat each element over its window, with zeros after the last one."""
    rank = len(window.kernel)
    # ONNX Runtime's fastest operator for repeating elements along two axes, by a factor of up to 25.
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


def _touched(b: Backward, share: ir.Value | None, x: ir.Value, window: Window, rests: list[int]) -> ir.Value:
    """A depthwise transposed convolution with ones: for each element, the sum over its windows."""
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
    return b.op("Reshape", spread, b.op("Concat", b.op("Shape", share, end=2), b.op("Shape", spread, start=2), axis=0))


def _covered(window: Window, x: ir.Value, y: ir.Value) -> bool:
    """Whether the windows reach the last element and no padding: MaxUnpool counts indices in what they cover."""
    sizes = zip(extents(x)[2:], extents(y)[2:], window.strides, window.spans(window.kernel), strict=True)
    return not window.padded and all(
        isinstance(size, int) and isinstance(count, int) and size == (count - 1) * stride + span
        for size, count, stride, span in sizes
    )


def _max_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max of x over a window: dy goes to the element that the forward pass selected, the first one in a tie.

    References:
        ONNX, MaxPool-12. Zeiler and Fergus, Visualizing and understanding convolutional networks, ECCV 2014, section
        2.1: the selected element is stored.
    """
    (x,), (dy, second) = operands(node, 1), (*grads, None)[:2]
    if second is not None:
        raise refuse(node, "the loss depends on its Indices")
    if attribute(node, "storage_order", 0):  # no other operator counts in this order: recompute in theirs
        settings = {name: value for name, value in node.attributes.items() if name != "storage_order"}
        indices = b.ops("MaxPool", 2, x, **{name: value.value for name, value in settings.items()})[1]
    else:
        indices = b.output(node, 1, node.outputs[0].shape, ir.DataType.INT64)
    window = Window.of(node, len(extents(x)) - 2)
    apart = all(t >= span for t, span in zip(window.strides, window.spans(window.kernel), strict=True))
    if (
        apart and x.dtype == ir.DataType.FLOAT and _covered(window, x, node.outputs[0])
    ):  # ONNX Runtime supports only float32
        return [b.op("MaxUnpool", dy, indices, b.shape(x), kernel_shape=window.kernel, strides=window.strides)]
    size = b.op("Reshape", b.op("Size", x), b.ints(1))
    # Indices count over the whole tensor; overlapping windows may select an element more than once, hence add.
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


def _global_max_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = max of x over all of space: elements that equal y share dy equally, as for ReduceMax.

    References:
        ONNX, GlobalMaxPool-1.
    """
    (x,), (y,) = operands(node, 1), node.outputs
    chosen = b.op("Cast", b.op("Equal", x, y), to=x.dtype)
    total = b.op("ReduceSum", chosen, b.ints(*range(2, len(extents(x)))), keepdims=1)
    return [b.op("Mul", chosen, b.op("Div", grads[0], total))]


def _lp_slopes(b: Backward, node: ir.Node, dy: ir.Value | None) -> tuple[ir.Value | None, ir.Value]:
    """For y = (sum of |x|^p)^(1/p): dy y^(1 - p), 0 where y = 0, and sign(x) |x|^(p - 1)."""
    (x,), (y,), p = operands(node, 1), node.outputs, attribute(node, "p", 2)
    if p == 1:
        return dy, b.op("Sign", x)
    zero = b.like(0.0, x)
    if p == 2:
        power, slope = y, x
    else:
        power = b.op("Pow", y, b.like(float(p - 1), x))
        slope = b.op("Mul", b.op("Sign", x), b.op("Pow", b.op("Abs", x), b.like(float(p - 1), x)))
    return b.op("Where", b.op("Equal", y, zero), zero, b.op("Div", dy, power)), slope


def _lp_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = (sum of |x|^p over a window)^(1/p): dx = sign(x) |x|^(p - 1) sum of dy y^(1 - p) over the windows of x.

    References:
        ONNX, LpPool-18.
    """
    (x,) = operands(node, 1)
    window = resolved(node, x, tuple(attribute(node, "kernel_shape")))
    share, slope = _lp_slopes(b, node, grads[0])
    return [b.op("Mul", slope, _spread_wide(b, share, x, window))]


def _global_lp_pool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = (sum of |x|^p over all of space)^(1/p): dx = sign(x) |x|^(p - 1) dy y^(1 - p).

    References:
        ONNX, GlobalLpPool-2.
    """
    share, slope = _lp_slopes(b, node, grads[0])
    return [b.op("Mul", slope, share)]


def _max_unpool(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x at its indices in the flattened y, zeros elsewhere: dx is dy there.

    References:
        ONNX, MaxUnpool-11.
    """
    _, indices = operands(node, 2)
    dx = b.op("Gather", b.op("Reshape", grads[0], b.ints(-1)), indices, axis=0)
    return [dx, *[None] * (len(node.inputs) - 1)]


RULES: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global_max_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
