"""Resize: each axis is a selection of elements, or a product with a matrix built while JAX traces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.core.errors import ShapeError
from deep5.frameworks.jax.table import attribute, given, operator
from deep5.networks.constants import FLOATS

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any
Numbers = tuple[float, ...]


class _How(NamedTuple):
    """The attributes of a Resize."""

    mode: str
    coordinates: str
    rounding: str
    policy: str
    axes: tuple[int, ...] | None
    cubic: float
    outside: float
    exclude: bool
    antialias: bool


class _Axis(NamedTuple):
    """Input size, output size, scale, and the fraction of the input (from 0 to 1) that coordinates cover."""

    extent: int
    goal: int
    scale: float
    first: float
    last: float


_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
}
_COORDINATES: dict[str, Callable[[np.ndarray, _Axis], np.ndarray]] = {
    # Uses the size times the scale, before rounding.
    "align_corners": lambda x, a: x * ((a.extent - 1) / (a.extent * a.scale - 1)) if a.goal > 1 else x * 0,
    "asymmetric": lambda x, a: x / a.scale,
    "half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": lambda x, a: a.extent / 2 * (1 - a.goal / (a.extent * a.scale)) + (x + 0.5) / a.scale - 0.5,
    "pytorch_half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5 if a.goal > 1 else x * 0,
    "tf_crop_and_resize": lambda x, a: (
        a.first * (a.extent - 1) + x * ((a.last - a.first) * (a.extent - 1) / (a.goal - 1))
        if a.goal > 1
        else x * 0 + 0.5 * (a.first + a.last) * (a.extent - 1)
    ),
}
_CROP = "tf_crop_and_resize"


def _resized(x: Array, roi: Numbers | None, scales: Numbers | None, sizes: Numbers | None, how: _How) -> Array:
    axes = tuple(range(x.ndim)) if how.axes is None else tuple(axis % x.ndim for axis in how.axes)
    for axis, part in zip(axes, _parts(x.shape, axes, roi, scales, sizes, how), strict=True):
        if part.extent == part.goal and part.scale == 1 and how.coordinates != _CROP:
            continue
        if not part.extent and part.goal:
            raise ShapeError(f"an axis without elements, resized to {part.goal}; allowed: at least one element")
        where = _COORDINATES[how.coordinates](np.arange(part.goal, dtype=np.float64), part)
        if how.mode == "nearest":
            places = np.clip(_NEAREST[how.rounding](where), 0, part.extent - 1).astype(np.int64)
            x = jnp.take(x, places, axis=axis)
        else:
            x = _product(x, _matrix(where, part, how), axis)
        if how.coordinates == _CROP:
            shape = [1] * x.ndim
            shape[axis] = part.goal
            out = ((where < 0) | (where > part.extent - 1)).reshape(shape)
            x = jnp.where(out, jnp.asarray(how.outside, x.dtype), x)
    return x


def _parts(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    roi: Numbers | None,
    scales: Numbers | None,
    sizes: Numbers | None,
    how: _How,
) -> list[_Axis]:
    extents = [shape[axis] for axis in axes]
    if sizes:
        goals = [int(size) for size in sizes]
        factors = [goal / max(own, 1) for goal, own in zip(goals, extents, strict=True)]
        if how.policy != "stretch":
            factor = min(factors) if how.policy == "not_larger" else max(factors)
            goals, factors = [math.floor(factor * own + 0.5) for own in extents], [factor] * len(axes)
    else:
        factors = list(scales or ())
        goals = [math.floor(own * factor) for own, factor in zip(extents, factors, strict=True)]
    bounds = roi if how.coordinates == _CROP and roi else (0.0,) * len(axes) + (1.0,) * len(axes)
    return [
        _Axis(*values) for values in zip(extents, goals, factors, bounds[: len(axes)], bounds[len(axes) :], strict=True)
    ]


def _linear(distance: np.ndarray, _: float) -> np.ndarray:
    shares: np.ndarray = np.maximum(1 - np.abs(distance), 0)
    return shares


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys, Cubic convolution interpolation for digital image processing, IEEE TASSP 29(6), 1981, equation 15."""
    s = np.abs(distance)
    inner, outer = (a + 2) * s**3 - (a + 3) * s**2 + 1, a * s**3 - 5 * a * s**2 + 8 * a * s - 4 * a
    return np.where(s <= 1, inner, np.where(s < 2, outer, 0))


def _matrix(where: np.ndarray, part: _Axis, how: _How) -> np.ndarray:
    """The interpolation weight of each input element in each output element; shape (output size, input size)."""
    kernel, reach = (_cubic, 2) if how.mode == "cubic" else (_linear, 1)
    squeeze = min(part.scale, 1.0) if how.antialias else 1.0
    wide = math.ceil(reach / squeeze)
    places = np.floor(where)[:, None] + np.arange(1 - wide, wide + 1)
    shares = kernel((places - where[:, None]) * squeeze, how.cubic)
    inside = (places >= 0) & (places < part.extent)
    if how.exclude:
        shares = np.where(inside, shares, 0)
    if how.exclude or how.antialias:
        shares = shares / shares.sum(axis=1, keepdims=True)
    matrix: np.ndarray = np.zeros((part.goal, part.extent))
    rows = np.broadcast_to(np.arange(part.goal)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, part.extent - 1).astype(np.int64)), shares)
    return matrix


def _product(x: Array, matrix: np.ndarray, axis: int) -> Array:
    kind = jnp.promote_types(x.dtype, "float32")
    y = jnp.matmul(jnp.moveaxis(x, axis, -1).astype(kind), matrix.T.astype(kind), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(y, -1, axis).astype(x.dtype)


def _check(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "nearest")
    chosen = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if mode not in ("nearest", "linear", "cubic"):
        return f"mode={mode}; allowed: nearest, linear, cubic"
    if chosen not in _COORDINATES:
        return f"coordinate_transformation_mode={chosen}; allowed: {', '.join(_COORDINATES)}"
    if rounding not in _NEAREST:
        return f"nearest_mode={rounding}; allowed: {', '.join(_NEAREST)}"
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    return None if mode == "nearest" or kind in FLOATS else f"{kind.name if kind else ''} in mode={mode}"


@operator("Resize", _check, host=(1, 2, 3))
def _resize(emitter: Emitter, node: ir.Node) -> None:
    crop = attribute(node, "coordinate_transformation_mode", "half_pixel") == _CROP
    axes = attribute(node, "axes", None)
    how = _How(
        attribute(node, "mode", "nearest"),
        attribute(node, "coordinate_transformation_mode", "half_pixel"),
        attribute(node, "nearest_mode", "round_prefer_floor"),
        attribute(node, "keep_aspect_ratio_policy", "stretch"),
        None if axes is None else tuple(axes),
        attribute(node, "cubic_coeff_a", -0.75),
        attribute(node, "extrapolation_value", 0.0),
        bool(attribute(node, "exclude_outside", 0)),
        bool(attribute(node, "antialias", 0)),
    )
    inputs = [emitter.plain(node.inputs[0]), emitter.setting(given(node, 1)) if crop else "None"]
    inputs += [emitter.setting(given(node, position)) for position in (2, 3)]
    emitter.assign(node.outputs[0], f"{emitter.bind(_resized)}({', '.join(inputs)}, {emitter.bind(how)})")
