"""Resize: along each axis a repetition, a selection of elements, or a product with a matrix of weights."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.core.errors import ShapeError
from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.factors import resized_extent

__all__ = ["OPERATORS", "Interpolation", "cubic", "repeats_elements", "resize"]

_CROP = "tf_crop_and_resize"
_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", _CROP)
_NEAREST = ("ceil", "floor", "round_prefer_ceil", "round_prefer_floor")
_MODES = ("nearest", "linear", "cubic")
_FLOAT32_STEP = 2.0**-23


class Interpolation(NamedTuple):
    """ONNX's attributes of Resize."""

    mode: str
    coordinates: str
    nearest: str
    a: float
    exclude_outside: bool
    antialias: bool


class _Axis(NamedTuple):
    """The resizing of one axis: from a size to another, by a factor, over a part of it (0, 1: all)."""

    extent: Any
    goal: Any
    scale: Any
    start: Any = 0.0
    end: Any = 1.0


def resize(
    xp: Primitives,
    x: Array,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    antialias: int = 0,
    axes: Any = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """ONNX's Resize; integers are interpolated in float64 and truncated.

    Raises:
        ShapeError: Factors or sizes are not one per axis, or an empty axis is enlarged.
    """
    how = Interpolation(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias)
    )
    over = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
    plan = _plan(xp, [x.shape[axis] for axis in over], roi, scales, sizes, how, keep_aspect_ratio_policy)
    steps = [(axis, step) for axis, step in zip(over, plan, strict=True) if not _is_same(step, how)]
    kind, factors = x.dtype, [1] * x.ndim
    if mode != "nearest" and steps:
        x = xp.wide(x) if xp.is_floating(kind) else xp.astype(x, xp.float64)
    for axis, step in steps:
        if (factor := _repetitions(step, how)) is not None:
            factors[axis] = factor
        elif mode == "nearest":
            x = xp.take(x, xp.table(_places, *step, how, like=x), axis=axis)
        else:
            x = _blended(xp, x, axis, xp.table(_weights, *step, how, like=x))
    x = _converted(xp, _repeated(xp, x, factors), kind)
    if how.coordinates == _CROP:
        for axis, step in steps:
            outside = xp.reshape(xp.table(_outside, *step, like=x), _along(axis, x.ndim))
            x = xp.where(outside, xp.asarray(extrapolation_value, dtype=kind), x)
    return x


def _upsample(xp: Primitives, x: Array, scales: Any = None, *, mode: str = "nearest") -> Array:
    return resize(xp, x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _plan(
    xp: Primitives, extents: list[Any], roi: Any, scales: Any, sizes: Any, how: Interpolation, policy: str
) -> list[_Axis]:
    count = len(extents)
    bounds = [(0.0, 1.0)] * count
    if how.coordinates == _CROP and roi is not None:
        bounds = [(roi[index], roi[count + index]) for index in range(count)]
    given = sizes if scales is None or not len(scales) else scales
    if given is None or len(given) != count:
        raise ShapeError(f"Resize: got {0 if given is None else len(given)} factors or sizes; expected {count}")
    if given is scales:
        goals = [_goal(xp, extent, scales[index]) for index, extent in enumerate(extents)]
        factors = [scales[index] for index in range(count)]
    else:
        goals = [sizes[index] for index in range(count)]
        factors = [_ratio(xp, goal, extent) for goal, extent in zip(goals, extents, strict=True)]
        if policy != "stretch":
            common = _common(xp, factors, policy)
            goals = [_rounded(xp, common, extent) for extent in extents]
            factors = [common] * count
    for extent, goal in zip(extents, goals, strict=True):
        if _known(extent, goal) and goal and not extent:
            raise ShapeError(f"Resize: an axis without elements, resized to {goal}; allowed: at least one element")
    return [_Axis(*each, *bound) for each, bound in zip(zip(extents, goals, factors, strict=True), bounds, strict=True)]


def _known(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _goal(xp: Primitives, extent: Any, scale: Any) -> Any:
    """The size by a factor, in float32 as in ONNX Runtime.

    It does not depend on the part that is taken: the specification multiplies by its length, and ONNX's inference, ONNX
    Runtime and ONNX's reference do not.
    """
    if _known(scale) and scale == 1.0:
        return extent
    if _known(extent, scale):
        return xp.host(resized_extent, extent, scale)
    return xp.astype(xp.floor(_number(xp, extent, xp.float32) * _number(xp, scale, xp.float32)), xp.int64)


def _number(xp: Primitives, value: Any, dtype: Any) -> Any:
    return xp.asarray(value, dtype=dtype)


def _ratio(xp: Primitives, goal: Any, extent: Any) -> Any:
    if _known(goal, extent):
        return goal / extent if extent else 1.0
    return _number(xp, goal, xp.float64) / _number(xp, extent, xp.float64)


def _common(xp: Primitives, factors: list[Any], policy: str) -> Any:
    """The factor of all axes if they keep their proportions."""
    if _known(*factors):
        return (min if policy == "not_larger" else max)(factors)
    together = xp.stack([_number(xp, factor, xp.float64) for factor in factors])
    return (xp.min if policy == "not_larger" else xp.max)(together)


def _rounded(xp: Primitives, factor: Any, extent: Any) -> Any:
    if _known(factor, extent):
        return math.floor(factor * extent + 0.5)
    return xp.astype(xp.floor(factor * _number(xp, extent, xp.float64) + 0.5), xp.int64)


def _is_same(step: _Axis, how: Interpolation) -> bool:
    """Whether an axis is known to keep its size and values."""
    if how.coordinates == _CROP and not (_known(step.start, step.end) and (step.start, step.end) == (0.0, 1.0)):
        return False
    if _known(step.extent, step.goal):
        return bool(step.extent == step.goal) and (not _known(step.scale) or bool(step.scale == 1.0))
    return _known(step.scale) and bool(step.scale == 1.0)


def repeats_elements(coordinates: str, nearest: str) -> bool:
    """Whether the nearest elements by an integer factor are each element in turn, repeated.

    With an integer factor, no position is equally close to two elements.
    """
    if coordinates == "asymmetric":
        return nearest == "floor"
    return coordinates in ("half_pixel", "pytorch_half_pixel") and nearest.startswith("round")


def _repetitions(step: _Axis, how: Interpolation) -> int | None:
    """How often an axis repeats each element; None if it does anything else."""
    if how.mode != "nearest" or not repeats_elements(how.coordinates, how.nearest):
        return None
    if not _known(step.scale) or step.scale < 1 or step.scale != int(step.scale):
        return None
    factor = int(step.scale)
    if how.coordinates == "pytorch_half_pixel" and not _known(step.goal):
        return None
    return factor if not _known(step.extent, step.goal) or step.goal == step.extent * factor else None


def _repeated(xp: Primitives, x: Array, factors: list[int]) -> Array:
    """Each element repeated along each axis."""
    if all(factor == 1 for factor in factors):
        return x
    apart, wide, whole = [], [], []
    for extent, factor in zip(x.shape, factors, strict=True):
        apart += [extent] if factor == 1 else [extent, 1]
        wide += [extent] if factor == 1 else [extent, factor]
        whole.append(extent * factor)
    return xp.reshape(xp.broadcast_to(xp.reshape(x, tuple(apart)), tuple(wide)), tuple(whole))


def _coordinates(xp: Any, extent: Any, goal: Any, scale: Any, start: Any, end: Any, how: str) -> Any:
    """The positions of the result's elements in the input, in input elements; float64, shape (goal,)."""
    at = xp.arange(0, goal, dtype=xp.float64)
    extent, goal, scale, start, end = (xp.asarray(each, dtype=xp.float64) for each in (extent, goal, scale, start, end))
    if how == "asymmetric":
        return at / scale
    if how == "align_corners":
        # The size before rounding, which ONNX's tests require.
        last = scale * extent - 1
        return xp.where(last != 0, at * ((extent - 1) / xp.where(last != 0, last, 1.0)), 0.0 * at)
    if how == _CROP:
        each = (end - start) * (extent - 1) / xp.where(goal > 1, goal - 1, 1.0)
        return xp.where(goal > 1, start * (extent - 1) + at * each, 0.0 * at + 0.5 * (start + end) * (extent - 1))
    half = (at + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return xp.where(goal > 1, half, 0.0 * half)
    return half + extent / 2 * (1 - goal / (scale * extent)) if how == "half_pixel_symmetric" else half


def _places(xp: Any, extent: Any, goal: Any, scale: Any, start: Any, end: Any, how: Interpolation) -> Any:
    """The index of the nearest element of each position; int64, shape (goal,)."""
    at = _coordinates(xp, extent, goal, scale, start, end, how.coordinates)
    halves = xp.round(2 * at) / 2
    # Scales are float32, where 3 times 1 / 3 is 1: positions this close to an element or a midpoint move to it.
    close = xp.abs(at - halves) <= _FLOAT32_STEP * xp.maximum(xp.abs(at), xp.ones_like(at))
    at = xp.where(close, halves, at)
    if how.nearest == "round_prefer_floor":
        at = xp.ceil(at - 0.5)
    elif how.nearest == "round_prefer_ceil":
        at = xp.floor(at + 0.5)
    else:
        at = xp.floor(at) if how.nearest == "floor" else xp.ceil(at)
    return xp.astype(_inside(xp, at, extent), xp.int64)


def _inside(xp: Any, at: Any, extent: Any) -> Any:
    last = xp.asarray(extent, dtype=xp.float64) - 1
    return xp.minimum(xp.maximum(at, xp.zeros_like(at)), last)


def cubic(xp: Any, distance: Any, a: float) -> Any:
    """The weight of an element at a distance.

    References:
        Keys, Cubic convolution interpolation for digital image processing, IEEE TASSP 29(6), 1981, equation 15.
    """
    d = xp.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return xp.where(d <= 1, near, xp.where(d < 2, far, xp.zeros_like(d)))


def _weights(xp: Any, extent: Any, goal: Any, scale: Any, start: Any, end: Any, how: Interpolation) -> Any:
    """The weight of every element in every position; float64, shape (goal, elements).

    What lies outside counts as the element at that end, or not at all (`exclude_outside`).
    """
    at = _coordinates(xp, extent, goal, scale, start, end, how.coordinates)[:, None]
    one = xp.ones((), dtype=xp.float64)
    squeeze = xp.minimum(xp.asarray(scale, dtype=xp.float64), one) if how.antialias else one
    last = xp.asarray(extent, dtype=xp.float64) - 1

    def weight(places: Any) -> Any:
        distance = (places - at) * squeeze
        if how.mode == "cubic":
            return cubic(xp, distance, how.a)
        return xp.maximum(1 - xp.abs(distance), xp.zeros_like(distance))

    elements = xp.arange(0, extent, dtype=xp.float64)
    weights = weight(elements)
    if not how.exclude_outside:
        reach = xp.ceil((2 if how.mode == "cubic" else 1) / squeeze) + 1
        offsets = xp.arange(0, xp.astype(2 * reach, xp.int64), dtype=xp.float64) - reach + 1
        around = xp.floor(at) + offsets
        beyond = weight(around)
        for out, end_element in ((around < 0, 0.0 * last), (around > last, last)):
            total = xp.sum(xp.where(out, beyond, xp.zeros_like(beyond)), axis=1, keepdims=True)
            weights = weights + xp.where(elements == end_element, total, xp.zeros_like(weights))
    if how.exclude_outside or how.antialias:
        total = xp.sum(weights, axis=1, keepdims=True)
        weights = weights / xp.where(total != 0, total, xp.ones_like(total))
    return weights


def _outside(xp: Any, extent: Any, goal: Any, scale: Any, start: Any, end: Any) -> Any:
    at = _coordinates(xp, extent, goal, scale, start, end, _CROP)
    return (at < 0) | (at > xp.asarray(extent, dtype=xp.float64) - 1)


def _along(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(-1 if at == axis else 1 for at in range(rank))


def _blended(xp: Primitives, x: Array, axis: int, weights: Array) -> Array:
    """The product with the weights (goal, elements) along an axis, without a transposition."""
    shape, weights = x.shape, xp.astype(weights, x.dtype)
    goal = weights.shape[0]
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if axis == x.ndim - 1:
        y = xp.matmul(xp.reshape(x, (before, shape[axis])), xp.permute_dims(weights, (1, 0)))
    else:
        y = xp.matmul(weights, xp.reshape(x, (before, shape[axis], after)))
    return xp.reshape(y, (*shape[:axis], goal, *shape[axis + 1 :]))


def _converted(xp: Primitives, x: Array, kind: Any) -> Array:
    """x in an element type; integers are limited to its range and truncated."""
    if x.dtype == kind:
        return x
    if xp.is_floating(kind):
        return xp.astype(x, kind)
    low, high = xp.limits(kind)
    return xp.astype(xp.clip(x, float(low), float(high)), kind)


def _check(node: ir.Node) -> str | None:
    for name, default, allowed in (
        ("mode", "nearest", _MODES),
        ("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        ("nearest_mode", "round_prefer_floor", _NEAREST),
    ):
        chosen = attribute(node, name, default)
        if chosen not in allowed:
            return f"{name}={chosen}; allowed: {', '.join(allowed)}"
    return None


OPERATORS = {
    "Resize": Composite(function=resize, settings=(1, 2, 3), traced=(1, 2, 3), check=_check, layout="axes"),
    "Upsample": Composite(function=_upsample, settings=(1,), traced=(1,), layout="onnx"),
}
