"""Average and maximum over sliding windows, one vectorized pass per kernel element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from deep5.core.errors import NetworkError, ShapeError
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.window import Window

__all__ = [
    "average_pool",
    "global_average_pool",
    "global_lp_pool",
    "global_max_pool",
    "lp_pool",
    "max_pool",
    "max_pool_with_indices",
    "max_unpool",
]


def _least(x: Array) -> float:
    """Minus infinity, or the smallest value of an integer dtype."""
    return -math.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).min)


def _prepared(x: Array, window: Window, fill: float) -> tuple[Array, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The input padded with `fill` to all that the windows touch; output sizes, padding before and after."""
    space = x.shape[2:]
    output, begins, ends = window.fit(space, window.kernel)
    if min(output, default=0) < 0:
        raise ShapeError(f"a window of {window.kernel} does not fit into {space}; expected a larger input, or padding")
    spans = window.spans(window.kernel)
    need = tuple(
        max((o - 1) * t + span, begin + s)
        for o, t, span, begin, s in zip(output, window.strides, spans, begins, space, strict=True)
    )
    if any(begins) or need != space:
        # zeros_like and similar functions keep the memory order of x, so the passes below run along memory
        extended = np.full_like(x, fill, shape=(*x.shape[:2], *need), subok=False)
        inner: tuple[Any, ...] = tuple(slice(begin, begin + s) for begin, s in zip(begins, space, strict=True))
        extended[(..., *inner)] = x
        x = extended
    return x, output, begins, ends


def _shifts(x: Array, window: Window, output: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Each kernel position with the elements of all windows there."""
    for position in np.ndindex(*window.kernel):
        starts = [d * k for d, k in zip(window.dilations, position, strict=True)]
        axes = zip(starts, output, window.strides, strict=True)
        chosen: tuple[Any, ...] = tuple(slice(a, a + t * (o - 1) + 1, t) for a, o, t in axes)
        yield position, x[(..., *chosen)]


def average_pool(x: Array, *, window: Window, count_include_pad: bool) -> Array:
    """ONNX AveragePool (opset 19).

    Args:
        x: (N, C, *space).
        window: Kernel, strides, dilations, padding, ceil mode.
        count_include_pad: Whether padding counts as elements of value 0; elements beyond it never count.

    Returns:
        (N, C, *output), the dtype of x.
    """
    space = x.shape[2:]
    extended, output, begins, ends = _prepared(x, window, 0.0)
    total: Array | None = None
    for _, elements in _shifts(extended, window, output):
        if total is None:
            total = elements.copy(order="K")
        else:
            total += elements
    if total is None:
        return np.zeros((*x.shape[:2], *output), dtype=x.dtype)
    if not window.padded and not window.ceil:
        total *= 1.0 / math.prod(window.kernel)
        return total
    count = np.ones((1,) * len(space), dtype=np.int64)
    for axis, size in enumerate(window.kernel):
        at = np.arange(output[axis])[:, None] * window.strides[axis] + np.arange(size) * window.dilations[axis]
        low, high = begins[axis], begins[axis] + space[axis]
        if count_include_pad:
            low, high = 0, high + ends[axis]
        inside = ((at >= low) & (at < high)).sum(axis=1)
        count = count * inside.reshape(-1, *[1] * (len(space) - axis - 1))
    total /= np.maximum(count, 1).astype(x.dtype)
    return total


def global_average_pool(x: Array) -> Array:
    """ONNX GlobalAveragePool: the mean over space, (N, C, *space) -> (N, C, 1, …)."""
    mean: Array = x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)
    return mean


def max_pool(x: Array, *, window: Window) -> Array:
    """ONNX MaxPool (opset 12) without indices: (N, C, *space) -> (N, C, *output); NaN in a window is its maximum."""
    extended, output, _, _ = _prepared(x, window, _least(x))
    best: Array | None = None
    for _, elements in _shifts(extended, window, output):
        if best is None:
            best = elements.copy(order="K")
        else:
            np.maximum(best, elements, out=best)
    return np.zeros((*x.shape[:2], *output), dtype=x.dtype) if best is None else best


def max_pool_with_indices(x: Array, *, window: Window, column_major: bool = False) -> tuple[Array, Array]:
    """ONNX MaxPool (opset 12) with both outputs.

    Args:
        x: (N, C, *space).
        window: Kernel, strides, dilations, padding, ceil mode.
        column_major: Whether indices count the first spatial axis as the innermost.

    Returns:
        The maxima, (N, C, *output), and their indices in the flattened x, int64; the first of ties. NaN is the maximum,
        with the index of the last NaN.
    """
    space = x.shape[2:]
    extended, output, begins, _ = _prepared(x, window, _least(x))
    steps = [math.prod(space[:axis] if column_major else space[axis + 1 :]) for axis in range(len(space))]
    undefined = x.dtype.kind == "f" and bool(np.isnan(x).any())
    best: Array | None = None
    place: Array | None = None
    for position, elements in _shifts(extended, window, output):
        flat = np.zeros((1,) * len(space), dtype=np.int64)
        for axis, k in enumerate(position):
            at = np.arange(output[axis]) * window.strides[axis] + k * window.dilations[axis] - begins[axis]
            # Only a window of all -inf keeps a position in the padding: use the nearest element.
            at = at.clip(0, space[axis] - 1) * steps[axis]
            flat = flat + at.reshape(-1, *[1] * (len(space) - axis - 1))
        if best is None or place is None:
            best = elements.copy(order="K")
            place = np.empty_like(best, dtype=np.int64)
            place[...] = flat
        else:
            higher = elements > best
            if undefined:
                higher |= np.isnan(elements)
            np.copyto(place, flat, where=higher)
            np.maximum(best, elements, out=best)
    if best is None or place is None:
        shape = (*x.shape[:2], *output)
        return np.zeros(shape, dtype=x.dtype), np.zeros(shape, dtype=np.int64)
    planes = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape(*x.shape[:2], *[1] * len(space))
    place += planes * math.prod(space)
    return best, place


def max_unpool(x: Array, indices: Array, shape: Array | None = None, *, window: Window) -> Array:
    """ONNX MaxUnpool (opset 11): each element at its index in the flattened result, zeros elsewhere.

    Args:
        x: (N, C, *output).
        indices: Indices as from MaxPool on an input of the result's shape; the shape of x.
        shape: The shape of the result; None: the smallest input from which the windows give x.
        window: Kernel, strides and padding.

    Raises:
        NetworkError: An index is outside the result.
    """
    if shape is None:
        axes = zip(x.shape[2:], window.strides, window.kernel, window.begins, window.ends, strict=True)
        goal = (*x.shape[:2], *((o - 1) * t + k - begin - end for o, t, k, begin, end in axes))
    else:
        goal = tuple(int(extent) for extent in shape)
    if indices.shape != x.shape:
        raise ShapeError(f"MaxUnpool: got indices of shape {indices.shape}; expected {x.shape}, as the values")
    result = np.zeros(goal, dtype=x.dtype)
    if indices.size and not (indices.min() >= 0 and indices.max() < result.size):
        raise NetworkError(f"MaxUnpool: an index is outside the result; allowed: 0 to {result.size - 1}")
    result.reshape(-1)[indices] = x
    return result


def lp_pool(x: Array, *, window: Window, p: int) -> Array:
    """ONNX LpPool (opset 18): the p-norm of every window, (N, C, *space) -> (N, C, *output)."""
    extended, output, _, _ = _prepared(x, window, 0.0)
    powers = np.square(extended) if p == 2 else np.abs(extended) ** p
    total: Array = np.zeros_like(extended, shape=(*x.shape[:2], *output))
    for _, elements in _shifts(powers, window, output):
        total += elements
    return np.sqrt(total) if p == 2 else total ** (1.0 / p)


def global_max_pool(x: Array) -> Array:
    """ONNX GlobalMaxPool: the maximum over space, (N, C, *space) -> (N, C, 1, …)."""
    best: Array = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    return best


def global_lp_pool(x: Array, *, p: int) -> Array:
    """ONNX GlobalLpPool: the p-norm over space, (N, C, *space) -> (N, C, 1, …)."""
    powers = np.square(x) if p == 2 else np.abs(x) ** p
    total: Array = powers.sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return np.sqrt(total) if p == 2 else total ** (1.0 / p)
