"""Resize images by weighted sums of pixels: first over rows, then over columns."""

from __future__ import annotations

import functools
import math

import numpy as np

from deep5.training.transforms import kernels

__all__ = ["resample"]


def resample(images: np.ndarray, size: tuple[int, int], *, method: str, antialias: bool) -> np.ndarray:
    """Resize images; see `Resize` for the methods.

    Elementwise sums in a fixed order: the same bits on every machine, with any BLAS library.

    Args:
        images: Shape (…, height, width), uint8 or floating-point; sums are in float32, or in float64 for float64.
        size: The new height and width.
        method: `"bilinear"` or `"nearest"`.
        antialias: Whether every pixel contributes when images shrink.

    Returns:
        A new array of the same dtype.
    """
    if method == "nearest":
        rows, columns = (_nearest(old, new) for old, new in zip(images.shape[-2:], size, strict=True))
        return np.ascontiguousarray(images[..., rows[:, None], columns])
    result = images.astype(np.float64 if images.dtype == np.float64 else np.float32)
    for axis in (-2, -1):
        old, new = images.shape[axis], size[axis]
        if old != new:  # else each pixel has all the weight
            result = kernels.weighted(result, *_taps(old, new, antialias), axis=axis)
    if images.dtype.kind == "u":
        result = np.clip(np.rint(result), 0, 255)
    return result.astype(images.dtype, copy=False)


def _nearest(old: int, new: int) -> np.ndarray:
    """The index of the pixel under the center of each new pixel."""
    return (2 * np.arange(new) + 1) * old // (2 * new)


@functools.lru_cache(maxsize=1024)
def _taps(old: int, new: int, antialias: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each new pixel, indices and float64 weights of the contributing old pixels, both of shape (taps, new).

    The triangle peaks at the new pixel's center. Weights of pixels outside the image are dropped, and the rest is
    scaled to a sum of one.
    """
    scale = old / new
    width = max(scale, 1.0) if antialias else 1.0
    centre = (np.arange(new) + 0.5) * scale
    first = np.floor(centre - width + 0.5).astype(np.int64)
    place = first + np.arange(math.ceil(2 * width) + 1)[:, None]
    weight = np.maximum(0.0, 1.0 - np.abs(place + 0.5 - centre) / width)
    weight[(place < 0) | (place >= old)] = 0.0
    kept = weight.any(axis=1)
    place, weight = place.clip(0, old - 1)[kept], weight[kept]
    return place, weight / weight.sum(axis=0)
