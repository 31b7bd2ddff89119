"""Operators that find, mark or reorder elements by their index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Call, Composite
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]


def _range(xp: Any, count: Any) -> Any:
    return xp.arange(0, count, dtype=xp.int64)


def _steps(xp: Any, count: Any, axis: int) -> tuple[Any, Any]:
    """0, 1, … along one axis of two, and 1, 2, …"""
    steps = xp.reshape(xp.arange(0, count, dtype=xp.int64), (-1, 1) if axis == 0 else (1, -1))
    return steps, steps + 1


def _along(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(-1 if at == axis else 1 for at in range(rank))


def _place_of(name: str) -> Callable[..., Array]:
    """The index of an extremum along an axis: of the first one, or of the last."""

    def find(xp: Primitives, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        x = xp.flip(x, axis=axis) if select_last_index else x
        found = xp.astype(getattr(xp, name)(x, axis=axis, keepdims=bool(keepdims)), xp.int64)
        return x.shape[axis] - 1 - found if select_last_index else found

    return find


def _directly(name: str) -> Callable[[ir.Node], Call | None]:
    def find(node: ir.Node) -> Call | None:
        how = attribute(node, "axis", 0), bool(attribute(node, "keepdims", 1))
        return None if attribute(node, "select_last_index", 0) else Call(name, 1, how)

    return find


def _cumulated(name: str, first: int) -> Callable[..., Array]:
    """A cumulative sum or product along an axis that is an input."""

    def cumulate(xp: Primitives, x: Array, axes: Any, *, exclusive: int = 0, reverse: int = 0) -> Array:
        axis, kind = int(axes[0]) % x.ndim, x.dtype
        x = xp.flip(x, axis=axis) if reverse else x
        x = xp.wide(x) if xp.is_floating(kind) else x
        if exclusive:
            every: Any = slice(None)
            start = xp.full_like(x[(every,) * axis + (slice(0, 1),)], first)
            x = xp.concat([start, x[(every,) * axis + (slice(0, -1),)]], axis=axis)
        y = xp.astype(getattr(xp, name)(x, axis=axis, dtype=x.dtype), kind)
        return xp.flip(y, axis=axis) if reverse else y

    return cumulate


def _hardmax(xp: Primitives, x: Array, *, axis: int = -1) -> Array:
    """1 at the first maximum along an axis, 0 elsewhere."""
    places = xp.table(_range, x.shape[axis], like=x)
    hot = xp.reshape(places, _along(axis % x.ndim, x.ndim)) == xp.argmax(xp.held(x), axis=axis, keepdims=True)
    return xp.astype(hot, x.dtype)


def _one_hot(xp: Primitives, indices: Array, depth: Any, values: Array, *, axis: int = -1) -> Array:
    count, axis = depth[0], axis % (indices.ndim + 1)
    count = int(count) if isinstance(count, (int, float)) else xp.astype(count, xp.int64)
    places = xp.astype(indices, xp.int64)
    places = xp.expand_dims(xp.where(places < 0, places + count, places), axis=axis)
    classes = xp.reshape(xp.table(_range, count, like=indices), _along(axis, places.ndim))
    return xp.where(places == classes, values[1], values[0])


def _trilu(xp: Primitives, x: Array, diagonal: Any = None, *, upper: int = 1) -> Array:
    """The elements on and above the k-th diagonal, or on and below it; zeros elsewhere."""
    offset = 0 if diagonal is None else diagonal[0]
    rows, columns = (xp.table(_range, x.shape[axis], like=x) for axis in (-2, -1))
    apart = columns - rows[:, None]
    return xp.where(apart >= offset if upper else apart <= offset, x, xp.zeros_like(x))


def _eye_like(xp: Primitives, x: Array, *, k: int = 0, kind: Any) -> Array:
    rows, columns = (xp.table(_range, extent, like=x) for extent in x.shape)
    return xp.astype(rows[:, None] + k == columns, kind)


def _reverse_sequence(xp: Primitives, x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """Each sample with its first elements along the time axis in reverse order."""
    ends = xp.astype(lengths[None] if time_axis == 0 else lengths[:, None], xp.int64)
    (steps, later), (samples, _) = (xp.table(_steps, x.shape[axis], axis, like=x) for axis in (time_axis, batch_axis))
    places = xp.where(steps < ends, ends - later, steps)
    # The first two axes as one, so that whole slices move.
    places = samples * x.shape[time_axis] + places if time_axis else places * x.shape[batch_axis] + samples
    rows = xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
    return xp.reshape(xp.take(rows, xp.reshape(places, (-1,)), axis=0), x.shape)


def _check_axes(node: ir.Node) -> str | None:
    batch, time = attribute(node, "batch_axis", 1), attribute(node, "time_axis", 0)
    if {batch, time} == {0, 1}:
        return None
    return f"got batch_axis {batch} and time_axis {time}; allowed: 0 and 1; remedy: a Transpose before and after"


OPERATORS = {
    "ArgMax": Composite(function=_place_of("argmax"), direct=_directly("argmax")),
    "ArgMin": Composite(function=_place_of("argmin"), direct=_directly("argmin")),
    "CumProd": Composite(function=_cumulated("cumulative_prod", 1), settings=(1,)),
    "CumSum": Composite(function=_cumulated("cumulative_sum", 0), settings=(1,)),
    "EyeLike": Composite(function=_eye_like),
    "Hardmax": Composite(function=_hardmax, layout="axis"),
    "OneHot": Composite(function=_one_hot, settings=(1,), traced=(1,)),
    "ReverseSequence": Composite(function=_reverse_sequence, check=_check_axes),
    "Trilu": Composite(function=_trilu, settings=(1,), traced=(1,)),
}
