"""Resizing along axes: the input position of each output element, and the weights of its neighbors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.elements import in_range
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.shape import repeat_elements

__all__ = ["Interpolation", "resize"]

# Up to this number of neighbors, one pass per neighbor is faster than a product with a matrix of all weights.
_FEW_NEIGHBOURS = 4
_FLOAT32_STEP = 2.0**-23
# A position at the edge of an image is in it, however its product in float64 is rounded.
_ROUNDED = 1e-9


@dataclass(frozen=True, kw_only=True)
class Interpolation:
    """The attributes of ONNX Resize, under their ONNX names."""

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    exclude_outside: bool
    antialias: bool


class _Axis(NamedTuple):
    """The resizing of one axis: from a length to another, by a factor, over a part of it (0, 1: all)."""

    length: int
    goal: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    interpolation: Interpolation,
    axes: Sequence[int] | None,
    policy: str,
    extrapolation_value: float,
) -> Array:
    """ONNX Resize (opset 19), axis by axis.

    Args:
        x: Any shape; integers are computed in float64 and truncated.
        roi: For `"tf_crop_and_resize"`: starts, then ends, one per axis, as fractions of the input.
        scales: Factors, one per axis; None or empty if there are sizes.
        sizes: Sizes of the result.
        interpolation: Coordinates and weights of elements.
        axes: The axes of scales, sizes and roi; None: all.
        policy: ONNX's `keep_aspect_ratio_policy`.
        extrapolation_value: The value of elements outside x, in `"tf_crop_and_resize"`.

    Raises:
        ShapeError: Factors or sizes are not one per axis or not above 0, or an empty axis is enlarged.

    References:
        Keys, Cubic convolution interpolation for digital image processing, 1981, equation 4.
    """
    over = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    cropped = interpolation.coordinate_transformation_mode == "tf_crop_and_resize"
    plan = _plan(x.shape, over, roi if cropped else None, scales, sizes, policy)
    steps = {
        axis: step
        for axis, step in plan.items()
        if step.goal != step.length or step.scale != 1.0 or (step.start, step.end) != (0.0, 1.0)
    }
    if interpolation.mode == "nearest":
        result = _nearest(x, steps, interpolation)
    else:
        result = x if x.dtype.kind == "f" else x.astype(np.float64)
        # Shrink first: it leaves fewer elements for the other axes.
        for axis in sorted(steps, key=lambda axis: steps[axis].goal / max(steps[axis].length, 1)):
            result = _blended(result, axis, *_weights(steps[axis], interpolation))
        result = in_range(result if steps else x.copy(), x.dtype)
    if cropped:
        for axis, step in steps.items():
            at = _coordinates(step, interpolation.coordinate_transformation_mode)
            outside = (at < -_ROUNDED) | (at > step.length - 1 + _ROUNDED)
            if outside.any():
                result = np.array(result)
                result[(slice(None),) * axis + (outside,)] = extrapolation_value
    return result


def _plan(
    shape: tuple[int, ...],
    over: Sequence[int],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    policy: str,
) -> dict[int, _Axis]:
    given = sizes if scales is None or not scales.size else scales
    if given is None or len(given) != len(over):
        raise ShapeError(f"Resize: got {0 if given is None else len(given)} factors or sizes; expected {len(over)}")
    if not (given > 0).all():
        raise ShapeError(f"Resize: got {given.tolist()}; allowed: factors or sizes above 0")
    parts = np.array([0.0, 1.0]).repeat(len(over)) if roi is None else np.asarray(roi, np.float64)
    bounds = list(zip(parts[: len(over)].tolist(), parts[len(over) :].tolist(), strict=True))
    lengths = [shape[axis] for axis in over]
    if given is sizes:
        goals = [int(size) for size in sizes]
        factors = [goal / length if length else 1.0 for goal, length in zip(goals, lengths, strict=True)]
        if policy != "stretch":
            common = min(factors) if policy == "not_larger" else max(factors)
            goals = [math.floor(common * length + 0.5) for length in lengths]
            factors = [common] * len(over)
    else:
        # In float32 and without the part of roi, as in ONNX's shape inference: there 10 · 0.7 is 7, in float64 it is
        # less, and ONNX Runtime and ONNX's reference have its size.
        goals = [
            math.floor(np.float32(length) * np.float32(factor)) for length, factor in zip(lengths, given, strict=True)
        ]
        factors = [float(factor) for factor in given]
    if any(goal > 0 and length == 0 for goal, length in zip(goals, lengths, strict=True)):
        raise ShapeError(f"Resize: got the shape {shape}, which has no elements; expected some, to be made more of")
    return {
        axis: _Axis(length, goal, factor, *bound)
        for axis, length, goal, factor, bound in zip(over, lengths, goals, factors, bounds, strict=True)
    }


def _coordinates(axis: _Axis, mode: str) -> Array:
    """The positions of the result's elements in the input, in input elements; float64, (goal,)."""
    length, goal, scale, start, end = axis
    at = np.arange(goal, dtype=np.float64)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        width = scale * length
        return at * ((length - 1) / (width - 1)) if width != 1 else at * 0.0
    if mode == "tf_crop_and_resize":
        if goal == 1:
            return np.array([0.5 * (start + end) * (length - 1)])
        return start * (length - 1) + at * (end - start) * (length - 1) / (goal - 1)
    if mode == "pytorch_half_pixel" and goal <= 1:
        return at * 0.0
    half: Array = (at + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        half += length / 2 * (1 - goal / (scale * length))
    return half


def _rounded(at: Array, mode: str) -> Array:
    halves = np.rint(2 * at) / 2
    # Scales are float32, where 3 · (1 / 3) is 1: snap positions this close to an element or a midpoint.
    at = np.where(np.abs(at - halves) <= _FLOAT32_STEP * np.maximum(np.abs(at), 1), halves, at)
    if mode == "round_prefer_floor":
        return np.ceil(at - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(at + 0.5)
    return np.floor(at) if mode == "floor" else np.ceil(at)


def _nearest(x: Array, steps: dict[int, _Axis], interpolation: Interpolation) -> Array:
    places = {axis: _places(step, interpolation) for axis, step in steps.items()}
    factors = [1] * x.ndim
    for axis, step in steps.items():
        factor, rest = divmod(step.goal, max(step.length, 1))
        if rest or not factor or not np.array_equal(places[axis], np.arange(step.goal) // factor):
            break
        factors[axis] = factor
    else:
        return repeat_elements(x, factors)
    for axis in sorted(steps, key=lambda axis: steps[axis].goal / max(steps[axis].length, 1)):
        x = np.take(x, places[axis], axis=axis)
    return x


@lru_cache(maxsize=256)
def _places(axis: _Axis, interpolation: Interpolation) -> Array:
    at = _rounded(_coordinates(axis, interpolation.coordinate_transformation_mode), interpolation.nearest_mode)
    return at.clip(0, max(axis.length - 1, 0)).astype(np.intp)


@lru_cache(maxsize=256)
def _weights(axis: _Axis, interpolation: Interpolation) -> tuple[Array, Array]:
    """For each element of the result its neighbors in the input, and their weights, (goal, neighbors)."""
    at = _coordinates(axis, interpolation.coordinate_transformation_mode)
    squeeze = min(axis.scale, 1.0) if interpolation.antialias else 1.0
    cubic = interpolation.mode == "cubic"
    reach = math.floor((2 if cubic else 1) / squeeze)
    first = np.floor(at)[:, None]
    places = first + np.arange(1 - reach - (squeeze < 1.0), reach + 1 + (squeeze < 1.0))
    distance = np.abs(places - at[:, None]) * squeeze
    weights = _cubic(distance, interpolation.cubic_coeff_a) if cubic else np.maximum(1 - distance, 0.0)
    if interpolation.exclude_outside:
        weights = np.where((places >= 0) & (places < axis.length), weights, 0.0)
    if interpolation.exclude_outside or squeeze < 1.0:
        total = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    return places.clip(0, max(axis.length - 1, 0)).astype(np.intp), weights


def _cubic(distance: Array, a: float) -> Array:
    """Keys's kernel: its two pieces, and 0 from distance 2."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * a * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _blended(x: Array, axis: int, places: Array, weights: Array) -> Array:
    weights = weights.astype(x.dtype)
    if places.shape[1] > _FEW_NEIGHBOURS:
        matrix = np.zeros((x.shape[axis], len(places)), x.dtype)
        np.add.at(matrix, (places, np.arange(len(places))[:, None]), weights)
        return np.moveaxis(np.matmul(np.moveaxis(x, axis, -1), matrix), -1, axis)
    broadcast: Any = (slice(None), *[None] * (x.ndim - 1 - axis))
    total = np.take(x, places[:, 0], axis=axis)
    total *= weights[:, 0][broadcast]
    for place, weight in zip(places.T[1:], weights.T[1:], strict=True):
        part = np.take(x, place, axis=axis)
        part *= weight[broadcast]
        total += part
    return total
