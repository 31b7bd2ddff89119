"""Rewrites of layouts, shapes and zero points that ONNX Runtime's kernels do not support into supported ones."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.draft import Draft
from deep5.networks.onnx.attributes import attribute

__all__ = ["ARRANGEMENTS", "corners"]

# The inputs of a recurrent layer with a batch axis, and the permutations from batch first to batch second.
_STATES = (0, 5, 6)
_SWAPPED, _ALL = [1, 0, 2], [2, 0, 1, 3]
# Tolerance as a fraction of a pixel: scales have about seven digits.
_PART = 1e-4


def _batch_first(node: ir.Node) -> bool:
    return bool(attribute(node, "layout", 0) == 1)


def _batch_second(draft: Draft, node: ir.Node) -> None:
    inputs = [
        draft.op("Transpose", draft.setting(value), perm=_SWAPPED)
        if value is not None and position in _STATES
        else value
        for position, value in enumerate(node.inputs)
    ]
    made = draft.same(inputs, layout=0)
    turned = [
        None if value is None else draft.op("Transpose", value, perm=_ALL if position == 0 else _SWAPPED)
        for position, value in enumerate(made)
    ]
    draft.replace(*turned)


def _has_output_shape(node: ir.Node) -> bool:
    return len(node.inputs) > 2 and node.inputs[2] is not None


def _pad_behind(draft: Draft, node: ir.Node) -> None:
    """Indices refer to the unpadded array; the kernel would apply them to the padded one."""
    (inner,) = draft.same(node.inputs[:2])
    behind = draft.op("Sub", node.inputs[2], draft.op("Shape", inner))
    before = draft.op("Sub", behind, behind)
    draft.replace(draft.op("Pad", inner, draft.op("Concat", before, behind, axis=0)))


def _vectors(node: ir.Node) -> bool:
    return any(value is not None and value.shape is not None and len(value.shape) == 1 for value in node.inputs)


def _scalars(draft: Draft, node: ir.Node) -> None:
    draft.replace(*draft.same([draft.op("Squeeze", value) for value in node.inputs]))


def _zero_point_of_channels(node: ir.Node) -> bool:
    points = node.inputs[3] if len(node.inputs) > 3 else None
    several = points is not None and points.shape is not None and len(points.shape) == 1 and points.shape[0] != 1
    return several and attribute(node, "group", 1) == 1


def _subtract_zero_points(draft: Draft, node: ir.Node) -> None:
    """Compute with the weights only, then subtract each channel's zero point times the sum over each window."""
    weights, points = node.inputs[1], node.inputs[3]
    assert weights is not None and weights.shape is not None and weights.dtype is not None  # noqa: S101, PT018 - types were inferred
    (product,) = draft.same(node.inputs[:3])
    kernel = draft.op("Shape", weights, start=1)
    one = draft.op("Concat", draft.constant([1], "int64"), kernel, axis=0)
    ones = draft.op("Expand", draft.constant(1, weights.dtype), one)
    (sums,) = draft.same([node.inputs[0], ones, node.inputs[2]])
    axes = draft.constant(list(range(1, len(weights.shape) - 1)), "int64")
    factors = draft.op("Unsqueeze", draft.cast(points, ir.DataType.INT32), axes)
    draft.replace(draft.op("Sub", product, draft.op("Mul", sums, factors)))


def _single(node: ir.Node) -> bool:
    return node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT


def _transform_in_float64(draft: Draft, node: ir.Node) -> None:
    """In float32 the kernel rounds its angles, so terms that should cancel do not."""
    inputs = [
        draft.cast(value, ir.DataType.DOUBLE) if value is not None and value.dtype == ir.DataType.FLOAT else value
        for value in node.inputs
    ]
    draft.replace(draft.cast(draft.same(inputs)[0], ir.DataType.FLOAT))


def corners(node: ir.Node) -> tuple[int, float] | bool:
    """Whether a Resize with aligned corners has an integer output size, as the kernel assumes.

    Returns:
        The size and the scale whose product is not an integer; True if all are integers, or for any other Resize; False
        if it is unknown before the network runs.
    """
    aligned = attribute(node, "coordinate_transformation_mode", "half_pixel") == "align_corners"
    if not aligned or len(node.inputs) != 3 or node.inputs[2] is None:
        return True
    data, scales = node.inputs[0], constant_value(node.inputs[2])
    if scales is None or data is None or data.shape is None:
        return False
    axes = attribute(node, "axes", range(len(data.shape)))
    known = True
    for axis, scale in zip(axes, scales.tolist(), strict=False):
        extent = data.shape[axis]
        if isinstance(extent, int) and abs(extent * scale - round(extent * scale)) > _PART:
            return extent, scale
        known &= isinstance(extent, int) or scale == round(scale)
    return known


def _computed_corners(node: ir.Node) -> bool:
    return corners(node) is False


def _refuse_parts(draft: Draft, node: ir.Node) -> None:
    """The kernel assumes integer sizes: a scale that gives a fractional one becomes 0, which the kernel rejects."""
    data, scales = node.inputs[0], draft.setting(node.inputs[2])
    shape, axes = draft.op("Shape", data), attribute(node, "axes")
    if axes is not None:
        shape = draft.op("Gather", shape, draft.constant(axes, "int64"))
    made = draft.op("Mul", draft.cast(shape, ir.DataType.FLOAT), scales)
    part = draft.op("Abs", draft.op("Sub", made, draft.op("Round", made)))
    whole = draft.op("Less", part, draft.constant(_PART, "float32"))
    draft.replace(*draft.same([data, None, draft.op("Where", whole, scales, draft.constant(0, "float32"))]))


_RECURRENT = [(_batch_first, _batch_second)]
ARRANGEMENTS = {
    "ConvInteger": [(_zero_point_of_channels, _subtract_zero_points)],
    "DFT": [(_single, _transform_in_float64)],
    "GRU": _RECURRENT,
    "LSTM": _RECURRENT,
    "MaxUnpool": [(_has_output_shape, _pad_behind)],
    "RNN": _RECURRENT,
    "Range": [(_vectors, _scalars)],
    "Resize": [(_computed_corners, _refuse_parts)],
    "STFT": [(_single, _transform_in_float64)],
}
"""Like `NUMBERS`."""
