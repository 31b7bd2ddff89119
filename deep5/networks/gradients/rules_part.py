"""Gradients of operators that take parts of a value, or put values together."""

from __future__ import annotations

from itertools import accumulate

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.window import attribute

__all__ = ["RULES"]


def _gather(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x[indices] along an axis: dx adds each part of dy to the place that it was taken from.

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
    # ScatterND adds along the leading axis: the gathered one goes there, and back.
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
    """y[i] = x[… index[i] …] along an axis: dx adds each dy[i] to the element that it was taken from.

    References:
        ONNX, GatherElements-13.
    """
    x, indices = operands(node, 2)
    axis = attribute(node, "axis", 0)
    return [b.op("ScatterElements", b.zeros(x), indices, grads[0], axis=axis, reduction="add"), None]


def _split(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """The outputs are parts of x along an axis: dx is their gradients put together, zeros for those without one.

    References:
        ONNX, Split-18.
    """
    parts = [
        b.zeros(value) if gradient is None else gradient for value, gradient in zip(node.outputs, grads, strict=True)
    ]
    dx = b.op("Concat", *parts, axis=attribute(node, "axis", 0)) if len(parts) > 1 else parts[0]
    return [dx, *[None] * (len(node.inputs) - 1)]


def _concat(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = the inputs along an axis: each receives its part of dy.

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
    """y = x[start:end:step] along axes: dx = dy at the places that it was taken from, 0 elsewhere.

    References:
        ONNX, Slice-13.
    """
    (x,), dy, rest = operands(node, 1), grads[0], node.inputs[1:]
    spans = _spans(node, x)
    if spans is not None:
        dx = _padded(b, dy, len(extents(x)), spans)
    else:
        # The numbers of all elements, sliced as x was, say where each element of dy belongs.
        size = b.op("Reshape", b.op("Size", x), b.ints(1))
        numbers = b.op("Range", b.integer(0), b.op("Size", x), b.integer(1))
        places = b.op("Slice", b.op("Reshape", numbers, b.shape(x), allowzero=1), *rest)
        flat = b.op("Expand", b.like(0.0, x), size)
        filled = b.op(
            "ScatterElements", flat, b.op("Reshape", places, b.ints(-1)), b.op("Reshape", dy, b.ints(-1)), axis=0
        )
        dx = b.op("Reshape", filled, b.shape(x), allowzero=1)
    return [dx, *[None] * len(rest)]


def _spans(node: ir.Node, x: ir.Value) -> dict[int, tuple[int, int]] | None:
    """What a slice without strides cuts off before and behind, by axis; None where that is not known."""
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
    """The value with zeros before and behind, by axis."""
    before, behind = ([spans.get(axis, (0, 0))[side] for axis in range(rank)] for side in (0, 1))
    return b.op("Pad", value, b.ints(*before, *behind))


def _pad(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x between constants: dx is what lies between in dy, which is a padding by the negative extents.

    Where negative pads cut x off, nothing depends on what was cut: it receives zeros.

    References:
        ONNX, Pad-19.
    """
    mode = attribute(node, "mode", "constant")
    if mode != "constant":
        raise refuse(node, f"got mode={mode!r}; allowed: 'constant'")
    _, pads = operands(node, 2)
    known = constant_value(pads)
    back = b.op("Neg", pads) if known is None else b.ints(*(-int(extent) for extent in known))
    axes = node.inputs[3:4]
    return [b.op("Pad", grads[0], back, *([None, *axes] if axes else [])), *[None] * (len(node.inputs) - 1)]


RULES: dict[str, Rule] = {
    "Concat": _concat,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
}
