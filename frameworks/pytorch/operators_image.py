"""Image operators: resizing and sampling."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import attribute, fixed, kernel

__all__: list[str] = []

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}


def _check_grid(node: ir.Node) -> str | None:
    mode, shape = attribute(node, "mode", "linear"), node.inputs[0].shape  # type: ignore[union-attr]
    axes = None if shape is None else len(shape) - 2
    if mode not in _MODES:
        return f"mode={mode}"
    if axes not in (2, 3) or (axes == 3 and _MODES[mode] == "bicubic"):
        return f"{axes} spatial axes; allowed: 2, and 3 that are not interpolated by cubic polynomials"
    return None


@kernel("GridSample", _check_grid)
def _grid_sample(
    x: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    return F.grid_sample(x, grid, _MODES[mode], padding_mode, bool(align_corners))


def _check_affine(node: ir.Node) -> str | None:
    if not attribute(node, "align_corners", 0):
        return None
    size = fixed(node, 1)
    return (
        "aligned corners with a size that may be 1, for which torch returns 0"
        if size is None or 1 in size[2:]
        else None
    )


@kernel("AffineGrid", _check_affine, settings=(1,))
def _affine_grid(theta: Any, size: Any, *, align_corners: int = 0) -> Any:
    return F.affine_grid(theta, size, bool(align_corners))


def _place(out: Any, mode: str, scale: float, extent: int, goal: int, region: tuple[float, float]) -> Any:
    """The positions in the input of the samples of an axis."""
    exact = scale * extent  # the result's size is the integer part of it
    if mode == "align_corners":
        return out * 0.0 if exact == 1 else out * (extent - 1) / (exact - 1)
    if mode == "asymmetric":
        return out / scale
    if mode == "tf_crop_and_resize":
        start, end = region
        if exact > 1:
            return start * (extent - 1) + out * (end - start) * (extent - 1) / (exact - 1)
        return out * 0.0 + 0.5 * (start + end) * (extent - 1)
    if mode == "pytorch_half_pixel" and goal == 1:
        return out * 0.0
    if mode == "half_pixel_symmetric":
        return extent / 2 * (1 - goal / exact) + (out + 0.5) / scale - 0.5
    return (out + 0.5) / scale - 0.5


def _nearest(place: Any, mode: str) -> Any:
    if mode == "round_prefer_floor":
        return torch.ceil(place - 0.5)
    if mode == "round_prefer_ceil":
        return torch.floor(place + 0.5)
    return torch.floor(place) if mode == "floor" else torch.ceil(place)


def _cubic(distance: Any, a: float) -> Any:
    """The weight of an element at a distance.

    References:
        Keys, Cubic convolution interpolation for digital image processing, IEEE TASSP 29(6), 1981, equation 15.
    """
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


def _weights(place: Any, extent: int, cubic: bool, a: float, stretch: float, exclude_outside: int) -> Any:
    """The weight of every element in every sample, shape (samples, elements), float64."""
    reach = (2 if cubic else 1) * stretch
    first = math.floor(-reach) - 1
    offsets = torch.arange(first, -first + 1, device=place.device, dtype=torch.float64)
    neighbours = place.floor()[:, None] + offsets
    distance = (neighbours - place[:, None]) / stretch
    share = _cubic(distance, a) if cubic else (1 - distance.abs()).clamp(min=0)
    if exclude_outside:
        share = torch.where((neighbours >= 0) & (neighbours < extent), share, 0.0)
    if exclude_outside or stretch > 1:
        share = share / share.sum(1, keepdim=True)
    dense = torch.zeros((len(place), extent), dtype=torch.float64, device=place.device)
    return dense.scatter_add(1, neighbours.clamp(0, extent - 1).long(), share)


def _native(x: Any, mode: str, how: str, scales: list[float], goals: list[int], sizes: Any, a: float) -> Any:
    """The result of torch's own function, if it is equivalent; else None."""
    axes = x.ndim - 2
    if axes not in (1, 2, 3) or list(goals[:2]) != list(x.shape[:2]) or not x.dtype.is_floating_point:
        return None
    if how not in ("half_pixel", "align_corners") or (mode == "cubic" and (axes != 2 or a != -0.75)):
        return None
    name = {"linear": ("linear", "bilinear", "trilinear")[axes - 1], "cubic": "bicubic"}[mode]
    aligned = how == "align_corners"
    if aligned and any(scale * extent != goal for scale, extent, goal in zip(scales, x.shape, goals, strict=True)):
        return None
    if sizes or aligned:
        return F.interpolate(x, size=tuple(goals[2:]), mode=name, align_corners=aligned)
    return F.interpolate(
        x, scale_factor=tuple(scales[2:]), mode=name, align_corners=False, recompute_scale_factor=False
    )


def _policy(extents: list[int], goals: list[int], policy: str) -> tuple[list[float], list[int]]:
    """Scales and sizes if all axes keep their proportions."""
    ratios = [goal / extent for goal, extent in zip(goals, extents, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * len(goals), [math.floor(scale * extent + 0.5) for extent in extents]


@kernel("Resize", settings=(1, 2, 3))
def _resize(
    x: Any,
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
) -> Any:
    how = coordinate_transformation_mode
    chosen = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
    extents = [x.shape[axis] for axis in chosen]
    if sizes:
        goals, factors = list(sizes), [goal / extent for goal, extent in zip(sizes, extents, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factors, goals = _policy(extents, goals, keep_aspect_ratio_policy)
    else:
        factors = list(scales)
        goals = [math.floor(extent * scale) for extent, scale in zip(extents, factors, strict=True)]
    whole, ratios = list(x.shape), [1.0] * x.ndim
    for axis, goal, factor in zip(chosen, goals, factors, strict=True):
        whole[axis], ratios[axis] = goal, factor
    if mode != "nearest" and not (antialias or exclude_outside or keep_aspect_ratio_policy != "stretch"):
        found = _native(x, mode, how, ratios, whole, sizes, cubic_coeff_a)
        if found is not None:
            return found
    outside, kind = None, x.dtype
    for number, axis in enumerate(chosen):
        extent, goal, scale = extents[number], goals[number], factors[number]
        if goal == extent and scale == 1.0 and how != "tf_crop_and_resize":
            continue
        out = torch.arange(goal, device=x.device, dtype=torch.float64)
        region = (roi[number], roi[len(chosen) + number]) if roi else (0.0, 1.0)
        place = _place(out, how, scale, extent, goal, region)
        if how == "tf_crop_and_resize":
            shape = [1] * x.ndim
            shape[axis] = -1
            beyond = ((place < 0) | (place > extent - 1)).reshape(shape)
            outside = beyond if outside is None else outside | beyond
        if mode == "nearest":
            x = x.index_select(axis, _nearest(place, nearest_mode).long().clamp(0, extent - 1))
            continue
        stretch = max(1.0 / scale, 1.0) if antialias else 1.0
        share = _weights(place, extent, mode == "cubic", cubic_coeff_a, stretch, exclude_outside)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        x = torch.tensordot(x.to(wide), share.to(wide), ([axis], [1])).movedim(-1, axis)
    x = x if x.dtype == kind else (x if kind.is_floating_point else x.round()).to(kind)
    return x if outside is None else torch.where(outside, extrapolation_value, x)


@kernel("Upsample", settings=(1,))
def _upsample(x: Any, scales: Any = None, *, mode: str = "nearest") -> Any:
    return _resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
