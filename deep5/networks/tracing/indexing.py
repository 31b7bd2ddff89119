"""Basic indexing: whole numbers, slices, None and the ellipsis, in at most three nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, Unsupported, brief
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.extents import TracedExtent
from deep5.networks.tracing.shapes import sliced

__all__ = ["indexed"]

_FIRST, _LAST = -(2**63), 2**63 - 1


def indexed(x: TracedArray, key: Any) -> TracedArray:
    """`x[key]`.

    Raises:
        Unsupported: A key that is an array, or something else that the standard's basic indexing has not.
        ShapeError: Too many keys, or one beyond the axis.
    """
    keys = _spelt_out(x, key if isinstance(key, tuple) else (key,))
    bounds: list[tuple[int, Any, Any, int]] = []  # axis, start, stop, step
    shape, dropped, added, final = list(x.shape), list[int](), list[int](), list[Any]()
    axis = 0
    for each in keys:
        if each is None:
            added.append(len(final))
            final.append(1)
            continue
        extent = x.shape[axis]
        if isinstance(each, slice):
            start, stop, step = _bounds(each)
            if (start, stop, step) != (None, None, 1):
                shape[axis] = sliced(extent, start, stop, step)
                bounds.append((axis, *_for_onnx(extent, start, stop, step), step))
            final.append(shape[axis])
        else:
            if isinstance(extent, int) and not -extent <= each < extent:
                raise ShapeError(f"got the index {each} for {x}; allowed: {-extent} to {extent - 1} on axis {axis}")
            bounds.append((axis, each, _LAST if each == -1 else each + 1, 1))
            shape[axis] = 1
            dropped.append(axis)
        axis += 1
    trace = x.trace
    if bounds:
        axes, starts, stops, steps = zip(*bounds, strict=True)
        given = [trace.shape(starts), trace.shape(stops), trace.ints(axes), trace.ints(steps)]
        x = trace.emit("Slice", [x, *given], x.dtype, tuple(shape))
    if dropped:
        left = tuple(extent for place, extent in enumerate(shape) if place not in dropped)
        x = trace.emit("Squeeze", [x, trace.ints(dropped)], x.dtype, left)
    return trace.emit("Unsqueeze", [x, trace.ints(added)], x.dtype, tuple(final)) if added else x


def _spelt_out(x: TracedArray, keys: tuple[Any, ...]) -> list[Any]:
    """The keys with a slice for every axis that has none."""
    for each in keys:
        fits = each is None or each is Ellipsis or isinstance(each, (int, np.integer, slice))
        if not fits or isinstance(each, (bool, TracedExtent)):
            raise Unsupported(
                f"it indexes with {brief(each)}; allowed: whole numbers, slices, None, ...; remedy: xp.take, xp.where"
            )
    taken = sum(each is not None and each is not Ellipsis for each in keys)
    places = [place for place, each in enumerate(keys) if each is Ellipsis]
    if taken > x.ndim or len(places) > 1:
        raise ShapeError(f"got {taken} indices for {x}; allowed: at most {x.ndim}, and one ellipsis")
    place = places[0] if places else len(keys)
    return [*keys[:place], *[slice(None)] * (x.ndim - taken), *keys[place + 1 :]]


def _bounds(key: slice) -> tuple[Any, Any, int]:
    step = 1 if key.step is None else key.step
    for each in (key.start, key.stop):
        if not (each is None or isinstance(each, (int, np.integer, TracedExtent))) or isinstance(each, bool):
            raise Unsupported(f"it slices by {brief(each)}; allowed: whole numbers and extents")
    if not isinstance(step, int) or isinstance(step, bool) or step == 0:
        raise Unsupported(f"it slices in steps of {brief(step)}; allowed: whole numbers other than 0")
    return key.start, key.stop, step


def _for_onnx(extent: Any, start: Any, stop: Any, step: int) -> tuple[Any, Any]:
    """Bounds as ONNX writes them, to which None is the far end."""
    if isinstance(extent, int) and not isinstance(start, TracedExtent) and not isinstance(stop, TracedExtent):
        low, high, _ = slice(start, stop, step).indices(extent)
        return low, (_FIRST if high < 0 else high)
    if step > 0:
        return (0 if start is None else start), (_LAST if stop is None else stop)
    return (_LAST if start is None else start), (_FIRST if stop is None else stop)
