"""Operators that move elements without changing them, and operators that return or take shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.nodes import fixed
from deep5.networks.onnx.attributes import attribute
from deep5.networks.slicing import slice_of

__all__ = ["OPERATORS"]


def _numbers(xp: Primitives, setting: Any) -> Sequence[Any]:
    """Numbers, or arrays of shape () where TensorFlow traces."""
    return setting if isinstance(setting, (list, tuple)) else xp.unstack(setting)


def _unless(xp: Primitives, number: Any, special: int, other: Any) -> Any:
    """The number, or the other one if it is the special one."""
    if isinstance(number, int):
        return other if number == special else number
    return xp.where(number == special, other, number)


def _concat(xp: Primitives, *inputs: Array, axis: int) -> Array:
    return xp.concat(inputs, axis=axis)


def _constant_of_shape(xp: Primitives, shape: Any, *, value: Any = None, kind: Any, place: Any) -> Array:
    return xp.full(tuple(_numbers(xp, shape)), 0.0 if value is None else value, dtype=kind, device=place)


def _expand(xp: Primitives, x: Array, shape: Any) -> Array:
    own, goal = x.shape, list(_numbers(xp, shape))
    more = len(own) - len(goal)
    own, goal = (1,) * -more + tuple(own), [1] * more + goal
    return xp.broadcast_to(x, tuple(_unless(xp, new, 1, old) for new, old in zip(goal, own, strict=True)))


def _flatten(xp: Primitives, x: Array, *, axis: int = 1) -> Array:
    return xp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _reshape(xp: Primitives, x: Array, shape: Any, *, allowzero: int = 0) -> Array:
    """-1 is inferred; 0 keeps the size of this axis."""
    goal = list(_numbers(xp, shape))
    for at in () if allowzero else range(min(x.ndim, len(goal))):
        goal[at] = _unless(xp, goal[at], 0, x.shape[at])
    return xp.reshape(x, tuple(goal))


def _shape(xp: Primitives, x: Array, *, start: int = 0, end: int | None = None, place: Any) -> Array:
    return xp.sizes(x.shape[start:end], place)


def _size(xp: Primitives, x: Array, *, place: Any) -> Array:
    return xp.sizes(math.prod(x.shape), place)


def _slice(
    xp: Primitives, x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None, *, places: Any = None
) -> Array:
    parts, turned = [slice(None)] * x.ndim, []
    steps = [1] * len(starts) if steps is None else steps
    starts, ends, steps = (_numbers(xp, each) for each in (starts, ends, steps))
    for axis, start, end, step in zip(axes or range(len(starts)), starts, ends, steps, strict=True):
        along = axis % x.ndim if places is None else places[axis % x.ndim]
        parts[along] = part = _part(xp, start, end, step, x.shape[along])
        if isinstance(part.step, int) and part.step < 0 and isinstance(x.shape[along], int):
            # The same elements in the order of the axis.
            taken = range(x.shape[along])[part]
            parts[along] = slice(taken[-1], taken[0] + 1, -part.step) if taken else slice(0, 0)
            turned.append(along)
    x = x[tuple(parts)] if parts else x
    return xp.flip(x, axis=tuple(turned)) if turned else x


def _part(xp: Primitives, start: Any, end: Any, step: Any, extent: Any) -> slice:
    if all(isinstance(each, int) for each in (start, end, step)) and (step > 0 or isinstance(extent, int)):
        return slice_of(start, end, step, extent if step < 0 else None)
    # Where TensorFlow traces. Backwards, a start before the first element is that element, as in `slice_of`.
    first, lowest = (xp.asarray(each, dtype=xp.int64) for each in (start, -extent))
    return slice(xp.where(xp.asarray(step < 0), xp.maximum(first, lowest), first), end, step)


def _split(xp: Primitives, x: Array, sizes: Any = None, *, axis: int = 0, outputs: int) -> Sequence[Array]:
    """Into parts of these sizes; without sizes, all parts are equal, except the last ones."""
    extent = x.shape[axis]
    size = -(-extent // outputs) if sizes is None else 0
    if sizes is not None:
        sizes = _numbers(xp, sizes)
    elif isinstance(extent, int):
        sizes = tuple(max(0, min(size, extent - at * size)) for at in range(outputs))
    else:
        sizes = (*(size,) * (outputs - 1), extent - size * (outputs - 1))
    return xp.split(x, sizes, axis) if outputs > 1 else (x,)


def _squeeze(xp: Primitives, x: Array, axes: Any = None) -> Array:
    chosen = tuple(at for at, extent in enumerate(x.shape) if extent == 1) if axes is None else tuple(axes)
    return xp.squeeze(x, axis=chosen) if chosen else x


def _unsqueeze(xp: Primitives, x: Array, axes: Any) -> Array:
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = xp.expand_dims(x, axis=axis)
    return x


def _tile(xp: Primitives, x: Array, repeats: Any) -> Array:
    return xp.tile(x, tuple(_numbers(xp, repeats)))


def _transpose(xp: Primitives, x: Array, *, perm: Sequence[int] | None = None) -> Array:
    return xp.permute_dims(x, tuple(range(x.ndim))[::-1] if perm is None else tuple(perm))


def _pad(
    xp: Primitives,
    x: Array,
    pads: Any,
    fill: Any = None,
    axes: Any = None,
    *,
    mode: str = "constant",
    places: Any = None,
) -> Array:
    """Elements before and after each axis; negative numbers remove elements."""
    axes, pads = [axis % x.ndim for axis in axes or range(x.ndim)], _numbers(xp, pads)
    both, shape = [(0, 0)] * x.ndim, x.shape
    for at, axis in enumerate(axes):
        both[axis if places is None else places[axis]] = (pads[at], pads[at + len(axes)])
    if mode == "constant":
        return xp.pad(x, tuple(both), 0 if fill is None else fill)
    for axis, (before, after) in enumerate(both):
        if not isinstance(before, int) or before or after:
            x = xp.take(x, xp.table(_sources, mode, shape[axis], before, after, like=x), axis=axis)
    return x


def _sources(xp: Any, mode: str, extent: Any, before: Any, after: Any) -> Any:
    """The place of each element of an axis that is padded with its own elements; negative numbers first remove some."""
    none = xp.asarray(0, dtype=xp.int64)
    first, behind = (xp.maximum(xp.asarray(-each, dtype=xp.int64), none) for each in (before, after))
    places, left = xp.arange(-before, extent + after, dtype=xp.int64) - first, extent - first - behind
    if mode == "edge":
        return first + xp.clip(places, 0, left - 1)
    if mode == "wrap":
        return first + places % left
    turn = xp.maximum(2 * (left - 1), xp.asarray(1, dtype=xp.int64))
    places = places % turn
    return first + xp.where(places < left, places, turn - places)


def _check_pad(node: ir.Node) -> str | None:
    mode, fill = attribute(node, "mode", "constant"), fixed(node, 2)
    if mode not in ("constant", "edge", "reflect", "wrap"):
        return f"mode={mode}; allowed: constant, edge, reflect, wrap"
    return "no padding value of one element" if fill is not None and fill.size > 1 else None


def _moving(function: Callable[..., Any], *settings: int, traced: Sequence[int] | None = None, **how: Any) -> Composite:
    return Composite(
        function=function, settings=settings, traced=settings if traced is None else tuple(traced), written=True, **how
    )


OPERATORS = {
    "Concat": _moving(_concat, layout="axis", alike=True),
    "ConstantOfShape": _moving(_constant_of_shape, 0),
    "Expand": _moving(_expand, 1),
    "Flatten": _moving(_flatten),
    "Pad": _moving(_pad, 1, 3, traced=(1,), scalars=(2,), check=_check_pad, layout="places"),
    "Reshape": _moving(_reshape, 1),
    "Shape": _moving(_shape),
    "Size": _moving(_size),
    "Slice": _moving(_slice, 1, 2, 3, 4, traced=(1, 2, 4), layout="places"),
    "Split": _moving(_split, 1, layout="axis"),
    "Squeeze": _moving(_squeeze, 1, traced=()),
    "Tile": _moving(_tile, 1),
    "Transpose": _moving(_transpose),
    "Unsqueeze": _moving(_unsqueeze, 1, traced=()),
}
