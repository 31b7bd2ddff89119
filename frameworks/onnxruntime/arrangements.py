"""Rewrites of layouts, shapes and zero points that ONNX Runtime's kernels do not support into supported ones."""

from __future__ import annotations

import math

import onnx_ir as ir

from deep5.frameworks.onnxruntime.recurrent import needs_rewriting, rewrite
from deep5.networks.constants import constant_value
from deep5.networks.draft import Draft
from deep5.networks.kept_sizes import copied_axis, copied_image
from deep5.networks.onnx.attributes import attribute

__all__ = ["ARRANGEMENTS", "corners", "may_be_copied"]

# Tolerance as a fraction of a pixel: scales have about seven digits.
_PART = 1e-4
# What rounding makes of a scale of 1 that is computed.
_ROUNDING = 1e-6


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


def copies(node: ir.Node) -> bool | None:
    """Whether the kernel copies what a resize changes, because the sizes stay; None if it is not known."""
    return (copied_axis if _by_axis(node) else copied_image)(node)


def may_be_copied(node: ir.Node) -> bool:
    """Whether the kernel copies what a resize changes, or may copy it, which nothing prevents."""
    copied = copies(node)
    return _crops(node) and not _may_copy(node) if copied is None else copied


def _by_axis(node: ir.Node) -> bool:
    """Whether the kernel copies one axis whose size stays, and not only an image."""
    return _crops(node) or bool(attribute(node, "antialias", 0))


def _crops(node: ir.Node) -> bool:
    return bool(attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize")


def _may_copy(node: ir.Node) -> bool:
    """Whether it is seen only when the network runs what the kernel copies."""
    sized = len(node.inputs) > 3 and node.inputs[3] is not None
    stretched = attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
    return copies(node) is None and (stretched or not sized)


def _refuse_copies(draft: Draft, node: ir.Node) -> None:
    """Where the kernel would copy, the scales become 0, and the sizes -1, which it rejects."""
    data, roi, scales, sizes = (*node.inputs, None, None, None)[:4]
    shape, axes = draft.op("Shape", data), attribute(node, "axes")
    if axes is not None:
        shape = draft.op("Gather", shape, draft.constant(axes, "int64"))
    old, one = draft.cast(shape, ir.DataType.FLOAT), draft.constant(1, "float32")
    if scales is None:
        given, refused = draft.setting(sizes), draft.constant(-1, "int64")
        stays, moves = draft.op("Equal", given, shape), draft.constant(False, "bool")
    else:
        given, refused = draft.setting(scales), draft.constant(0, "float32")
        stays = draft.op("Equal", draft.op("Floor", draft.op("Mul", old, given)), old)
        step = draft.op("Abs", draft.op("Sub", given, one))
        moves = draft.op("Greater", step, draft.constant(_ROUNDING, "float32"))
    if _crops(node):
        moves = draft.op("Or", moves, _is_part(draft, roi, draft.op("Shape", old)))
    copied = draft.op("And", stays, draft.op("And", moves, draft.op("Greater", old, one)))
    found = _any(draft, copied)
    if not _by_axis(node):
        found = draft.op("And", found, draft.op("Not", _any(draft, draft.op("Not", stays))))
    kept = draft.op("Where", found, refused, given)
    draft.replace(*draft.same([data, roi, *([None, kept] if scales is None else [kept])]))


def _is_part(draft: Draft, roi: ir.Value | None, count: ir.Value) -> ir.Value:
    """Of each axis, whether a region is less or more than all of it."""
    if roi is None:
        return draft.constant(True, "bool")
    region = draft.cast(draft.setting(roi), ir.DataType.FLOAT)
    begin = draft.op("Slice", region, draft.constant([0], "int64"), count)
    end = draft.op("Slice", region, count, draft.op("Shape", region))
    differs = [
        draft.op("Not", draft.op("Equal", value, draft.constant(number, "float32")))
        for number, value in enumerate((begin, end))
    ]
    return draft.op("Or", *differs)


def _any(draft: Draft, values: ir.Value) -> ir.Value:
    numbers = draft.cast(values, ir.DataType.INT32)
    return draft.cast(draft.op("ReduceMax", numbers, draft.constant([0], "int64"), keepdims=0), ir.DataType.BOOL)


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


def _one_dilated(node: ir.Node) -> bool:
    dilations = attribute(node, "dilations", ())
    return len(dilations) == 1 and dilations[0] > 1


def _in_two_dimensions(draft: Draft, node: ir.Node) -> None:
    """A line as an image of one row: of one dimension the kernel ignores dilations."""
    one = draft.constant([1], "int64")
    image, block = (draft.op("Concat", one, draft.setting(value), axis=0) for value in node.inputs[1:])
    begin, end = attribute(node, "pads", (0, 0))
    strides, dilations = (attribute(node, name, (1,)) for name in ("strides", "dilations"))
    settings = {"strides": [1, *strides], "dilations": [1, *dilations], "pads": [0, begin, 0, end]}
    (made,) = draft.same([node.inputs[0], image, block], **settings)
    draft.replace(draft.op("Squeeze", made, draft.constant([2], "int64")))


def _from_the_back(node: ir.Node) -> bool:
    """Whether a Resize counts dimensions from the back, and keeps the ratio of its sizes."""
    policy, axes = attribute(node, "keep_aspect_ratio_policy", "stretch"), attribute(node, "axes", ())
    return policy != "stretch" and any(axis < 0 for axis in axes) and not may_be_copied(node)


def _count_from_the_front(draft: Draft, node: ir.Node) -> None:
    """With a policy, the kernel copies the image where an axis is below 0."""
    x = node.inputs[0]
    assert x is not None and x.shape is not None  # noqa: S101, PT018 - shapes were inferred
    axes = [axis % len(x.shape) for axis in attribute(node, "axes")]
    draft.replace(*draft.same(node.inputs, axes=axes))


def _vector_of_nothing(node: ir.Node) -> bool:
    """Whether a matrix is multiplied by a vector that may have no elements."""
    x, vector = (None if value is None else value.shape for value in node.inputs)
    if x is None or vector is None or len(x) < 2 or len(vector) != 1:
        return False
    return not isinstance(vector[0], int) or vector[0] == 0


def _as_column(draft: Draft, node: ir.Node) -> None:
    """A vector as a matrix of one column: the kernel leaves the result of empty vectors as it finds the memory."""
    x, vector = node.inputs
    last = draft.constant([-1], "int64")
    (made,) = draft.same([x, draft.op("Unsqueeze", vector, last)])
    draft.replace(draft.op("Squeeze", made, last))


def _blocks_of_strings(node: ir.Node) -> bool:
    """Whether more than one string may follow an index."""
    x, axis = node.inputs[0], attribute(node, "axis", 0)
    if x is None or x.dtype != ir.DataType.STRING:
        return False
    return x.shape is None or any(size != 1 for size in list(x.shape)[axis % len(x.shape) + 1 :])


def _gather_each(draft: Draft, node: ir.Node) -> None:
    """Gather the numbers of the strings, then the strings: the kernel copies only the first one of a block."""
    x, indices = node.inputs
    shape = draft.op("Shape", x)
    zero, one, flat = (draft.constant(each, "int64") for each in (0, 1, [-1]))
    numbers = draft.op("Reshape", draft.op("Range", zero, draft.op("Size", x), one), shape, allowzero=1)
    chosen = draft.op("Gather", numbers, indices, axis=attribute(node, "axis", 0))
    draft.replace(draft.op("Gather", draft.op("Reshape", x, flat), chosen, axis=0))


def _single_or_double(node: ir.Node) -> bool:
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    return kind in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _center_first(draft: Draft, node: ir.Node) -> None:
    """(x - mean) / (sqrt(mean (x - mean)^2) + 1e-9). The kernel subtracts the square of the mean from the mean of
    squares, which gives NaN where rounding makes that negative.
    """
    x = node.inputs[0]
    assert x is not None and x.dtype is not None  # noqa: S101, PT018 - types were inferred
    axes = draft.constant(attribute(node, "axes", (0, 2, 3)), "int64")
    centered = draft.op("Sub", x, draft.op("ReduceMean", x, axes, keepdims=1))
    variance = draft.op("ReduceMean", draft.op("Mul", centered, centered), axes, keepdims=1)
    deviation = draft.op("Add", draft.op("Sqrt", variance), draft.constant(1e-9, x.dtype))
    draft.replace(draft.op("Div", centered, deviation))


def _double(node: ir.Node) -> bool:
    return node.outputs[0].dtype == ir.DataType.DOUBLE


def _sixth_in_float64(draft: Draft, node: ir.Node) -> None:
    """x max(0, min(1, x / 6 + 1 / 2)): the kernel has 1 / 6 in float32."""
    x = node.inputs[0]
    zero, half, one, six = (draft.constant(each, "float64") for each in (0, 0.5, 1, 6))
    part = draft.op("Clip", draft.op("Add", draft.op("Div", x, six), half), zero, one)
    draft.replace(draft.op("Mul", x, part))


def _double_by_tanh(node: ir.Node) -> bool:
    return _double(node) and attribute(node, "approximate", "none") == "tanh"


def _gelu_in_float64(draft: Draft, node: ir.Node) -> None:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): the kernel has these constants in float32."""
    x = node.inputs[0]
    cubic, root, one, half = (draft.constant(each, "float64") for each in (0.044715, (2 / math.pi) ** 0.5, 1, 0.5))
    stretch = draft.op("Add", draft.op("Mul", draft.op("Mul", x, x), cubic), one)
    total = draft.op("Tanh", draft.op("Mul", draft.op("Mul", x, root), stretch))
    draft.replace(draft.op("Mul", draft.op("Mul", x, half), draft.op("Add", total, one)))


_RECURRENT = [(needs_rewriting, rewrite)]
ARRANGEMENTS = {
    "Col2Im": [(_one_dilated, _in_two_dimensions)],
    "ConvInteger": [(_zero_point_of_channels, _subtract_zero_points)],
    "DFT": [(_single, _transform_in_float64)],
    "GRU": _RECURRENT,
    "Gather": [(_blocks_of_strings, _gather_each)],
    "Gelu": [(_double_by_tanh, _gelu_in_float64)],
    "HardSwish": [(_double, _sixth_in_float64)],
    "LSTM": _RECURRENT,
    "MatMul": [(_vector_of_nothing, _as_column)],
    "MaxUnpool": [(_has_output_shape, _pad_behind)],
    "MeanVarianceNormalization": [(_single_or_double, _center_first)],
    "RNN": _RECURRENT,
    "Range": [(_vectors, _scalars)],
    "Resize": [
        (_from_the_back, _count_from_the_front),
        (_computed_corners, _refuse_parts),
        (_may_copy, _refuse_copies),
    ],
    "STFT": [(_single, _transform_in_float64)],
}
"""Like `NUMBERS`."""
