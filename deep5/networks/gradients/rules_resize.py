"""Gradient of resizing, which is linear along each axis separately."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _resize(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = W x along each axis: dx = W^T dy, and W is the node applied to the identity matrix.

    If each element is repeated an integer number of times, dx is a sum over the repetitions.

    References:
        ONNX, Resize-19.
    """
    (x,), dx = operands(node, 1), grads[0]
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise refuse(
            node, f"got keep_aspect_ratio_policy={attribute(node, 'keep_aspect_ratio_policy')!r}; allowed: 'stretch'"
        )
    rank = len(extents(x))
    axes = [axis % rank for axis in attribute(node, "axes", range(rank))]
    factors = _repetitions(node, x, axes)
    if factors is not None:
        pairs = [[b.op("Shape", x, start=axis, end=axis + 1), b.ints(factors[axis])] for axis in range(rank)]
        apart = b.op("Reshape", dx, b.op("Concat", *(part for pair in pairs for part in pair), axis=0))
        sums = [2 * axis + 1 for axis in range(rank)]
        return [b.op("ReduceSum", apart, b.ints(*sums), keepdims=0), *[None] * (len(node.inputs) - 1)]
    for position, axis in enumerate(axes):
        if not _same(node, x, position, axis):
            dx = _by_axis(b, node, x, dx, (position, axis, len(axes)))
    return [dx, *[None] * (len(node.inputs) - 1)]


def _repetitions(node: ir.Node, x: ir.Value, axes: list[int]) -> list[int] | None:
    """How often each axis repeats its elements; None if the node does not repeat elements."""
    scales = constant_value(node.inputs[2]) if len(node.inputs) > 2 else None
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    nearest = attribute(node, "nearest_mode", "round_prefer_floor")
    # With an integer number of repetitions, no position is equally close to two elements.
    plain = (mode, nearest) == ("asymmetric", "floor") or (mode == "half_pixel" and nearest.startswith("round"))
    if attribute(node, "mode", "nearest") != "nearest" or not plain or scales is None or len(scales) != len(axes):
        return None
    factors = [1] * len(extents(x))
    for axis, scale in zip(axes, scales, strict=True):
        if scale < 1 or scale != int(scale):
            return None
        factors[axis] = int(scale)
    return factors


def _same(node: ir.Node, x: ir.Value, position: int, axis: int) -> bool:
    """Whether an axis is unchanged."""
    if attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return False
    scales = constant_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if scales is not None and len(scales):
        return bool(scales[position] == 1.0)
    before, after = extents(x)[axis], extents(node.outputs[0])[axis]
    return before is not None and before == after


def _by_axis(b: Backward, node: ir.Node, x: ir.Value, dy: ir.Value | None, at: tuple[int, int, int]) -> ir.Value:
    """dy times W along one axis.

    Args:
        b: The backward pass.
        node: The node.
        x: Its input.
        dy: The gradient, already propagated back along the previous axes.
        at: The index of the axis among the node's axes, its index in x, and the number of the node's axes.
    """
    position, axis, count = at
    size = b.op("Shape", x, start=axis, end=axis + 1)
    numbers = b.op("Range", b.integer(0), b.op("Squeeze", size), b.integer(1))
    same = b.op("Cast", b.op("Equal", b.op("Unsqueeze", numbers, b.ints(1)), numbers), to=x.dtype)
    identity = b.op("Unsqueeze", same, b.ints(0, 1))
    roi, scales, sizes = (*node.inputs[1:], None, None, None)[:3]

    def own(value: ir.Value | None, place: int) -> ir.Value | None:
        return None if value is None else b.op("Slice", value, b.ints(place), b.ints(place + 1))

    one, none = b.floats(1.0), b.floats(0.0)
    attributes = {
        name: value.value
        for name, value in node.attributes.items()
        if name not in ("axes", "keep_aspect_ratio_policy", "extrapolation_value")
    }
    if roi is not None and attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        kind = roi.dtype
        zeros, ones = (b.op("Cast", value, to=kind) for value in (none, one))
        start, end = own(roi, position), own(roi, count + position)
        roi = b.op("Concat", zeros, zeros, start, zeros, ones, ones, end, ones, axis=0)
    else:
        roi = None
    known = constant_value(scales)
    if scales is not None and (known is None or known.size):
        scales, sizes = b.op("Concat", one, one, own(scales, position), one, axis=0), None
    else:
        scales, sizes = None, b.op("Concat", b.ints(1, 1), own(sizes, position), size, axis=0)
    rows = b.op("Squeeze", b.op("Resize", identity, roi, scales, sizes, **attributes), b.ints(0, 1))
    last = len(extents(x)) - 1
    order = [*(other for other in range(last + 1) if other != axis), axis]
    moved = dy if axis == last else b.op("Transpose", dy, perm=order)
    back = b.op("MatMul", moved, rows)
    return back if axis == last else b.op("Transpose", back, perm=[order.index(i) for i in range(last + 1)])


RULES: dict[str, Rule] = {"Resize": _resize}
