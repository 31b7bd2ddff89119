"""The table of conversions: which opset changed which operator, and how a node of the version before is written in it.

Operators and versions that are not in the table gained element types, or attributes and inputs whose defaults are the
previous behavior. ONNX's own version converter is not used: it omits many of these conversions, converts no nested
graphs, and drops metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from deep5.core.errors import NetworkError
from deep5.networks.onnx.conversions_batch import per_activation, running_statistics
from deep5.networks.onnx.conversions_legacy import (
    broadcast_from_axis,
    named_type,
    refuse_training,
    repeats_of_one_axis,
    whole_power,
)
from deep5.networks.onnx.conversions_scan import scan_over_batch
from deep5.networks.onnx.conversions_steps import (
    Nodes,
    attribute_of,
    defaults,
    in_turn,
    integers,
    put_input,
    renamed,
    set_attributes,
    taken,
    without,
)
from deep5.networks.onnx.converting import Place, Step
from deep5.networks.onnx.element_types import called

__all__ = ["STEPS", "without_deprecated"]

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# The least of the largest integers of int32 and int64, which stand for the end of a dimension.
_OPEN = np.iinfo(np.int32).max


def _flattened(node: onnx.NodeProto, place: Place) -> Nodes:
    """Before opset 13 the function works on the input reshaped to two dimensions at `axis`, by default 1."""
    given = taken(node, "axis")
    axis, shape = 1 if given is None else given.i, place.shape(node.input[0])
    set_attributes(node, axis=-1)
    if axis == -1 or (shape is not None and axis == len(shape) - 1):
        return [node]
    x, y = node.input[0], node.output[0]
    goal = place.compute("Shape", [x], f"{y}/dimensions")
    node.input[0] = place.compute("Flatten", [x], f"{y}/flat", axis=axis)
    node.output[0] = place.name(f"{y}/rows")
    # Without allowzero a dimension of 0 would be copied from the flattened input.
    back = onnx.helper.make_node("Reshape", [node.output[0], goal], [y], allowzero=1)
    return [node, back]


def _slices(node: onnx.NodeProto, place: Place) -> Nodes:
    for position, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        integers(name, position)(node, place)
    return [node]


def _open_ends(node: onnx.NodeProto, place: Place) -> Nodes:
    """In opset 10 an end of INT_MAX is the end of the dimension in either direction, since 11 only forward."""
    if len(node.input) < 5:
        return [node]
    steps, ends = place.value(node.input[4]), place.value(node.input[2])
    if (steps is not None and (steps > 0).all()) or (ends is not None and (ends < _OPEN).all()):
        return [node]
    y, integer = node.output[0], onnx.TensorProto.INT64
    for position in range(1, 5):
        if node.input[position] and place.element_type(node.input[position]) != integer:
            node.input[position] = place.compute("Cast", [node.input[position]], f"{y}/{position}", to=integer)
    zero, most, least = (
        place.constant(f"{y}/{name}", np.array(number, np.int64))
        for name, number in (("zero", 0), ("most", _OPEN), ("least", np.iinfo(np.int64).min))
    )
    backward = place.compute("Less", [node.input[4], zero], f"{y}/backward")
    whole = place.compute("GreaterOrEqual", [node.input[2], most], f"{y}/open")
    both = place.compute("And", [backward, whole], f"{y}/open_backward")
    node.input[2] = place.compute("Where", [both, least, node.input[2]], f"{y}/ends")
    return [node]


def _count_of_top(node: onnx.NodeProto, place: Place) -> Nodes:
    given = taken(node, "k")
    count = np.array([0 if given is None else given.i], np.int64)
    put_input(node, 1, place.constant(f"{node.output[0]}/k", count))
    return [node]


def _bounds(node: onnx.NodeProto, place: Place) -> Nodes:
    for position, name in ((1, "min"), (2, "max")):
        if (given := taken(node, name)) is not None:
            put_input(node, position, place.number_like(f"{node.output[0]}/{name}", given.f, node.input[0]))
    return [node]


def _padding(node: onnx.NodeProto, place: Place) -> Nodes:
    integers("pads", 1)(node, place)
    if (given := taken(node, "value")) is not None:
        put_input(node, 2, place.number_like(f"{node.output[0]}/value", given.f, node.input[0]))
    return [node]


def _ratio(node: onnx.NodeProto, place: Place) -> Nodes:
    given = taken(node, "ratio")
    if given is not None:
        put_input(node, 1, place.constant(f"{node.output[0]}/ratio", np.array(given.f, np.float32)))
    return [node]


def _mask_of_booleans(node: onnx.NodeProto, place: Place) -> Nodes:
    """Before opset 10 the mask has the element type of the input."""
    if len(node.output) < 2 or not node.output[1]:
        return [node]
    mask = node.output[1]
    node.output[1] = place.name(f"{mask}/boolean")
    return [node, onnx.helper.make_node("CastLike", [node.output[1], node.input[0]], [mask])]


def _scales(node: onnx.NodeProto, place: Place) -> Nodes:
    given = taken(node, "scales")
    scales = np.array([] if given is None else given.floats, np.float32)
    put_input(node, 1, place.constant(f"{node.output[0]}/scales", scales))
    return [node]


def _scales_of_images(node: onnx.NodeProto, place: Place) -> Nodes:
    given = [taken(node, name) for name in ("height_scale", "width_scale")]
    set_attributes(node, scales=[1.0, 1.0, *(1.0 if each is None else each.f for each in given)])
    mode = attribute_of(node, "mode")
    if mode is not None and mode.s == b"bilinear":
        mode.s = b"linear"
    return [node]


def _one_coordinate_rule(node: onnx.NodeProto, place: Place) -> Nodes:
    """Opset 10 has one rule of coordinates, output position / scale; the nearest element is rounded down along
    dimensions that grow and up along those that shrink, as ONNX's own test vectors and ONNX Runtime do.
    """
    mode, scales, y = attribute_of(node, "mode"), node.input[1], node.output[0]
    del node.input[1:]
    node.input.extend(["", scales])
    set_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    known = place.value(scales)
    if (mode is not None and mode.s != b"nearest") or (known is not None and (known >= 1).all()):
        return [node]
    shrinking = onnx.NodeProto()
    shrinking.CopyFrom(node)
    taken(shrinking, "nearest_mode")
    set_attributes(shrinking, nearest_mode="ceil")
    if known is not None and (known <= 1).all():
        return [shrinking]
    one = place.constant(f"{y}/one", np.array(1, np.float32))
    for each, function in ((shrinking, "Min"), (node, "Max")):
        each.input[2] = place.compute(function, [scales, one], f"{y}/{function}")
    shrinking.name = f"{node.name}/shrunk" if node.name else ""
    shrinking.output[0] = node.input[0] = place.name(f"{y}/shrunk")
    return [shrinking, node]


def _one_of_two(node: onnx.NodeProto, place: Place) -> Nodes:
    """Resize takes scales or sizes; before opset 13 the other one is empty, and later files still have it so."""
    for position in (2, 3):
        value = place.value(node.input[position]) if position < len(node.input) else None
        if value is not None and not value.size:
            node.input[position] = ""
    while node.input and not node.input[-1]:
        node.input.pop()
    return [node]


# x + 1/2 rounded, for x of half_pixel, which tf_half_pixel_for_nn exceeds by 1/2.
_HALF_LATER = {b"floor": "round_prefer_ceil", b"round_prefer_floor": "ceil"}


def _half_pixel_for_nearest(node: onnx.NodeProto, place: Place) -> Nodes:
    """The coordinates of tf_half_pixel_for_nn, which opset 13 dropped, are those of half_pixel plus 1/2."""
    rule = attribute_of(node, "coordinate_transformation_mode")
    if rule is None or rule.s != b"tf_half_pixel_for_nn":
        return [node]
    mode, nearest = attribute_of(node, "mode"), taken(node, "nearest_mode")
    asked = b"round_prefer_floor" if nearest is None else nearest.s
    if (mode is not None and mode.s != b"nearest") or asked not in _HALF_LATER:
        raise NetworkError(
            f"{called(node.name, node.op_type, node.output)} of opset 11 or 12 has tf_half_pixel_for_nn with mode "
            f"{'nearest' if mode is None else mode.s.decode()!r} and nearest_mode {asked.decode()!r}; allowed: "
            "nearest, with 'floor' or 'round_prefer_floor'; remedy: export with opset 13 or newer"
        )
    rule.s = b"half_pixel"
    set_attributes(node, nearest_mode=_HALF_LATER[asked])
    return [node]


def _number_of_parts(node: onnx.NodeProto, place: Place) -> Nodes:
    if len(node.input) < 2 or not node.input[1]:
        del node.input[1:]
        set_attributes(node, num_outputs=len(node.output))
    return [node]


def _interpolations(node: onnx.NodeProto, place: Place) -> Nodes:
    mode = attribute_of(node, "mode")
    if mode is not None:
        mode.s = {b"bilinear": b"linear", b"bicubic": b"cubic"}.get(mode.s, mode.s)
    return [node]


def _axis_of_transform(node: onnx.NodeProto, place: Place) -> Nodes:
    given = taken(node, "axis")
    axis = np.array(1 if given is None else given.i, np.int64)
    put_input(node, 2, place.constant(f"{node.output[0]}/axis", axis))
    return [node]


def _paddings(node: onnx.NodeProto, place: Place) -> Nodes:
    if (given := attribute_of(node, "paddings")) is not None:
        given.name = "pads"
    return [node]


def _computed_parts(node: onnx.NodeProto, place: Place) -> Nodes:
    """Opset 1 may have the sizes of the parts as an input, of the element type of the data."""
    if len(node.input) > 1 and node.input[1]:
        kind = onnx.TensorProto.INT64
        node.input[1] = place.compute("Cast", [node.input[1]], f"{node.output[0]}/split", to=kind)
    return defaults(axis=0)(node, place)


def _error_function(node: onnx.NodeProto, place: Place) -> Nodes:
    """Before opset 13 also of integers, whose results are cut to integers."""
    kind = place.element_type(node.input[0])
    if kind is None or kind in _FLOATS:
        return [node]
    y = node.output[0]
    node.input[0] = place.compute("Cast", [node.input[0]], f"{y}/float", to=onnx.TensorProto.FLOAT)
    node.output[0] = place.name(f"{y}/erf")
    return [node, onnx.helper.make_node("Cast", [node.output[0]], [y], to=kind)]


def _direction(node: onnx.NodeProto, place: Place) -> Nodes:
    """Before opset 7, `output_sequence` only says whether the first output is computed, which its name says too."""
    taken(node, "output_sequence")
    return [node]


def without_deprecated(node: onnx.NodeProto, place: Place) -> Nodes:
    """GroupNormalization of opset 18 to 20, with one scale and bias per group, by the operators that ONNX still allows.

    The groups are the channels of an instance normalization. ONNX deprecated this version, its checker refuses it, and
    engines run it.
    """
    groups = taken(node, "num_groups")
    taken(node, "stash_type")
    y, kind = node.output[0], place.element_type(node.input[0])
    short = kind == onnx.TensorProto.BFLOAT16  # which InstanceNormalization does not take before opset 22
    if short:
        for at, name in enumerate(node.input):
            node.input[at] = place.compute("Cast", [name], f"{y}/wide{at}", to=onnx.TensorProto.FLOAT)
    x = node.input[0]
    goal = place.compute("Shape", [x], f"{y}/dimensions")
    rows = place.constant(f"{y}/groups", np.array([0, 1 if groups is None else groups.i, -1], np.int64))
    node.op_type, node.input[0] = "InstanceNormalization", place.compute("Reshape", [x, rows], f"{y}/grouped")
    node.output[0] = place.name(f"{y}/normalized")
    made = place.name(f"{y}/whole") if short else y
    nodes = [node, onnx.helper.make_node("Reshape", [node.output[0], goal], [made], allowzero=1)]
    return [*nodes, onnx.helper.make_node("Cast", [made], [y], to=kind)] if short else nodes


_CONSUMED = (
    "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid",
    "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu",
    "Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh",
)  # fmt: skip
_BROADCAST = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip
_axes = integers("axes", 1, empty=False)
_consumed = without("consumed_inputs")

# Operator, opset, step.
_TABLE: tuple[tuple[str, int, Step], ...] = (
    *((name, 6, _consumed) for name in _CONSUMED if name != "Selu"),
    ("Selu", 6, in_turn(_consumed, defaults(alpha=1.6732, gamma=1.0507))),
    *((name, 7, broadcast_from_axis) for name in _BROADCAST),
    ("Concat", 4, defaults(axis=1)),
    ("Reshape", 5, integers("shape", 1)),
    ("Pad", 2, _paddings),
    ("Split", 2, _computed_parts),
    ("LpPool", 2, whole_power),
    ("GlobalLpPool", 2, whole_power),
    ("Cast", 6, named_type),
    ("Tile", 6, repeats_of_one_axis),
    ("Gemm", 7, without("broadcast")),
    ("BatchNormalization", 7, without("is_test")),
    ("Dropout", 7, refuse_training),
    ("PRelu", 7, broadcast_from_axis),
    ("RNN", 7, _direction),
    ("GRU", 7, _direction),
    ("LSTM", 7, _direction),
    ("Upsample", 7, _scales_of_images),
    ("BatchNormalization", 9, per_activation),
    ("Upsample", 9, _scales),
    ("Scan", 9, scan_over_batch),
    ("Dropout", 10, _mask_of_booleans),
    ("Slice", 10, _slices),
    ("TopK", 10, _count_of_top),
    ("Upsample", 10, renamed("Resize")),
    ("Clip", 11, _bounds),
    ("Pad", 11, _padding),
    ("Resize", 11, _one_coordinate_rule),
    ("Slice", 11, _open_ends),
    ("Scatter", 11, renamed("ScatterElements")),
    ("Dropout", 12, _ratio),
    *((name, 13, _flattened) for name in ("Hardmax", "LogSoftmax", "Softmax")),
    *((name, 13, _axes) for name in ("ReduceSum", "Squeeze")),
    ("Unsqueeze", 13, integers("axes", 1)),
    ("Erf", 13, _error_function),
    ("Resize", 13, in_turn(_one_of_two, _half_pixel_for_nearest)),
    ("Resize", 19, _one_of_two),
    ("Split", 13, integers("split", 1)),
    ("BatchNormalization", 14, running_statistics),
    ("RoiAlign", 16, defaults(coordinate_transformation_mode="output_half_pixel")),
    *((name, 18, _axes) for name in _REDUCTIONS),
    ("Split", 18, _number_of_parts),
    ("DFT", 20, _axis_of_transform),
    ("GridSample", 20, _interpolations),
)


def _by_operator() -> dict[str, dict[int, Step]]:
    table: dict[str, dict[int, Step]] = {}
    for operator, opset, step in _TABLE:
        table.setdefault(operator, {})[opset] = step
    return table


STEPS: Mapping[str, Mapping[int, Step]] = _by_operator()
"""By operator, and by the opset that changed it, the conversion of a node of the version before."""
