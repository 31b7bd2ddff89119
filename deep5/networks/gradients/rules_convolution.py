"""Gradient of convolution, as products of matrices.

All variants here compute the same result. The choice follows the time of ONNX Runtime on one thread for batches of 8
and the layers of LeNet and ResNet-18. With the batch innermost in memory, windows are copied in long contiguous runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Extents, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.long_windows import long_axis, windows_along
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["RULES", "by_weights", "fitted", "resolved"]

# From these sizes on, one product per kernel element is faster than one product with all windows copied side by side,
# which no longer fit the cache.
_MANY_CHANNELS, _MANY_WINDOWS = 32, 128
# Up to this size, the transposed convolution of one image is such a small product that the whole batch is one product.
_FEW_WINDOWS = 32
# Including the batch as an axis: engines support transposed convolutions over at most three axes.
_MOST_AXES = 3


def _conv(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Y = X * W + bias, over any number of spatial axes, with groups of channels down to one channel each.

    dX is the transposed convolution of dY with W, in the same groups. dW[m, c, k] sums
    dY[n, m, o] X[n, c', stride o + dilation k - begin] over n and o, where c' is channel c of the group of m;
    dbias sums dY over batch and space.

    References:
        ONNX, Conv-11: the definition, with groups. Dumoulin and Visin, A guide to convolution arithmetic for deep
        learning, arXiv:1603.07285, chapter 4: dX.
    """
    x, w = operands(node, 2)
    (dy, *_) = grads
    rank = len(extents(w)) - 2
    window = resolved(node, x, extents(w)[2:])
    windows = [extent for extent in extents(node.outputs[0])[2:] if isinstance(extent, int)]
    together = len(windows) == rank < _MOST_AXES and math.prod(windows) <= _FEW_WINDOWS
    batch_last = None
    if b.wants(w) or together:
        batch_last = b.op("Transpose", dy, perm=[*range(1, rank + 2), 0])
    dx = dw = dbias = None
    if b.wants(x):
        dx = _by_input(b, node, batch_last if together else dy, window, together=together)
    if b.wants(w):
        dw = by_weights(b, node, (x, w, node.outputs[0]), batch_last, window)
    if len(node.inputs) > 2 and b.wants(node.inputs[2]):
        dbias = b.op("ReduceSum", dy, b.ints(0, *range(2, rank + 2)), keepdims=0)
    return [dx, dw, dbias][: len(node.inputs)]


def _by_input(b: Backward, node: ir.Node, dy: ir.Value | None, window: Window, *, together: bool) -> ir.Value:
    """dX; `together`: the batch is the last axis of dy, and becomes an additional spatial axis."""
    x, w = operands(node, 2)
    kernel, space = extents(w)[2:], extents(x)[2:]
    output_padding = []
    for axis, stride in enumerate(window.strides):
        extent, size = space[axis], kernel[axis]
        if stride == 1:
            output_padding.append(0)
        elif isinstance(extent, int) and isinstance(size, int):
            # The elements that the last stride leaves over at the end of the input: their gradient is zero or comes
            # from padding.
            span = window.dilations[axis] * (size - 1) + 1
            output_padding.append((extent + window.begins[axis] + window.ends[axis] - span) % stride)
        else:
            return _by_input_at_run_time(b, node, dy, window)
    one, none = ([1], [0]) if together else ([], [])
    rank = len(window.strides)
    if together:
        dy, w = b.op("Unsqueeze", dy, b.ints(0)), b.op("Unsqueeze", w, b.ints(rank + 2))
    dx = b.op(
        "ConvTranspose",
        dy,
        w,
        strides=[*window.strides, *one],
        dilations=[*window.dilations, *one],
        pads=[*window.begins, *none, *window.ends, *none],
        output_padding=[*output_padding, *none],
        group=attribute(node, "group", 1),
    )
    return b.op("Transpose", b.op("Squeeze", dx, b.ints(0)), perm=[rank + 1, *range(rank + 1)]) if together else dx


def _by_input_at_run_time(b: Backward, node: ir.Node, dy: ir.Value | None, window: Window) -> ir.Value:
    """dX if the remainder of the last stride is unknown: over all that windows touch, cropped or padded to X."""
    x, w = operands(node, 2)
    touched = b.op(
        "ConvTranspose",
        dy,
        w,
        strides=list(window.strides),
        dilations=list(window.dilations),
        group=attribute(node, "group", 1),
    )
    return fitted(b, touched, x, window.begins)


def fitted(b: Backward, touched: ir.Value, x: ir.Value, begins: tuple[int, ...]) -> ir.Value:
    """The region that windows touch, in the spatial shape of x: without the leading padding, cropped or zero-padded at
    the end.
    """
    behind = b.op("Sub", b.op("Shape", x, start=2), b.op("Shape", touched, start=2))
    if any(begins):
        behind = b.op("Add", behind, b.ints(*begins))
    pads = b.op("Concat", b.ints(0, 0, *(-begin for begin in begins), 0, 0), behind, axis=0)
    return b.op("Pad", touched, pads)


def resolved(node: ir.Node, x: ir.Value, kernel: Extents) -> Window:
    """The window of a node, with `auto_pad` resolved to explicit padding."""
    rank = len(kernel)
    window = Window.of(node, rank)
    if window.auto_pad == "NOTSET":
        return window
    if window.auto_pad == "VALID":
        return replace(window, auto_pad="NOTSET", begins=(0,) * rank, ends=(0,) * rank)
    space = [extent for extent in (*extents(x)[2:], *kernel) if isinstance(extent, int)]
    if len(space) < 2 * rank:
        raise refuse(
            node, f"got auto_pad={window.auto_pad!r} over dimensions that are not known; allowed: NOTSET, VALID"
        )
    _, begins, ends = window.fit(tuple(space[:rank]), tuple(space[rank:]))
    return replace(window, auto_pad="NOTSET", begins=begins, ends=ends)


def by_weights(
    b: Backward, node: ir.Node, values: tuple[ir.Value, ir.Value, ir.Value], dy: ir.Value | None, window: Window
) -> ir.Value:
    """dW of a convolution; the batch is the last axis of dy.

    Args:
        b: The backward pass.
        node: Gives the groups, and the name in messages.
        values: The input of the windows, the weights, and a value of the output's shape.
        dy: (M, *output, N).
        window: Strides, dilations, padding.

    References:
        Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing, 2006:
        windows as columns of a matrix.
    """
    x, w, y = values
    rank = len(window.strides)
    outputs, channels, *sizes = extents(w)
    kernel = [size for size in sizes if isinstance(size, int)]
    if len(kernel) < rank or not isinstance(outputs, int) or not isinstance(channels, int):
        raise refuse(node, f"the weights' dimensions must be fixed, got {extents(w)}")
    windows = [extent for extent in extents(y)[2:] if isinstance(extent, int)]
    source = b.op("Transpose", x, perm=[*range(1, rank + 2), 0])
    if window.padded:
        source = b.op("Pad", source, b.ints(0, *window.begins, 0, 0, *window.ends, 0))
    group = attribute(node, "group", 1)
    several = channels >= _MANY_CHANNELS and (len(windows) < rank or math.prod(windows) >= _MANY_WINDOWS)
    long = None if (several and group == 1) or len(windows) < rank else _along(b, source, x, window, kernel, windows)
    if long is None:
        source, others, steps = b.op("Unsqueeze", source, b.ints(1)), kernel, window
    else:
        source, others, steps = long
    positions = itertools.product(*map(range, others))
    parts = [_windows(b, source, y, steps, position) for position in positions]
    count = math.prod(kernel)
    if group > 1:
        columns = b.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        dw = _by_groups(b, dy, columns, (group, outputs // group, channels * count))
        return b.op("Reshape", dw, b.ints(outputs, channels, *kernel))
    rows = b.op("Reshape", dy, b.ints(outputs, -1))
    if several:
        products = [b.op("Gemm", rows, b.op("Reshape", part, b.ints(channels, -1)), transB=1) for part in parts]
        products = [b.op("Unsqueeze", product, b.ints(2)) for product in products]
        dw = b.op("Concat", *products, axis=2) if count > 1 else products[0]
    else:
        columns = b.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        dw = b.op("Gemm", rows, b.op("Reshape", columns, b.ints(channels * count, -1)), transB=1)
    return b.op("Reshape", dw, b.ints(outputs, channels, *kernel))


def _along(
    b: Backward, source: ir.Value, x: ir.Value, window: Window, kernel: Sequence[int], windows: Sequence[int]
) -> tuple[ir.Value, list[int], Window] | None:
    """The windows along the kernel's long axis, with the kernel and the window that remain for the other axes.

    Returns:
        None if the kernel has no such axis, or dimensions are unknown.
    """
    axis, shape = long_axis(window, kernel), () if x.shape is None else extents(x)[1:]
    known = [extent for extent in shape if isinstance(extent, int)]
    if axis is None or len(known) <= len(kernel):
        return None
    padded = [size + begin + end for size, begin, end in zip(known[1:], window.begins, window.ends, strict=True)]
    joined = windows_along(
        b,
        source,
        (known[0], *padded),
        axis,
        stride=window.strides[axis],
        size=kernel[axis],
        count=windows[axis],
    )
    strides = tuple(1 if other == axis else stride for other, stride in enumerate(window.strides))
    others = [1 if other == axis else size for other, size in enumerate(kernel)]
    return joined, others, replace(window, strides=strides)


def _by_groups(b: Backward, dy: ir.Value | None, columns: ir.Value, shape: tuple[int, int, int]) -> ir.Value:
    """dW of groups of channels: dW[g] = dY[g] columns[g]^T, one product per group, in one batch.

    Args:
        b: The backward pass.
        dy: (M, *output, N).
        columns: The elements of the windows, (C, kernel, *output, N).
        shape: Shape of the result: groups, outputs per group, columns per group. Channels of one group are adjacent.

    References:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks, NIPS 2012,
        section 3.5: each group is a separate convolution. The product is that of `by_weights`.
    """
    group, outputs, count = shape
    rows = b.op("Reshape", dy, b.ints(group, outputs, -1))
    columns = b.op("Reshape", columns, b.ints(group, count, -1))
    return b.op("MatMul", rows, b.op("Transpose", columns, perm=[0, 2, 1]))


def _windows(b: Backward, source: ir.Value, y: ir.Value, window: Window, position: tuple[int, ...]) -> ir.Value:
    """The elements of all windows at one position of the kernel, (channels, 1, *windows, batch)."""
    rank, steps = len(position), b.ints(*window.strides)
    starts = [d * k for d, k in zip(window.dilations, position, strict=True)]
    space = extents(y)[2:]
    fixed = [extent for extent in space if isinstance(extent, int)]
    first = b.ints(*starts)
    if len(fixed) == rank:
        ends = [a + t * (extent - 1) + 1 for a, t, extent in zip(starts, window.strides, fixed, strict=True)]
        last = b.ints(*ends)
    else:
        last = b.op("Add", first, b.op("Mul", b.op("Shape", y, start=2), steps))
    return b.op("Slice", source, first, last, b.ints(*range(2, rank + 2)), steps)


RULES: dict[str, Rule] = {"Conv": _conv}
