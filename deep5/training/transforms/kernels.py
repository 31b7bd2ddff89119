"""The array kernels of the transforms, in C if the machine has a compiler, else in NumPy, with identical bits."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from deep5.core import compiler
from deep5.networks.philox import philox
from deep5.training.transforms.c_source import SOURCE

__all__ = ["blot", "crop", "flip", "normalise", "weighted", "words"]


def words(ids: np.ndarray, *, block: int, key: int) -> np.ndarray:
    """Four random words per sample: Philox4x32-10 of the counter (id, block) under the key.

    Args:
        ids: int64, shape (samples,).
        block: 32 bits; each block gives further words for the same samples.
        key: 64 bits.

    Returns:
        uint32, shape (4, samples).

    References:
        Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11, section 3.3.
    """
    library = _compiled()
    if library is None:
        return philox(ids, high=block, key=key)
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    out = np.empty((4, len(ids)), np.uint32)
    library.words(_at(out), _at(ids), len(ids), block, key & 0xFFFFFFFF, key >> 32)
    return out


def crop(
    images: np.ndarray, top: np.ndarray, left: np.ndarray, *, height: int, width: int, fill: float = 0
) -> np.ndarray:
    """A window of each image, each at its own position; pixels outside the image are filled.

    Args:
        images: Shape (samples, …, image height, image width).
        top: int64, shape (samples,): the window's first row; a negative row is above the image.
        left: The same for columns.
        height: The height of the windows.
        width: The width of the windows.
        fill: The value outside the image.
    """
    count, *planes, rows, columns = images.shape
    library = _compiled()
    if library is not None:
        images, top, left = np.ascontiguousarray(images), np.ascontiguousarray(top), np.ascontiguousarray(left)
        out = np.empty((count, *planes, height, width), images.dtype)
        filling = np.full(width, fill, images.dtype)
        extents = (count, _product(planes), rows, columns, height, width, images.itemsize)
        library.crop(_at(out), _at(images), *extents, _at(top), _at(left), _at(filling))
        return out
    if not count:
        return np.empty((0, *planes, height, width), images.dtype)
    # Pad all sides as far as any window reaches, so each window is a view.
    above, before = max(0, -int(top.min())), max(0, -int(left.min()))
    below = max(0, int(top.max()) + height - rows)
    behind = max(0, int(left.max()) + width - columns)
    padded = images.reshape(count, -1, rows, columns)
    if above or before or below or behind:
        whole = np.full((count, padded.shape[1], above + rows + below, before + columns + behind), fill, images.dtype)
        whole[:, :, above : above + rows, before : before + columns] = padded
        padded = whole
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    return windows[np.arange(count), :, top + above, left + before].reshape(count, *planes, height, width)


def flip(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """A copy of the images, with the columns of the chosen ones reversed.

    Args:
        images: Shape (samples, …, width).
        chosen: bool, shape (samples,).
    """
    library = _compiled()
    if library is not None and images.itemsize in {1, 2, 4, 8} and images.size:
        images, chosen = np.ascontiguousarray(images), np.ascontiguousarray(chosen)
        out = np.empty_like(images)
        count, *lines, width = images.shape
        call = getattr(library, f"flip_{images.itemsize}")
        call(_at(out), _at(images), count, _product(lines), width, _at(chosen))
        return out
    out = images.copy()
    out[chosen] = images[chosen][..., ::-1]
    return out


def normalise(images: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """`images * scale + shift` per channel, computed in the dtype of `scale`.

    Args:
        images: Shape (samples, channels, …); uint8, float32, float64 or another floating-point type.
        scale: Shape (channels,), float32, or float64 for float64 images.
        shift: The same.
    """
    library = _compiled()
    call = getattr(library, f"normalise_{images.dtype}", None) if library is not None else None
    if call is not None:
        images = np.ascontiguousarray(images)
        out = np.empty(images.shape, scale.dtype)
        count, channels, *others = images.shape
        call(_at(out), _at(images), count, channels, _product(others), _at(scale), _at(shift))
        return out
    along = (slice(None), *(None,) * (images.ndim - 2))
    normal: np.ndarray = images.astype(scale.dtype)
    normal *= scale[along]
    normal += shift[along]
    return normal


def blot(images: np.ndarray, top: np.ndarray, left: np.ndarray, *, side: int, fill: float) -> np.ndarray:
    """A copy of the images with a square in each set to one value; the square is clipped at the border.

    Args:
        images: Shape (samples, …, height, width).
        top: int64, shape (samples,): the square's first row, possibly negative.
        left: The same for columns.
        side: The side of the square.
        fill: The value.
    """
    out = np.array(images, order="C")
    count, *planes, height, width = out.shape
    filling = np.full(width, fill, out.dtype)
    library = _compiled()
    if library is not None:
        top, left = np.ascontiguousarray(top), np.ascontiguousarray(left)
        extents = (count, _product(planes), height, width, side, out.itemsize)
        library.blot(_at(out), *extents, _at(top), _at(left), _at(filling))
        return out
    rows, columns = (
        (np.arange(extent) >= begin[:, None]) & (np.arange(extent) < begin[:, None] + side)
        for extent, begin in ((height, top), (width, left))
    )
    covered = rows[:, :, None] & columns[:, None, :]
    np.copyto(out, filling[0], where=covered.reshape(count, *(1,) * len(planes), height, width))
    return out


def weighted(images: np.ndarray, place: np.ndarray, weight: np.ndarray, *, axis: int) -> np.ndarray:
    """Weighted sums of rows (axis -2) or columns (-1), with weights in the images' dtype, added in order.

    Args:
        images: Shape (…, height, width), float32 or float64.
        place: int64, shape (taps, new): the source rows or columns of each new one.
        weight: The same shape.
        axis: -2 or -1.
    """
    taps, new = place.shape
    weight = weight.astype(images.dtype)
    library = _compiled()
    if library is not None and images.size:
        images, place = np.ascontiguousarray(images), np.ascontiguousarray(place)
        *planes, height, width = images.shape
        count = _product(planes)
        if axis == -2:
            out = np.empty((*planes, new, width), images.dtype)
            call = getattr(library, f"rows_{images.dtype}")
            call(_at(out), _at(images), count, height, new, width, taps, _at(place), _at(weight))
        else:
            out = np.empty((*planes, height, new), images.dtype)
            call = getattr(library, f"columns_{images.dtype}")
            call(_at(out), _at(images), count * height, width, new, taps, _at(place), _at(weight))
        return out
    parts = (
        images.take(at, axis=axis) * (factor[:, None] if axis == -2 else factor)
        for at, factor in zip(place, weight, strict=True)
    )
    summed: np.ndarray = next(parts)
    for part in parts:
        summed += part
    return summed


def _at(array: np.ndarray) -> int:
    """The data pointer; `.ctypes` takes ten times as long."""
    address: int = array.__array_interface__["data"][0]
    return address


def _product(extents: list[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


@functools.cache
def _compiled() -> Any:
    """The library, or None without a compiler that works."""
    pointer, size, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    takes = {
        "words": (pointer, pointer, size, word, word, word),
        "crop": (pointer, pointer, *(size,) * 7, pointer, pointer, pointer),
        "blot": (pointer, *(size,) * 6, pointer, pointer, pointer),
        **{f"rows_{name}": (pointer, pointer, *(size,) * 5, pointer, pointer) for name in ("float32", "float64")},
        **{f"columns_{name}": (pointer, pointer, *(size,) * 4, pointer, pointer) for name in ("float32", "float64")},
        **{f"flip_{item}": (pointer, pointer, size, size, size, pointer) for item in (1, 2, 4, 8)},
        **{
            f"normalise_{name}": (pointer, pointer, size, size, size, pointer, pointer)
            for name in ("uint8", "float32", "float64")
        },
    }
    library = compiler.optional_library(SOURCE, what="the kernels of the transforms", functions=list(takes))
    if library is None:
        return None
    for name, types in takes.items():
        getattr(library, name).argtypes, getattr(library, name).restype = types, None
    return library
