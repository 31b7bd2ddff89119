"""Sampling of images between pixels: sampling grids, and interpolation over any number of spatial axes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.elements import in_range
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["affine_grid", "border", "grid_sample", "interpolated", "pixels", "zeros"]

# Map integer positions (as floats) and the size of the axis to pixel indices, and a mask of missing pixels.
Padding = Callable[[Array, int], tuple[Array, Array | None]]

# PyTorch's value, whose networks use this operator; ONNX does not define it.
_CUBIC_A = -0.75


def pixels(x: Array) -> Array:
    """(N, C, *space) as rows of channels, (N * pixels, C), contiguous: a pixel is one read for all channels."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)).reshape(-1, x.shape[1])


def zeros(place: Array, extent: int) -> tuple[Array, Array | None]:
    """Zeros outside."""
    return place, (place < 0) | (place >= extent)


def border(place: Array, extent: int) -> tuple[Array, Array | None]:
    """The nearest pixel."""
    return place, None


def _reflected(place: Array, extent: int, *, align_corners: bool) -> tuple[Array, Array | None]:
    """Reflection, at the center of the last pixel if corners are aligned, else at its outer edge."""
    if align_corners:
        period = max(2 * (extent - 1), 1)
        within = np.mod(place, period)
        return np.minimum(within, period - within) if extent > 1 else within, None
    within = np.mod(place, 2 * extent)
    return np.minimum(within, 2 * extent - 1 - within), None


def interpolated(
    rows: Array,
    images: Array,
    places: Sequence[Array],
    space: tuple[int, ...],
    padding: Padding,
    mode: str = "linear",
    sums: np.ufunc = np.add,
) -> Array:
    """Interpolation between the nearest pixels of each axis.

    Args:
        rows: All pixels, from `pixels`.
        images: The image index of each position, int64, (places,).
        places: Positions in pixels, one array (places,) per spatial axis; NaN gives NaN.
        space: The spatial sizes.
        padding: Handles positions outside the image.
        mode: `"linear"`, `"cubic"` or `"nearest"`.
        sums: Combines the weighted pixels.

    Returns:
        (places, C), the dtype of rows.
    """
    taps = [
        [(*_inside(at, extent, padding), weight) for at, weight in _TAPS[mode](place)]
        for place, extent in zip(places, space, strict=True)
    ]
    total: Array | None = None
    for corner in itertools.product(*taps):
        index, weight, missing = images, None, None
        for (at, gone, part), extent in zip(corner, space, strict=True):
            index = index * extent + at
            weight = part if weight is None or part is None else weight * part
            missing = gone if missing is None or gone is None else missing | gone
        found = rows[index]
        if weight is not None:
            found *= weight.astype(rows.dtype, copy=False)[:, None]
        if missing is not None:
            found[missing] = 0
        if total is None:
            total = found
        else:
            sums(total, found, out=total)
    return rows[:0] if total is None else total


def _inside(at: Array, extent: int, padding: Padding) -> tuple[Array, Array | None]:
    place, missing = padding(at, extent)
    return np.nan_to_num(place).clip(0, max(extent - 1, 0)).astype(np.int64), missing


def _linear_taps(place: Array) -> list[tuple[Array, Array | None]]:
    low = np.floor(place)
    part = place - low
    return [(low, 1 - part), (low + 1, part)]


def _cubic_taps(place: Array) -> list[tuple[Array, Array | None]]:
    """Keys's kernel, from the second pixel before the position."""
    low, a = np.floor(place), _CUBIC_A
    part = place - low
    near = [((a + 2) * d - (a + 3)) * d**2 + 1 for d in (part, 1 - part)]
    far = [((d - 5) * d + 8) * a * d - 4 * a for d in (1 + part, 2 - part)]
    return [(low - 1, far[0]), (low, near[0]), (low + 1, near[1]), (low + 2, far[1])]


def _nearest_taps(place: Array) -> list[tuple[Array, Array | None]]:
    return [(np.rint(place), None)]


_TAPS = {"linear": _linear_taps, "cubic": _cubic_taps, "nearest": _nearest_taps}


def grid_sample(x: Array, grid: Array, *, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """ONNX GridSample (opset 22).

    Args:
        x: (N, C, *space); integers are interpolated in float64 and truncated.
        grid: (N, *output, axes of space), the innermost axis first; -1 to 1 spans an axis.
        mode: `"linear"`, `"cubic"` or `"nearest"`.
        padding_mode: `"zeros"`, `"border"` or `"reflection"`.
        align_corners: Whether -1 and 1 are the centers of the outermost pixels, not their outer edges.

    Returns:
        (N, C, *output), the dtype of x.

    References:
        Jaderberg, Simonyan, Zisserman and Kavukcuoglu, Spatial transformer networks, NIPS 2015, section 3.3.
    """
    space = x.shape[2:]
    if grid.shape[-1] != len(space) or len(grid) != len(x):
        raise ShapeError(f"GridSample: got a grid of shape {grid.shape}; expected ({len(x)}, …, {len(space)})")
    if x.size == 0 and grid.size:
        raise ShapeError(f"GridSample: got an input of shape {x.shape}; expected elements to sample")
    mirror = partial(_reflected, align_corners=align_corners)
    paddings: dict[str, Padding] = {"zeros": zeros, "border": border, "reflection": mirror}
    padding = paddings[padding_mode]
    points = grid.reshape(-1, len(space)).T[::-1].astype(np.result_type(grid.dtype, np.float32), copy=False)
    places = []
    for point, extent in zip(points, space, strict=True):
        place = (point + 1) * ((extent - 1) / 2) if align_corners else ((point + 1) * extent - 1) / 2
        if padding_mode == "reflection":
            # Reflections are periodic: reduce to one period.
            period = max(2 * (extent - 1), 1) if align_corners else 2 * extent
            place = np.mod(place, period)
        else:
            place = place.clip(-4, extent + 3)  # no tap of positions further out reaches a pixel
        places.append(place)
    images = np.arange(len(x), dtype=np.int64).repeat(len(points[0]) // max(len(x), 1))
    rows = pixels(x)
    if mode != "nearest" and x.dtype.kind != "f":
        rows = rows.astype(np.float64)
    found = interpolated(rows, images, places, space, padding, mode)
    return in_range(np.moveaxis(found.reshape(*grid.shape[:-1], x.shape[1]), -1, 1), x.dtype)


def affine_grid(theta: Array, size: Array, *, align_corners: bool) -> Array:
    """ONNX AffineGrid: the positions to which matrices map the pixel centers, with -1 to 1 spanning an axis.

    Args:
        theta: (N, axes of space, axes of space + 1).
        size: N, C and the spatial sizes.
        align_corners: Whether -1 and 1 are the centers of the outermost pixels, not their outer edges.

    Returns:
        (N, *space, axes of space), the innermost axis first; the dtype of theta.
    """
    space = [int(extent) for extent in size[2:]]
    if theta.shape != (int(size[0]), len(space), len(space) + 1):
        raise ShapeError(f"AffineGrid: got matrices of shape {theta.shape} for the size {size.tolist()}")
    grid: Array = np.empty((len(theta), *space, len(space)), theta.dtype)
    grid[...] = theta[:, :, -1].reshape(len(theta), *[1] * len(space), len(space))
    for axis, extent in enumerate(space):
        at = np.arange(extent) * 2.0
        at = at / max(extent - 1, 1) - 1 if align_corners else (at + 1) / extent - 1
        column = theta[:, :, len(space) - 1 - axis].reshape(len(theta), *[1] * len(space), len(space))
        grid += column * at.astype(theta.dtype).reshape(-1, *[1] * (len(space) - axis))
    return grid
