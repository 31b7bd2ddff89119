"""Functions that select elements by index, and repeat them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, Unsupported, brief
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.promotion import array_of, operands
from deep5.networks.tracing.reductions import axes_of
from deep5.networks.tracing.shapes import broadcast_shapes
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS"]

Axis = int | Sequence[int] | None


def _roll(trace: Trace, x: Any, /, shift: int | Sequence[int], *, axis: Axis = None) -> Any:
    x = array_of(trace, x)
    if axis is None:
        return trace.namespace.reshape(_roll(trace, trace.namespace.reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = axes_of("roll", x, axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: got shift={shift} for axis={axis}; allowed: one an axis")
    for by, along in zip(shifts, axes, strict=True):
        places = trace.namespace.arange(x.shape[along])
        extent: Any = x.shape[along]
        if isinstance(extent, int) and extent == 0:
            continue
        x = _take(trace, x, (places - by) % extent, axis=along)
    return x


def _repeat(trace: Trace, x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    x = array_of(trace, x)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 0:
        raise Unsupported(f"repeat: got repeats={brief(repeats)}; allowed: one integer of at least 0")
    if axis is None:
        x, axis = trace.namespace.reshape(x, (-1,)), 0
    (along,) = axes_of("repeat", x, axis)
    wide = (*x.shape[: along + 1], repeats, *x.shape[along + 1 :])
    stretched = trace.namespace.broadcast_to(trace.namespace.expand_dims(x, axis=along + 1), wide)
    return trace.namespace.reshape(stretched, (*x.shape[:along], x.shape[along] * repeats, *x.shape[along + 1 :]))


def _tile(trace: Trace, x: Any, repetitions: Sequence[int], /) -> Any:
    x, counts = array_of(trace, x), tuple(repetitions)
    if len(counts) > x.ndim:
        x = trace.namespace.reshape(x, (1,) * (len(counts) - x.ndim) + x.shape)
    counts = (1,) * (x.ndim - len(counts)) + counts
    shape = tuple(extent * count for extent, count in zip(x.shape, counts, strict=True))
    return trace.emit("Tile", [x, trace.shape(counts)], x.dtype, shape)


def _take(trace: Trace, x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    x, (places,) = array_of(trace, x), operands(trace, "take with indices", (indices,), "integer")
    if (axis is None and x.ndim != 1) or places.ndim != 1:
        raise Unsupported(f"take of {x} at {places}, axis={axis}; allowed: an axis, and a vector of indices")
    (along,) = axes_of("take", x, 0 if axis is None else axis)
    shape = (*x.shape[:along], *places.shape, *x.shape[along + 1 :])
    return trace.emit("Gather", [x, _wide(places)], x.dtype, shape, axis=along)


def _take_along_axis(trace: Trace, x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    x, (places,) = array_of(trace, x), operands(trace, "take_along_axis with indices", (indices,), "integer")
    (along,) = axes_of("take_along_axis", x, axis)
    if places.ndim != x.ndim:
        raise ShapeError(f"take_along_axis of {x} at {places}; allowed: as many axes")
    # All other axes are broadcast to each other.
    before, after = broadcast_shapes(x.shape[:along], places.shape[:along]), slice(along + 1, None)
    behind = broadcast_shapes(x.shape[after], places.shape[after])
    goal, source = ((*before, array.shape[along], *behind) for array in (places, x))
    given = [trace.namespace.broadcast_to(x, source), trace.namespace.broadcast_to(_wide(places), goal)]
    return trace.emit("GatherElements", given, x.dtype, goal, axis=along)


def _wide(places: TracedArray) -> Any:
    """Indices in a type that Gather accepts."""
    known = places.dtype in (np.dtype(np.int32), np.dtype(np.int64))
    return places if known else places.trace.namespace.astype(places, np.int64)


def _diff(trace: Trace, x: Any, /, *, axis: int = -1, n: int = 1) -> Any:
    x = array_of(trace, x)
    (along,) = axes_of("diff", x, axis)
    lead = (slice(None),) * along
    for _ in range(n):
        x = x[(*lead, slice(1, None))] - x[(*lead, slice(None, -1))]
    return x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "diff": _diff,
    "repeat": _repeat,
    "roll": _roll,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "tile": _tile,
}
