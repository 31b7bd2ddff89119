"""What rules of drawn_rules.py are about: conditions on the attributes and inputs of a case."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from drawn_answers import Case
from drawn_thirds import resized, softmax

__all__ = [
    "FLOAT32",
    "backwards_to_the_end",
    "below_stride",
    "block",
    "cached",
    "cancels",
    "clipped_cell",
    "copied",
    "dilated",
    "empty",
    "ends_before_start",
    "evaluated_places",
    "fractional",
    "from_the_back",
    "given",
    "ignored",
    "inexact_step",
    "lengths_or_functions",
    "mixed_signs",
    "open_corner",
    "other_defaults",
    "pools",
    "rows_of_a_matrix",
    "short_batch",
    "single",
    "size_by_rounding",
    "summed_short",
    "tie",
    "underflows",
    "unordered",
]

FLOAT32 = 2.0**-24
_TINY = {"float16": 2.0**-14, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float64": 2.0**-1022}


def given(case: Case, **wanted: object) -> bool:
    """Whether attributes have these values."""
    return all(case.attribute(name) == value for name, value in wanted.items())


def double(case: Case) -> bool:
    return any(isinstance(each, np.ndarray) and each.dtype == np.float64 for each in case.drawn.inputs)


def single(case: Case) -> bool:
    """Whether float64 is computed in float32; of a resize, only coordinates are, which move no nearest element."""
    nearest = case.operator == "Resize" and case.attribute("mode", "nearest") == "nearest"
    return double(case) and not nearest


def empty(case: Case) -> bool:
    """Whether a reduction has no elements, or a product of a matrix and a vector has no terms."""
    x = case.drawn.inputs[0]
    return case.drawn.inputs[1].shape == (0,) if case.operator == "MatMul" else bool(x.size == 0)


def summed_short(case: Case) -> float:
    """The u of a sum that is rounded to a short element type after each term."""
    x = case.drawn.inputs[0]
    return x.size * {"bfloat16": 2.0**-8, "float16": 2.0**-11}[x.dtype.name]


def mixed_signs(case: Case) -> bool:
    """Whether uint8 is multiplied by int8."""
    weights = case.drawn.inputs[1 if case.operator == "MatMulInteger" else 3]
    return (case.drawn.inputs[0].dtype.name, weights.dtype.name) == ("uint8", "int8")


def rows_of_a_matrix(case: Case) -> bool:
    """Whether a softmax is drawn, as the node itself or in the body of one."""
    graphs = [each for each in case.drawn.attributes.values() if isinstance(each, onnx.GraphProto)]
    inside = any(node.op_type == "Softmax" for graph in graphs for node in graph.node)
    return case.opset < 13 and (inside or not graphs)


def underflows(case: Case) -> bool:
    """Whether the softmax has numbers below the smallest normal one."""
    x = case.drawn.inputs[0]
    least = float(np.min(softmax(case)[0], initial=0.0))
    return x.dtype.name in _TINY and least < math.log(_TINY[x.dtype.name])


def short_batch(case: Case) -> bool:
    """ONNX's reference counts channels by the batch."""
    x = case.drawn.inputs[0]
    return bool(x.shape[0] < x.shape[1])


def inexact_step(case: Case) -> bool:
    """Whether off + (on - off) is not on, or the other way round."""
    off, on = case.drawn.inputs[2]
    with np.errstate(all="ignore"):
        return case.drawn.inputs[2].dtype.kind in "fV" and bool((on - off) + off != on or 0 * (on - off) + off != off)


def ends_before_start(case: Case) -> bool:
    """ONNX's reference slices with an end that lies before the first dimension."""
    end = case.attribute("end")
    return end is not None and end < -case.drawn.inputs[0].ndim


def backwards_to_the_end(case: Case) -> bool:
    ends, steps = case.array(2), case.array(4)
    return steps is not None and bool(np.any((steps < 0) & (ends >= 2**31 - 1)))


def unordered(case: Case) -> bool:
    """Axes that are negative or do not ascend."""
    axes = case.attribute("axes")
    return axes is not None and (min(axes, default=0) < 0 or list(axes) != sorted(axes))


def block(case: Case) -> bool:
    """Whether more than one string follows an index."""
    x, axis = case.drawn.inputs[0], case.attribute("axis", 0)
    return x.dtype.kind == "O" and math.prod(x.shape[axis % x.ndim + 1 :]) > 1


def open_corner(case: Case) -> bool:
    return bool(case.attribute("align_corners", 0)) and 1 in case.drawn.inputs[1][2:].tolist()


def lengths_or_functions(case: Case) -> bool:
    """What ONNX's reference ignores in a recurrent layer."""
    names = ("activations", "activation_alpha", "activation_beta", "clip")
    some = any(case.attribute(name) is not None for name in names) or bool(case.attribute("input_forget", 0))
    return some or case.array(4) is not None


def other_defaults(case: Case) -> bool:
    """Functions of a recurrent layer for which ONNX Runtime has other constants than ONNX."""
    return bool({"Affine", "ScaledTanh", "Softplus", "ThresholdedRelu"} & set(case.attribute("activations", ())))


def clipped_cell(case: Case) -> bool:
    """ONNX Runtime clips the gates of an LSTM, and not the cell, which is the input of an activation as well."""
    return case.operator == "LSTM" and case.attribute("clip") is not None


def cached(case: Case) -> bool:
    """A causal mask where keys are cached and the queries are not as many as the new keys."""
    q, k = case.drawn.inputs[:2]
    return bool(case.attribute("is_causal", 0)) and case.array(4) is not None and q.shape[-2] != k.shape[-2]


def _ones(case: Case, name: str) -> bool:
    return set(case.attribute(name, [1])) == {1}


def pools(case: Case) -> bool:
    """Pools for which ONNX's reference pads or dilates otherwise."""
    auto, dilated = case.attribute("auto_pad", "NOTSET"), not _ones(case, "dilations")
    if case.operator == "MaxPool":  # one of its two functions is for strides and dilations of 1
        return auto == "SAME_LOWER" or (not dilated and _ones(case, "strides"))
    return bool(case.attribute("ceil_mode", 0)) or (auto != "NOTSET" and dilated)


def _same_totals(case: Case) -> list[int]:
    """What SAME adds to each dimension, by the formula; below 0 where windows do not reach the end."""
    given = case.array(3 if case.operator == "QLinearConv" else 1) if "Conv" in case.operator else None
    kernel: Sequence[int] = case.attribute("kernel_shape") if given is None else given.shape[2:]
    ones = [1] * len(kernel)
    strides, dilations = case.attribute("strides", ones), case.attribute("dilations", ones)
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    if case.operator == "ConvTranspose":
        return [span - stride for span, stride in zip(spans, strides, strict=True)]
    return [
        (-(-size // stride) - 1) * stride + span - size
        for size, stride, span in zip(case.drawn.inputs[0].shape[2:], strides, spans, strict=True)
    ]


def below_stride(case: Case) -> bool:
    """Whether SAME, with a window below its stride, would add less than nothing."""
    same = str(case.attribute("auto_pad", "")).startswith("SAME")
    return same and any(total < 0 for total in _same_totals(case))


def dilated(case: Case) -> bool:
    """Of other than two dimensions ONNX Runtime ignores dilations."""
    return len(case.drawn.inputs[2]) != 2 and not _ones(case, "dilations")


def tie(case: Case) -> bool:
    """Whether a nearest position, rounded in float32 or in the element type of a grid, may lie on the other side of a
    tie; or any position on the other side of the end of a cropped image.
    """
    nearest = case.attribute("mode", "nearest") == "nearest"
    if case.operator == "GridSample":
        return nearest and _grid_tie(case)
    whole = case.since < 11 or case.attribute("nearest_mode", "round_prefer_floor") in ("floor", "ceil")
    for axis in resized(case):
        if axis.places == list(range(axis.size)):  # it stays as it is
            continue
        for place in axis.places:
            near = round(place) if whole else math.floor(place) + 0.5
            slack = 8 * FLOAT32 * max(1.0, abs(place), axis.size)
            ends = min(abs(place), abs(place - axis.size + 1)) if axis.cropped else math.inf
            if (nearest and abs(place - near) <= slack) or ends <= slack:
                return True
    return False


def _grid_tie(case: Case) -> bool:
    x, grid = case.drawn.inputs
    u = max(FLOAT32, {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(grid.dtype.name, 0.0))
    for size, position in zip(x.shape[2:], np.moveaxis(grid.astype(np.float64), -1, 0)[::-1], strict=True):
        at = (position + 1) / 2 * (size - 1) if case.attribute("align_corners", 0) else ((position + 1) * size - 1) / 2
        if np.any(np.abs(at - np.floor(at) - 0.5) <= 8 * u * np.maximum(np.abs(at), size)):
            return True
    return False


def evaluated_places(case: Case) -> bool:
    """Places of an image that ONNX's reference has otherwise: all of one that is cropped or becomes one pixel, and of
    cubic interpolation those that are an integer but for rounding, where its neighbors do not fit its weights.
    """
    if given(case, coordinate_transformation_mode="tf_crop_and_resize"):
        return True
    axes = resized(case)
    if given(case, coordinate_transformation_mode="pytorch_half_pixel") and any(axis.goal == 1 for axis in axes):
        return True
    places = [place for axis in axes if axis.places != list(range(axis.size)) for place in axis.places]
    return given(case, mode="cubic") and any(
        abs(place - round(place)) <= 8 * FLOAT32 * max(1.0, abs(place)) for place in places
    )


def from_the_back(case: Case) -> bool:
    """Whether dimensions are counted from the back, and a policy keeps their ratio."""
    policy = case.attribute("keep_aspect_ratio_policy", "stretch")
    return policy != "stretch" and min(case.attribute("axes", [0])) < 0


def fractional(case: Case) -> bool:
    """Whether corners are aligned, and a scale gives no integer size."""
    some = any(abs(axis.ratio * axis.size - axis.goal) > 1e-5 for axis in resized(case))
    return some and given(case, coordinate_transformation_mode="align_corners")


def copied(case: Case) -> bool:
    """Whether every size stays (with antialias or of a part, that of an axis), and coordinates move."""
    axes = resized(case)
    moved = [axis.goal == axis.size and axis.places != list(range(axis.size)) for axis in axes]
    single = bool(case.attribute("antialias", 0)) or any(axis.cropped for axis in axes)
    return any(moved) and (single or all(axis.goal == axis.size for axis in axes))


def size_by_rounding(case: Case) -> bool:
    """Whether a size is an integer in float32 only."""
    return any(math.floor(axis.ratio * axis.size) != axis.goal for axis in resized(case) if axis.by_scale)


def ignored(case: Case) -> bool:
    index = case.attribute("ignore_index")
    return index is not None and bool(np.any(case.drawn.inputs[1] == index))


def cancels(case: Case) -> float:
    """The u of a variance that is the mean of squares minus the square of the mean."""
    x = case.drawn.inputs[0].astype(np.float64)
    axes = tuple(case.attribute("axes", [0, 2, 3]))
    variance, square = x.var(axes), np.square(x).mean(axes)
    return FLOAT32 * float(np.max(np.divide(square, variance, out=np.full(square.shape, np.inf), where=variance > 0)))
