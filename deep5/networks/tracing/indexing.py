"""Basic indexing: integers, slices, None and the ellipsis, in at most three nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, Unsupported, brief
from deep5.networks.tracing.extents import Shape, TracedExtent
from deep5.networks.tracing.shapes import sliced

__all__ = ["Selection", "selection"]

_FIRST, _LAST = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selection of a key on an array: a Slice, then a Squeeze, then an Unsqueeze, each only if it has axes.

    Attributes:
        axes: The sliced axes, with `starts`, `stops` and `steps` in ONNX's form.
        sliced: The shape after the Slice.
        dropped: Axes indexed by an integer.
        left: The shape after the Squeeze.
        added: Axes added by None.
        shape: The final shape.
    """

    axes: tuple[int, ...]
    starts: tuple[int | TracedExtent, ...]
    stops: tuple[int | TracedExtent, ...]
    steps: tuple[int, ...]
    sliced: Shape
    dropped: tuple[int, ...]
    left: Shape
    added: tuple[int, ...]
    shape: Shape


def selection(of: Shape, key: Any, array: object) -> Selection:
    """The selection of `key` on an array.

    Args:
        of: The shape of the array.
        key: The index expression.
        array: The array, for messages.

    Raises:
        Unsupported: A key that is an array, or otherwise not part of the standard's basic indexing.
        ShapeError: Too many keys, or an index out of range.
    """
    keys = _spelt_out(len(of), key if isinstance(key, tuple) else (key,), array)
    bounds: list[tuple[int, Any, Any, int]] = []  # axis, start, stop, step
    shape, dropped, added, final = list(of), list[int](), list[int](), list[Any]()
    axis = 0
    for each in keys:
        if each is None:
            added.append(len(final))
            final.append(1)
            continue
        extent = of[axis]
        if isinstance(each, slice):
            start, stop, step = _bounds(each)
            if (start, stop, step) != (None, None, 1):
                shape[axis] = sliced(extent, start, stop, step)
                bounds.append((axis, *_for_onnx(extent, start, stop, step), step))
            final.append(shape[axis])
        else:
            if isinstance(extent, int) and not -extent <= each < extent:
                raise ShapeError(f"got the index {each} for {array}; allowed: {-extent} to {extent - 1} on axis {axis}")
            bounds.append((axis, each, _LAST if each == -1 else each + 1, 1))
            shape[axis] = 1
            dropped.append(axis)
        axis += 1
    axes, starts, stops, steps = zip(*bounds, strict=True) if bounds else ((), (), (), ())
    return Selection(
        axes=axes,
        starts=starts,
        stops=stops,
        steps=steps,
        sliced=tuple(shape),
        dropped=tuple(dropped),
        left=tuple(extent for place, extent in enumerate(shape) if place not in dropped),
        added=tuple(added),
        shape=tuple(final),
    )


def _spelt_out(rank: int, keys: tuple[Any, ...], array: object) -> list[Any]:
    """The keys, with a slice added for every axis that has none."""
    for each in keys:
        fits = each is None or each is Ellipsis or isinstance(each, (int, np.integer, slice))
        if not fits or isinstance(each, (bool, TracedExtent)):
            raise Unsupported(
                f"it indexes with {brief(each)}; allowed: integers, slices, None, ...; remedy: xp.take, xp.where"
            )
    taken = sum(each is not None and each is not Ellipsis for each in keys)
    places = [place for place, each in enumerate(keys) if each is Ellipsis]
    if taken > rank or len(places) > 1:
        raise ShapeError(f"got {taken} indices for {array}; allowed: at most {rank}, and one ellipsis")
    place = places[0] if places else len(keys)
    return [*keys[:place], *[slice(None)] * (rank - taken), *keys[place + 1 :]]


def _bounds(key: slice) -> tuple[Any, Any, int]:
    step = 1 if key.step is None else key.step
    for each in (key.start, key.stop):
        if not (each is None or isinstance(each, (int, np.integer, TracedExtent))) or isinstance(each, bool):
            raise Unsupported(f"it slices by {brief(each)}; allowed: integers and sizes")
    if not isinstance(step, int) or isinstance(step, bool) or step == 0:
        raise Unsupported(f"it slices in steps of {brief(step)}; allowed: integers other than 0")
    return key.start, key.stop, step


def _for_onnx(extent: Any, start: Any, stop: Any, step: int) -> tuple[Any, Any]:
    """Bounds in ONNX's form, with a value for None, which means the far end."""
    if isinstance(extent, int) and not isinstance(start, TracedExtent) and not isinstance(stop, TracedExtent):
        low, high, _ = slice(start, stop, step).indices(extent)
        return low, (_FIRST if high < 0 else high)
    if step > 0:
        return (0 if start is None else start), (_LAST if stop is None else stop)
    return (_LAST if start is None else start), (_FIRST if stop is None else stop)
