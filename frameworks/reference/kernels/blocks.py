"""Blocks of pixels to channels and back, and center cropping and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["center_crop_pad", "depth_to_space", "space_to_depth"]


def depth_to_space(x: Array, *, blocksize: int, mode: str) -> Array:
    """ONNX DepthToSpace: (N, C, H, W) -> (N, C / blocksize², H blocksize, W blocksize).

    The position in the block is the outer part of a channel's index (`"DCR"`), or the inner part (`"CRD"`).
    """
    n, c, h, w = x.shape
    rest, left = divmod(c, blocksize**2)
    if left:
        raise ShapeError(f"DepthToSpace: got {c} channels; expected a multiple of {blocksize**2}")
    if mode == "CRD":
        parts = x.reshape(n, rest, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, blocksize, blocksize, rest, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, rest, h * blocksize, w * blocksize)


def space_to_depth(x: Array, *, blocksize: int, mode: str) -> Array:
    """ONNX SpaceToDepth, inverse of DepthToSpace: (N, C, H, W) -> (N, C blocksize², H / blocksize, W / blocksize)."""
    n, c, h, w = x.shape
    if h % blocksize or w % blocksize:
        raise ShapeError(f"SpaceToDepth: got an image of {h} x {w}; expected multiples of {blocksize}")
    parts = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    return parts.transpose(order).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


def center_crop_pad(x: Array, shape: Sequence[int], *, axes: Sequence[int] | None) -> Array:
    """ONNX CenterCropPad: the center of x, or x centered in zeros; `axes` are the axes of `shape`."""
    goal = list(x.shape)
    source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, extent in zip(range(x.ndim) if axes is None else axes, map(int, shape), strict=True):
        goal[axis] = extent
        more, fewer = max(extent - x.shape[axis], 0) // 2, max(x.shape[axis] - extent, 0) // 2
        common = min(extent, x.shape[axis])
        source[axis], target[axis] = slice(fewer, fewer + common), slice(more, more + common)
    result = np.zeros_like(x, shape=tuple(goal))
    result[tuple(target)] = x[tuple(source)]
    return result
