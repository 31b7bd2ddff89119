"""Image operators: resizing and sampling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.primitives import PRIMITIVES
from deep5.frameworks.pytorch.table import kernel
from deep5.networks.kernels.resizing import repeats_elements, resize
from deep5.networks.kernels.sampling import OPERATORS as COMPOSITES
from deep5.networks.kernels.sampling import check_grid
from deep5.networks.kernels.searching import too_close
from deep5.networks.onnx.factors import resized_extent

__all__: list[str] = []

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}
_GRID = "287 and 97 times at (2, 3, 16, 16), 19 and 3.2 at (8, 32, 56, 56)"
_BOXES = "1.8 times for 8 boxes, 1.6 for 256, 1.9 for those of 20 classes"
_COMPOSITE = COMPOSITES["GridSample"].function
_RESIZE = (
    "linear interpolation by torch: 3.0 and 2.3 times at (2, 3, 16, 16), 1.5 and 0.5 at (8, 32, 56, 56); "
    "repetition by torch: 3.6 and 2.6 times, 1.2 and 3.4; few elements by cubic polynomials: 3.1 and 1.4"
)


def _computes(x: Any, grid: Any, mode: str, padding_mode: str) -> bool:
    """Whether torch's own function computes it, as ONNX defines it.

    Torch reflects a position, then rounds it; ONNX reflects the nearest index.
    """
    axes, nearest = x.ndim - 2, _MODES[mode] == "nearest"
    planes = axes == 2 or (axes == 3 and _MODES[mode] != "bicubic")
    return planes and x.dtype == grid.dtype and not (nearest and padding_mode == "reflection")


@kernel("GridSample", check_grid, override=_GRID)
def _grid_sample(
    x: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    if _computes(x, grid, mode, padding_mode):
        return F.grid_sample(x, grid, _MODES[mode], padding_mode, bool(align_corners))
    settings = {"align_corners": align_corners, "mode": mode, "padding_mode": padding_mode}
    return _COMPOSITE(PRIMITIVES, x.movedim(1, -1), grid, **settings).movedim(-1, 1)


_NATIVE = {
    3: torch.ops.aten.upsample_linear1d,
    4: torch.ops.aten.upsample_bilinear2d,
    5: torch.ops.aten.upsample_trilinear3d,
}
_CUBIC = {4: torch.ops.aten.upsample_bicubic2d}
# Up to so many elements; then the composite is faster.
_FEW = 1 << 11


def _native(x: Any, scales: Any, sizes: Any, mode: str, how: str, nearest_mode: str) -> Any:
    """The result of torch's own function, if it is equivalent; else None."""
    function, space = (_CUBIC if mode == "cubic" else _NATIVE).get(x.ndim), x.shape[2:]
    if function is None or not x.dtype.is_floating_point:
        return None
    if scales and list(scales[:2]) != [1.0, 1.0]:
        return None
    if not scales and list(sizes[:2]) != list(x.shape[:2]):
        return None
    if mode == "nearest":
        whole = scales and all(scale >= 1 and scale == int(scale) for scale in scales)
        if not whole or not repeats_elements(how, nearest_mode):
            return None
        return F.interpolate(x, scale_factor=tuple(scales[2:]), mode="nearest")
    if how not in ("half_pixel", "align_corners"):
        return None
    goals = (
        list(sizes[2:])
        if not scales
        else [PRIMITIVES.host(resized_extent, extent, scale) for extent, scale in zip(space, scales[2:], strict=True)]
    )
    if mode == "cubic" and max(math.prod(goals), math.prod(space)) * math.prod(x.shape[:2]) > _FEW:
        return None
    if not scales:
        return function(x, goals, how == "align_corners")
    if how == "half_pixel":
        # Torch copies along an axis whose size stays, although a scale moves its coordinates.
        if any(goal == extent and scale != 1 for goal, extent, scale in zip(goals, space, scales[2:], strict=True)):
            return None
        return function(x, goals, False, *scales[2:])
    exact = all(scale * extent == goal for scale, extent, goal in zip(scales[2:], space, goals, strict=True))
    return function(x, goals, True) if exact else None


@kernel("Resize", settings=(1, 2, 3), override=_RESIZE)
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
    usual = keep_aspect_ratio_policy == "stretch" and (mode != "cubic" or cubic_coeff_a == -0.75)
    if axes is None and usual and not (antialias or exclude_outside):
        found = _native(x, scales, sizes, mode, coordinate_transformation_mode, nearest_mode)
        if found is not None:
            return found
    return resize(
        PRIMITIVES,
        x,
        roi,
        scales,
        sizes,
        antialias=antialias,
        axes=axes,
        coordinate_transformation_mode=coordinate_transformation_mode,
        cubic_coeff_a=cubic_coeff_a,
        exclude_outside=exclude_outside,
        extrapolation_value=extrapolation_value,
        keep_aspect_ratio_policy=keep_aspect_ratio_policy,
        mode=mode,
        nearest_mode=nearest_mode,
    )


@kernel("NonMaxSuppression", settings=(2, 3, 4), eager=True, override=_BOXES)
def _non_max_suppression(
    boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None, *, center_point_box: int = 0
) -> Any:
    # As the composite; what ends the loop is read on the host.
    count, overlap, least = (each[0] if isinstance(each, list) else each for each in (most, overlap, least))
    batch, classes, extent = scores.shape
    close = too_close(PRIMITIVES, boxes, (overlap or 0.0,), center_point_box).flatten(0, 1)
    images = (torch.arange(batch, device=boxes.device) * extent).repeat_interleave(classes)
    lowest = torch.finfo(scores.dtype).min
    left = scores.detach().reshape(batch * classes, extent)
    left = left if least is None else torch.where(left > least, left, lowest)
    some, found = [], []
    for _ in range(min(count or 0, extent)):
        highest, best = left.max(1)
        there = highest > lowest
        if not bool(there.any()):
            break
        some.append(there)
        found.append(best)
        left = left.masked_fill(close.index_select(0, best + images), lowest)
    if not found:
        return boxes.new_zeros((0, 3), dtype=torch.int64)
    rows, steps = torch.stack(some, 1).nonzero().unbind(1)
    return torch.stack((rows // classes, rows % classes, torch.stack(found, 1)[rows, steps]), 1)
