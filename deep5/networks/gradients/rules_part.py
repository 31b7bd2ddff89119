"""Gradients of operators that select parts of a value, or join values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES", "returned"]


def _gather(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x[indices] along an axis: dx adds each part of dy to the position it was taken from.

    References:
        ONNX, Gather-13.
    """
    x, indices = operands(node, 2)
    rank, picked = len(extents(x)), len(extents(indices))
    axis, dy = attribute(node, "axis", 0) % rank, grads[0]
    index, extent = constant_value(indices), extents(x)[axis]
    if picked == 0 and index is not None and isinstance(extent, int):
        place = int(index) % extent
        part = b.op("Unsqueeze", dy, b.ints(axis))
        return [_padded(b, part, rank, {axis: (place, extent - place - 1)}), None]
    # ScatterND adds along the leading axis: move the gathered axis there, and back.
    front = [axis, *(other for other in range(rank) if other != axis)]
    if axis:
        dy = b.op(
            "Transpose", dy, perm=[*range(axis, axis + picked), *range(axis), *range(axis + picked, rank - 1 + picked)]
        )
        shape = b.op("Gather", b.shape(x), b.ints(*front))
        zeros = b.op("Expand", b.like(0.0, x), shape)
    else:
        zeros = b.zeros(x)
    indices = indices if indices.dtype == ir.DataType.INT64 else b.op("Cast", indices, to=ir.DataType.INT64)
    total = b.op("ScatterND", zeros, b.op("Unsqueeze", indices, b.ints(-1)), dy, reduction="add")
    return [b.op("Transpose", total, perm=[front.index(i) for i in range(rank)]) if axis else total, None]


def _gather_elements(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y[i] = x[… index[i] …] along an axis: dx adds each dy[i] to the element it was taken from.

    References:
        ONNX, GatherElements-13.
    """
    x, indices = operands(node, 2)
    axis = attribute(node, "axis", 0)
    return [b.op("ScatterElements", b.zeros(x), indices, grads[0], axis=axis, reduction="add"), None]


def _split(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """The outputs are parts of x along an axis: dx is their gradients joined, zeros for those without one.

    References:
        ONNX, Split-18.
    """
    parts = [
        b.zeros(value) if gradient is None else gradient for value, gradient in zip(node.outputs, grads, strict=True)
    ]
    dx = b.op("Concat", *parts, axis=attribute(node, "axis", 0)) if len(parts) > 1 else parts[0]
    return [dx, *[None] * (len(node.inputs) - 1)]


def _concat(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = the inputs joined along an axis: each receives its part of dy.

    References:
        ONNX, Concat-13.
    """
    values = operands(node, len(node.inputs))
    axis = attribute(node, "axis") % len(extents(node.outputs[0]))
    if len(values) == 1:
        return [grads[0]]
    sizes = [extents(value)[axis] for value in values]
    fixed = [size for size in sizes if isinstance(size, int)]
    if len(fixed) < len(sizes):
        run_time = b.op("Concat", *(b.op("Shape", value, start=axis, end=axis + 1) for value in values), axis=0)
        return b.ops("Split", len(values), grads[0], run_time, axis=axis)
    if sum(map(b.wants, values)) > 1:
        return b.ops("Split", len(values), grads[0], b.ints(*fixed), axis=axis)
    ends = list(accumulate(fixed))
    return [
        b.op("Slice", grads[0], b.ints(end - size), b.ints(end), b.ints(axis)) if b.wants(value) else None
        for value, size, end in zip(values, fixed, ends, strict=True)
    ]


def _slice(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x[start:end:step] along axes: dx = dy at the selected positions, 0 elsewhere.

    References:
        ONNX, Slice-13.
    """
    (x,), dy, rest = operands(node, 1), grads[0], node.inputs[1:]
    spans = _spans(node, x)
    if spans is not None:
        dx = _padded(b, dy, len(extents(x)), spans)
    else:
        dx = returned(b, x, dy, lambda numbers: b.op("Slice", numbers, *rest))
    return [dx, *[None] * len(rest)]


def _spans(node: ir.Node, x: ir.Value) -> dict[int, tuple[int, int]] | None:
    """How much a slice without strides cuts off before and after, by axis; None if unknown."""
    rank = len(extents(x))
    given = [constant_value(value) for value in (*node.inputs[1:], None, None)[:4]]
    starts, ends, axes, steps = (
        [int(number) for number in array.reshape(-1)] if array is not None else None for array in given
    )
    left_out = [value is None for value in (*node.inputs[1:], None, None)[:4]]
    if starts is None or ends is None or (axes is None and not left_out[2]) or (steps is None and not left_out[3]):
        return None
    spans: dict[int, tuple[int, int]] = {}
    for position, axis in enumerate(range(len(starts)) if axes is None else axes):
        extent = extents(x)[axis % rank]
        if not isinstance(extent, int) or (steps is not None and steps[position] != 1):
            return None
        first, last, _ = slice(starts[position], ends[position]).indices(extent)
        spans[axis % rank] = (first, extent - max(first, last))
    return spans


def _padded(b: Backward, value: ir.Value | None, rank: int, spans: dict[int, tuple[int, int]]) -> ir.Value:
    """The value with zeros before and after, by axis."""
    before, behind = ([spans.get(axis, (0, 0))[side] for axis in range(rank)] for side in (0, 1))
    return b.op("Pad", value, b.ints(*before, *behind))


def _pad(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x padded with constants: dx is the inner part of dy, which is dy padded by the negative pads.

    Where negative pads crop x, nothing depends on the cropped elements: they receive zeros.

    References:
        ONNX, Pad-19.
    """
    x, pads = operands(node, 2)
    value, axes = (*node.inputs[2:], None, None)[:2]
    mode, rest = attribute(node, "mode", "constant"), [None] * (len(node.inputs) - 1)
    if mode != "constant":
        return [returned(b, x, grads[0], lambda numbers: b.op("Pad", numbers, pads, None, axes, mode=mode)), *rest]
    known = constant_value(pads)
    back = b.op("Neg", pads) if known is None else b.ints(*(-int(extent) for extent in known))
    dx = b.op("Pad", grads[0], back, *([] if axes is None else [None, axes]))
    if value is None or not b.wants(value):
        return [dx, *rest]
    # The elements of dy outside of x are the gradient of the constant.
    ones = b.op("Pad", b.op("Expand", b.like(1.0, x), b.shape(x)), pads, b.like(0.0, x), axes)
    outside = b.op("Where", b.op("Equal", ones, b.like(0.0, x)), grads[0], b.like(0.0, x))
    total = b.op("Reshape", b.op("ReduceSum", outside, keepdims=0), b.shape(value))
    return [dx, None, total, *rest[2:]]


def returned(b: Backward, x: ir.Value, dy: ir.Value | None, move: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """dx of an operator that only moves or repeats elements: each dy is added to the element it was taken from.

    Args:
        b: The backward pass.
        x: The operator's input.
        dy: The gradient of its output.
        move: The operator; applied to the indices of the elements of x, it gives the origin of each output element.
    """
    numbers = b.op("Range", b.integer(0), b.op("Size", x), b.integer(1))
    places = b.op("Reshape", move(b.op("Reshape", numbers, b.shape(x), allowzero=1)), b.ints(-1))
    flat = b.op("Expand", b.like(0.0, x), b.op("Reshape", b.op("Size", x), b.ints(1)))
    total = b.op("ScatterElements", flat, places, b.op("Reshape", dy, b.ints(-1)), axis=0, reduction="add")
    return b.op("Reshape", total, b.shape(x), allowzero=1)


def _compress(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = the parts of x along an axis, or the elements of flattened x, where a condition holds: dx = dy there.

    References:
        ONNX, Compress-11.
    """
    x, condition = operands(node, 2)
    axis = attribute(node, "axis")
    settings = {} if axis is None else {"axis": axis}
    return [returned(b, x, grads[0], lambda numbers: b.op("Compress", numbers, condition, **settings)), None]


def _reverse_sequence(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x with the first elements of each sequence reversed: dx is dy with the same elements reversed.

    References:
        ONNX, ReverseSequence-10.
    """
    _, lengths = operands(node, 2)
    time, batch = attribute(node, "time_axis", 0), attribute(node, "batch_axis", 1)
    return [b.op("ReverseSequence", grads[0], lengths, time_axis=time, batch_axis=batch), None]


def _unique(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = the distinct elements of x, or its distinct parts along an axis: dx = dy at the first occurrence of each.

    References:
        ONNX, Unique-11.
    """
    (x,) = operands(node, 1)
    first = b.output(node, 1, ir.Shape([None]), ir.DataType.INT64)
    axis = attribute(node, "axis")
    if axis is None:
        return [returned(b, x, grads[0], lambda n: b.op("Gather", b.op("Reshape", n, b.ints(-1)), first, axis=0))]
    return [returned(b, x, grads[0], lambda numbers: b.op("Gather", numbers, first, axis=axis))]


def _one_hot(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = values[1] where the index along an axis equals the label, values[0] elsewhere: sums of dy over each set.

    References:
        ONNX, OneHot-11.
    """
    indices, depth, values = operands(node, 3)
    hot = b.op("OneHot", indices, depth, b.like([0.0, 1.0], values), axis=attribute(node, "axis", -1))
    on = b.op("ReduceSum", b.op("Mul", grads[0], hot), keepdims=0)
    off = b.op("ReduceSum", b.op("Mul", grads[0], b.op("Sub", b.like(1.0, values), hot)), keepdims=0)
    return [None, None, b.op("Concat", *(b.op("Unsqueeze", part, b.ints(0)) for part in (off, on)), axis=0)]


RULES: dict[str, Rule] = {
    "Compress": _compress,
    "Concat": _concat,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "OneHot": _one_hot,
    "Pad": _pad,
    "ReverseSequence": _reverse_sequence,
    "Slice": _slice,
    "Split": _split,
    "Unique": _unique,
}
