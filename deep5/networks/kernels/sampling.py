"""Images read at fractional coordinates: GridSample, AffineGrid and RoiAlign; their channels come last."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.resizing import cubic
from deep5.networks.kernels.table import Composite
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS", "check_grid", "corners", "places"]

_MODES = {"bicubic": "cubic", "bilinear": "linear", "cubic": "cubic", "linear": "linear", "nearest": "nearest"}
_PADDINGS = ("border", "reflection", "zeros")
_A = -0.75
"""Keys' parameter, as GridSample defines it."""


def _add(a: Array, b: Array) -> Array:
    return a + b


def _rows(xp: Primitives, x: Array, places: Array) -> Array:
    """The channels of images (N, space …, C) at places in all of them; shape (places, C)."""
    # The reshape is part of each read: TensorFlow would concatenate the gradients of reads from one array.
    return xp.take(xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])), places, axis=0)


def _sum(parts: Iterable[Array]) -> Array:
    return functools.reduce(_add, parts)


def _nearest(xp: Primitives, at: Array, extent: Any) -> Array:
    """The positions on an axis that are nearest to others; 0 for NaN."""
    last = xp.asarray(extent - 1, dtype=at.dtype)
    return xp.where(at > 0, xp.where(at < last, at, last), xp.zeros_like(at))


def _reflected(xp: Primitives, at: Array, extent: Any, aligned: bool) -> Array:
    """Positions reflected at the centers of the first and last elements if `aligned`, else at their outer edges."""
    low, span = (0.0, extent - 1) if aligned else (-0.5, extent)
    width = xp.asarray(span, dtype=at.dtype)
    some = width > 0
    width = xp.where(some, width, xp.ones_like(width))
    there = xp.remainder(at - low, 2 * width)
    return xp.where(some, xp.where(there > width, 2 * width - there, there) + low, xp.zeros_like(at))


def _neighbours(
    xp: Primitives, at: Array, extent: Any, mode: str, padding: str, aligned: bool
) -> list[tuple[Array, Array]]:
    """The indices along an axis that positions read, and the share of each."""

    def moved(places: Array) -> Array:
        if padding == "reflection":
            places = _reflected(xp, places, extent, aligned)
        return places if padding == "zeros" else xp.clamp(places, 0, xp.asarray(extent - 1, dtype=places.dtype))

    def kept(places: Array, share: Array) -> tuple[Array, Array]:
        index = _nearest(xp, places, extent)
        return xp.astype(index, xp.int64), xp.where(index == places, share, xp.zeros_like(share))

    if mode == "cubic":
        first = xp.floor(at)
        return [kept(xp.round(moved(first + step)), cubic(xp, at - first - step, _A)) for step in (-1, 0, 1, 2)]
    if mode == "nearest":  # the index is reflected, not the position: they differ where it lies halfway
        return [kept(xp.round(moved(xp.round(at))), xp.ones_like(at))]
    at = moved(at)
    first = xp.floor(at)
    return [kept(first, 1 - (at - first)), kept(first + 1, at - first)]


def _numbers(xp: Primitives, count: Any, each: Any, like: Array) -> Array:
    """0, 1, …, each `each` times in a row: shape (count times each,)."""
    numbers = xp.table(_arange, count, like=like)
    return xp.reshape(xp.broadcast_to(numbers[:, None], (count, each)), (-1,))


def _arange(xp: Any, count: Any) -> Any:
    return xp.arange(0, count, dtype=xp.int64)


def places(
    xp: Primitives, grid: Array, space: Sequence[Any], *, align_corners: int, mode: str, padding_mode: str
) -> list[list[tuple[Array, Array]]]:
    """For each axis of images, the indices that a grid's points read along it, and the share of each, flat."""
    found = []
    for axis, extent in enumerate(space):
        at = xp.reshape(grid[..., len(space) - 1 - axis], (-1,))
        at = (at + 1) / 2 * (extent - 1) if align_corners else ((at + 1) * extent - 1) / 2
        found.append(_neighbours(xp, at, extent, _MODES[mode], padding_mode, bool(align_corners)))
    return found


def corners(
    along: Sequence[Sequence[tuple[Array, Array]]], space: Sequence[Any], images: Any = 0
) -> Iterator[tuple[Array, Array]]:
    """The flat indices of the elements that points read, from those along each axis, and the share of each element.

    Args:
        along: The result of `places`.
        space: The sizes of an image.
        images: The number of the image that each point reads.
    """
    for corner in itertools.product(*along):
        where, share = images, None
        for (at, own), extent in zip(corner, space, strict=True):
            where, share = where * extent + at, own if share is None else share * own
        yield where, share


def _grid_sample(
    xp: Primitives, x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """ONNX's GridSample: x (N, space …, C) and a grid (N, out …, axes) of coordinates in -1 to 1, last axis first."""
    kind, space = x.dtype, x.shape[1:-1]
    x, grid = (xp.wide(x) if xp.is_floating(kind) else x), xp.wide(grid)
    along = places(xp, grid, space, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
    images = _numbers(xp, x.shape[0], math.prod(grid.shape[1:-1]), x)

    def part(where: Array, share: Array) -> Array:
        found = _rows(xp, x, where)
        if xp.is_floating(kind):
            return found * xp.astype(share, found.dtype)[:, None]
        return xp.astype(found, share.dtype) * share[:, None]

    # One part at a time, so that an eager back-end holds few.
    parts = itertools.starmap(part, corners(along, space, images))
    return xp.astype(xp.reshape(_sum(parts), (*grid.shape[:-1], x.shape[-1])), kind)


def check_grid(node: ir.Node) -> str | None:
    """Why a GridSample cannot run, or None."""
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    if mode not in _MODES:
        return f"mode={mode}; allowed: {', '.join(_MODES)}"
    return None if padding in _PADDINGS else f"padding_mode={padding}; allowed: {', '.join(_PADDINGS)}"


def _affine_grid(xp: Primitives, theta: Array, size: Any, *, align_corners: int = 0) -> Array:
    """ONNX's AffineGrid: the coordinates (N, out …, axes) of an affine transformation (N, axes, axes + 1)."""
    axes = len(size) - 2
    space = [size[2 + axis] for axis in range(axes)]
    points = xp.astype(xp.table(_points, *space, bool(align_corners), like=theta), theta.dtype)
    made = xp.matmul(points, xp.permute_dims(theta, (0, 2, 1)))
    return xp.reshape(made, (-1, *space, axes))


def _points(xp: Any, *numbers: Any) -> Any:
    """The coordinates of all points of a grid, last axis first, then 1; shape (1, points, axes + 1)."""
    *space, aligned = numbers
    along = []
    for axis, extent in enumerate(space):
        at = xp.arange(0, extent, dtype=xp.float64)
        size = xp.asarray(extent, dtype=xp.float64)
        # A single point lies at the first corner, as in ONNX's function.
        ends = 2 * at / xp.where(size > 1, size - 1, 1.0) - 1
        at = ends if aligned else (2 * at + 1) / size - 1
        shape = [-1 if other == axis else 1 for other in range(len(space))]
        along.append(xp.reshape(xp.broadcast_to(xp.reshape(at, tuple(shape)), tuple(space)), (-1,)))
    return xp.stack([*along[::-1], xp.ones_like(along[0])], axis=-1)[None]


def _roi_align(
    xp: Primitives,
    x: Array,
    rois: Array,
    images: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """ONNX's RoiAlign: each region of images (N, H, W, C) as (regions, rows, columns, C).

    Without `sampling_ratio`, a region whose size is not positive has no samples: its values are 0.

    References:
        He et al., Mask R-CNN, ICCV 2017, section 3.
    """
    kind, half = x.dtype, coordinate_transformation_mode == "half_pixel"
    x = xp.wide(x)

    def along(rois: Array) -> list[tuple[Any, Any, Any, Any]]:
        bounds, found = xp.wide(rois) * spatial_scale - (0.5 if half else 0.0), []
        for axis, bins in enumerate((output_height, output_width)):
            first, width = bounds[:, 1 - axis], bounds[:, 3 - axis] - bounds[:, 1 - axis]
            width = width if half else xp.clamp(width, 1.0)
            found.append(_samples(xp, first, width / bins, bins, sampling_ratio, x.shape[1 + axis]))
        return found

    # The number of samples depends on the regions.
    (rows, row_inside, row_there, row_count), (columns, column_inside, column_there, column_count) = xp.early(
        along, rois
    )
    # Shape (regions, rows, samples, columns, samples, 1).
    inside, there = (row_inside[:, :, :, None, None] & column_inside[:, None, None, :, :])[..., None], None
    if row_there is not None:
        there = (row_there[:, None, :, None, None] & column_there[:, None, None, None, :])[..., None]
    number = xp.reshape(xp.astype(images, xp.int64), (-1, 1, 1, 1, 1)) * x.shape[1]

    rows = [((number + row[:, :, :, None, None]) * x.shape[2], share[:, :, :, None, None]) for row, share in rows]
    columns = [(column[:, None, None], share[:, None, None]) for column, share in columns]

    def part(down: tuple[Array, Array], across: tuple[Array, Array]) -> Array:
        where, share = down[0] + across[0], down[1] * across[1]
        found = xp.reshape(_rows(xp, x, xp.reshape(where, (-1,))), (*where.shape, x.shape[3]))
        return found * xp.astype(share, x.dtype)[..., None]

    parts = itertools.starmap(part, itertools.product(rows, columns))
    if mode == "max":
        # The maximum of the four weighted neighbors, not of their sums, as ONNX defines it.
        value = functools.reduce(xp.maximum, parts)
        value = xp.where(inside, value, xp.zeros_like(value))
        if there is not None:
            value = xp.where(there, value, xp.asarray(xp.limits(x.dtype)[0], dtype=x.dtype))
        y = xp.max(xp.max(value, axis=4), axis=2)
        if sampling_ratio <= 0:
            some = xp.reshape(row_count * column_count > 0, (-1, 1, 1, 1))
            y = xp.where(some, y, xp.zeros_like(y))
    else:
        value, count = _sum(parts), row_count * column_count
        if there is not None:
            inside = inside & there
            count = xp.reshape(xp.clamp(count, 1.0), (-1, 1, 1, 1))
        # XLA adds each neighbor by itself unless something is between the sums: 3.7 times the time.
        value = xp.where(inside, value, xp.zeros_like(value))
        y = xp.sum(xp.sum(value, axis=4), axis=2) / count
    return xp.astype(y, kind)


def _samples(
    xp: Primitives, first: Array, size: Array, bins: int, ratio: int, extent: Any
) -> tuple[Any, Any, Any, Any]:
    """The two neighbors (indices, shares) of the samples of an axis, and which lie inside, shape (regions, bins,
    samples) each; which exist, (regions, samples), None: all; and their numbers, (regions, 1), or one number for all.
    """
    counts = ratio if ratio > 0 else xp.clamp(xp.held(xp.ceil(size)), 0.0)[:, None]
    most = ratio if ratio > 0 else xp.size_of(counts)
    steps = xp.astype(xp.table(_arange, most, like=size), size.dtype)
    inner = (steps + 0.5) / (counts if ratio > 0 else xp.clamp(counts, 1.0))
    numbers = xp.astype(xp.table(_arange, bins, like=size), size.dtype)
    at = first[:, None, None] + (numbers[:, None] + inner[..., None, :]) * size[:, None, None]
    last = xp.asarray(extent - 1, dtype=at.dtype)
    inside = (at >= -1) & (at <= last + 1)
    at = xp.where(inside, xp.clamp(at, 0.0, last), xp.zeros_like(at))  # 0 for NaN, too
    low = xp.floor(at)
    pairs = [(low, 1 - (at - low)), (xp.minimum(low + 1, last), at - low)]
    pairs = [(xp.astype(places, xp.int64), share) for places, share in pairs]
    return pairs, inside, None if ratio > 0 else steps < counts, counts


def _check_roi(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "avg")
    return None if mode in ("avg", "max") else f"mode={mode}; allowed: avg, max"


def _counted(node: ir.Node) -> tuple[int, ...]:
    """The regions determine how many samples there are, unless the node does."""
    return () if attribute(node, "sampling_ratio", 0) > 0 else (1,)


OPERATORS = {
    "AffineGrid": Composite(function=_affine_grid, settings=(1,), traced=(1,)),
    "GridSample": Composite(function=_grid_sample, check=check_grid, layout="channels last"),
    "RoiAlign": Composite(function=_roi_align, check=_check_roi, layout="channels last", reads=_counted),
}
