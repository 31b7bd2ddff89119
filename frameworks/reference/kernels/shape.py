"""Operators that move or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array
from deep5.networks.slicing import slice_of

__all__ = [
    "expand",
    "first_to_last",
    "flatten",
    "number_range",
    "one_hot",
    "pad",
    "repeat_elements",
    "reshape",
    "slices",
    "split",
    "squeeze",
    "tile",
    "trilu",
    "unsqueeze",
]


def reshape(x: Array, shape: Sequence[int], *, allow_zero: bool = False) -> Array:
    """ONNX Reshape: 0 copies a size of x, -1 is inferred.

    A batch that is innermost in memory stays there, to avoid moving elements.
    """
    goal = [int(extent) for extent in shape]
    if not allow_zero:
        goal = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(goal)]
    if -1 in goal:
        rest = math.prod(extent for extent in goal if extent != -1)
        goal[goal.index(-1)] = x.size // rest if rest else 0
    if x.ndim > 2 and len(goal) > 1 and goal[0] == x.shape[0] > 1 and not x.flags.c_contiguous:
        moved = x.transpose(*range(1, x.ndim), 0)
        # A broadcast value (strides 0) is copied anyway: convolutions read batch-last without a copy.
        if moved.flags.c_contiguous or 0 in x.strides:
            moved = moved.reshape(*goal[1:], goal[0])
            return moved.transpose(moved.ndim - 1, *range(moved.ndim - 1))
    return x.reshape(goal)


def first_to_last(x: Array) -> Array:
    """Move the first axis to the end, also in memory, so later copies have long runs.

    Activations, whose batch is innermost in memory, already have this layout.
    """
    return np.ascontiguousarray(x.transpose(*range(1, x.ndim), 0))


def flatten(x: Array, *, axis: int) -> Array:
    """ONNX Flatten: the axes before `axis` become one, the others another."""
    at = axis + x.ndim if axis < 0 else axis
    return reshape(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])), allow_zero=True)


def unsqueeze(x: Array, axes: Sequence[int]) -> Array:
    """ONNX Unsqueeze: axes of size 1 at these positions of the result."""
    rank = x.ndim + len(axes)
    new = {int(axis) % rank for axis in axes}
    return x[tuple(None if axis in new else slice(None) for axis in range(rank))]


def squeeze(x: Array, axes: Sequence[int] | None = None) -> Array:
    """ONNX Squeeze: remove these axes of size 1, or all of them."""
    return np.squeeze(x, axis=None if axes is None else tuple(int(axis) for axis in axes))


def expand(x: Array, shape: Sequence[int]) -> Array:
    """ONNX Expand: broadcast in both directions; a read-only view if only strides change."""
    goal = tuple(int(extent) for extent in shape)
    return np.broadcast_to(x, np.broadcast_shapes(np.shape(x), goal))


def slices(x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    """ONNX Slice: from `starts` to `ends` by `steps` along `axes`; indices beyond the ends are clamped."""
    index = [slice(None)] * x.ndim
    over = range(len(starts)) if axes is None else axes
    for position, axis in enumerate(over):
        step = 1 if steps is None else int(steps[position])
        index[int(axis)] = slice_of(int(starts[position]), int(ends[position]), step, x.shape[int(axis)])
    return x[tuple(index)]


def pad(x: Array, pads: Any, value: Any = None, axes: Any = None, *, mode: str) -> Array:
    """ONNX Pad with a constant, the edge, a reflection or a wrap; negative pads crop.

    Args:
        x: Any shape.
        pads: Padding before each axis, then padding after each.
        value: The constant; None: 0.
        axes: The axes of pads; None: all.
        mode: `"constant"`, `"edge"`, `"reflect"` or `"wrap"`.
    """
    over = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    widths = [(0, 0)] * x.ndim
    for position, axis in enumerate(over):
        widths[axis] = (int(pads[position]), int(pads[position + len(over)]))
    shape = tuple(before + extent + behind for extent, (before, behind) in zip(x.shape, widths, strict=True))
    if min(shape, default=0) < 0:
        raise ShapeError(f"Pad: got pads that leave {shape} of the shape {x.shape}; expected no size below 0")
    if mode == "constant":
        fill = ("" if x.dtype.kind in "OSUT" else 0) if value is None else value
        result = np.full_like(x, fill, shape=shape)
        both = list(zip(x.shape, shape, (before for before, _ in widths), strict=True))
        target = tuple(slice(max(before, 0), max(min(extent + before, goal), 0)) for extent, goal, before in both)
        source = tuple(slice(max(-before, 0), max(min(extent, goal - before), 0)) for extent, goal, before in both)
        result[target] = x[source]
        return result
    cut = [
        slice(max(-before, 0), extent + min(behind, 0))
        for extent, (before, behind) in zip(x.shape, widths, strict=True)
    ]
    x = x[tuple(cut)]
    if not any(before > 0 or behind > 0 for before, behind in widths):
        return x.copy()
    for axis, (before, behind) in enumerate(widths):
        if (before > 0 or behind > 0) and not x.shape[axis]:
            raise ShapeError(f"Pad: got mode={mode!r} on an axis of no elements; allowed: mode='constant'")
        if before > 0 or behind > 0:
            x = np.take(x, _repeated(x.shape[axis], max(before, 0), max(behind, 0), mode), axis=axis)
    return x


def _repeated(extent: int, before: int, behind: int, mode: str) -> Array:
    """The element indices of an axis extended by its edges, its reflection, or a wrap."""
    at = np.arange(-before, extent + behind)
    if mode == "edge" or extent == 1:
        return at.clip(0, extent - 1)
    if mode == "wrap":
        return at % extent
    at %= 2 * (extent - 1)
    return np.minimum(at, 2 * (extent - 1) - at)


def one_hot(indices: Array, depth: Any, values: Array, *, axis: int) -> Array:
    """ONNX OneHot: a new axis of size `depth` with values[1] at the index and values[0] elsewhere.

    A negative index counts from the end; one outside [-depth, depth) gives only values[0].
    """
    size = int(np.asarray(depth).reshape(()))
    index = indices.astype(np.int64, copy=False)
    index = np.where(index < 0, index + size, index)
    at = axis + index.ndim + 1 if axis < 0 else axis
    wide = (size, *[1] * (index.ndim - at))
    hit = np.expand_dims(index, at) == np.arange(size).reshape(wide)
    marked: Array = np.where(hit, values[1], values[0])
    return marked


def split(x: Array, sizes: Sequence[int] | None = None, *, axis: int, parts: int) -> tuple[Array, ...]:
    """ONNX Split: adjacent views of x along an axis.

    Args:
        x: Any shape.
        sizes: Sizes of the parts; None: equal ones, the last one possibly smaller.
        axis: The axis.
        parts: Number of parts.
    """
    extent = x.shape[axis]
    if sizes is None:
        even = -(-extent // parts)
        sizes = [even] * (parts - 1) + [extent - even * (parts - 1)]
    elif sum(int(size) for size in sizes) != extent:
        raise ShapeError(f"Split: got parts of {[int(size) for size in sizes]}, expected a sum of {extent}")
    return tuple(np.split(x, np.cumsum([int(size) for size in sizes])[:-1], axis=axis))


def tile(x: Array, repeats: Sequence[int]) -> Array:
    """ONNX Tile: x repeated along each axis."""
    return np.tile(x, tuple(int(count) for count in repeats))


def repeat_elements(x: Array, factors: Sequence[int]) -> Array:
    """Every element repeated along each axis by its factor."""
    result = np.empty_like(x, shape=tuple(extent * factor for extent, factor in zip(x.shape, factors, strict=True)))
    for position in np.ndindex(*factors):
        result[tuple(slice(first, None, factor) for first, factor in zip(position, factors, strict=True))] = x
    return result


def trilu(x: Array, diagonal: Any = 0, *, upper: bool) -> Array:
    """ONNX Trilu: the last two axes on one side of a diagonal, zeros on the other."""
    return (np.triu if upper else np.tril)(x, int(diagonal))


def number_range(start: Array, limit: Array, delta: Array) -> Array:
    """ONNX Range: start, start + delta, … up to, not including, limit."""
    start, limit, delta = (np.reshape(number, -1)[0] for number in (start, limit, delta))
    count = max(int(np.ceil((limit - start) / delta)), 0)
    numbers: Array = np.arange(count, dtype=start.dtype) * delta + start
    return numbers.astype(start.dtype, copy=False)
