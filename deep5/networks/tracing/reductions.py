"""Reductions over axes: sums, means, extremes, their indices, booleans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, Unsupported
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.extents import Shape, product
from deep5.networks.tracing.promotion import array_of, cast, floating, operands
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS", "axes_of"]

Axis = int | Sequence[int] | None
_INT32, _INT64, _BOOL, _FLOAT32 = map(np.dtype, (np.int32, np.int64, np.bool_, np.float32))


def axes_of(function: str, x: TracedArray, axis: Axis) -> tuple[int, ...]:
    """The axes as nonnegative numbers; all if None is given.

    Raises:
        ShapeError: An axis that does not exist, or is repeated.
    """
    given = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if any(isinstance(place, bool) or not isinstance(place, int) or not -x.ndim <= place < x.ndim for place in given):
        raise ShapeError(f"{function}: got axis={axis} for {x}; allowed: integers from {-x.ndim} to {x.ndim - 1}")
    axes = tuple(place % x.ndim for place in given)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{function}: got axis={axis} for {x}; allowed: every axis once")
    return axes


def _left(x: TracedArray, axes: Sequence[int], keepdims: bool) -> Shape:
    return tuple(
        1 if place in axes else extent for place, extent in enumerate(x.shape) if keepdims or place not in axes
    )


def _reduced(op_type: str, x: TracedArray, axes: Sequence[int], keepdims: bool) -> Any:
    if not axes:
        return x
    shape = _left(x, axes, keepdims)
    return x.trace.emit(op_type, [x, x.trace.ints(axes)], x.dtype, shape, keepdims=int(keepdims))


def _adding(name: str, op_type: str) -> Callable[..., TracedArray]:
    """A sum or a product; of integers in 64 bits unless another type is requested."""

    def reduce(trace: Trace, x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
        (x,) = operands(trace, name, (x,), "integer", "float")
        if dtype is not None:
            x = cast(x, np.dtype(dtype))
        elif not floating(x.dtype):
            x = cast(x, np.dtype(np.uint64 if x.dtype.kind == "u" else np.int64))
        return _reduced(op_type, x, axes_of(name, x, axis), keepdims)

    return reduce


def _mean(trace: Trace, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    (x,) = operands(trace, "mean", (x,), "float")
    axes = axes_of("mean", x, axis)
    count = product([x.shape[place] for place in axes])
    if isinstance(count, int) and count:
        return _reduced("ReduceMean", x, axes, keepdims)
    # The mean of no elements is 0 / 0, which not every engine's ReduceMean returns.
    return _reduced("ReduceSum", x, axes, keepdims) / count


def _spread(name: str, *, root: bool) -> Callable[..., TracedArray]:
    def reduce(trace: Trace, x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Any:
        xp, (x,) = trace.namespace, operands(trace, name, (x,), "float")
        axes = axes_of(name, x, axis)
        apart = x - _mean(trace, x, axis=axes, keepdims=True)
        total = _reduced("ReduceSum", apart * apart, axes, keepdims)
        count = product([x.shape[place] for place in axes])
        left = count - correction if isinstance(count, int) else trace.number(count, x.dtype) - float(correction)
        left = max(left, 0) if isinstance(left, (int, float)) else xp.maximum(left, 0.0)
        variance = total / left
        return xp.sqrt(variance) if root else variance

    return reduce


def _extreme(name: str, op_type: str) -> Callable[..., TracedArray]:
    """The largest or smallest element; NaN if one of them is NaN, which not all engines' reductions propagate."""

    def reduce(trace: Trace, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
        (x,) = operands(trace, name, (x,), "integer", "float")
        axes = axes_of(name, x, axis)
        _some(name, x, axes)
        found = _reduced(op_type, x, axes, keepdims)
        if not floating(x.dtype) or not axes:
            return found
        broken = cast(trace.namespace.isnan(x), _INT32)
        broken = _reduced("ReduceMax", broken, axes, keepdims) > 0
        return trace.namespace.where(broken, math.nan, found)

    return reduce


def _some(name: str, x: TracedArray, axes: Sequence[int]) -> None:
    if any(isinstance(x.shape[place], int) and x.shape[place] == 0 for place in axes):
        raise ShapeError(f"{name} of no elements ({x}, axes {list(axes)}); allowed: at least one")


def _place(name: str, op_type: str) -> Callable[..., TracedArray]:
    """The index of the first extreme, or of the first NaN if there is one."""

    def reduce(trace: Trace, x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
        xp, (x,) = trace.namespace, operands(trace, name, (x,), "integer", "float")
        if axis is None:
            place = reduce(trace, xp.reshape(x, (-1,)), axis=0)
            return xp.reshape(place, (1,) * x.ndim) if keepdims else place
        axes = axes_of(name, x, axis)
        _some(name, x, axes)

        def first(of: TracedArray, kind: str) -> Any:
            return trace.emit(kind, [of], _INT64, _left(of, axes, keepdims), axis=axes[0], keepdims=int(keepdims))

        if not floating(x.dtype):
            return first(x, op_type)
        broken = cast(xp.isnan(x), _INT32)
        anywhere = _reduced("ReduceMax", broken, axes, keepdims) > 0
        return xp.where(anywhere, first(broken, "ArgMax"), first(x, op_type))

    return reduce


def _count_nonzero(trace: Trace, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    return _counted(array_of(trace, x), axis, keepdims, "count_nonzero", _INT64)


def _counted(x: TracedArray, axis: Axis, keepdims: bool, name: str, dtype: np.dtype[Any]) -> Any:
    found = cast(x.trace.namespace.astype(x, _BOOL), dtype)
    return _reduced("ReduceSum", found, axes_of(name, x, axis), keepdims)


def _any(trace: Trace, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    # Every engine can sum floating-point numbers, also of no elements, and a sum of ones is zero only if there are
    # none.
    return _counted(array_of(trace, x), axis, keepdims, "any", _FLOAT32) > 0


def _all(trace: Trace, x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    missing = ~trace.namespace.astype(array_of(trace, x), _BOOL)
    return _counted(missing, axis, keepdims, "all", _FLOAT32) == 0


def _cumulative_sum(
    trace: Trace, x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    xp, (x,) = trace.namespace, operands(trace, "cumulative_sum", (x,), "integer", "float")
    if axis is None and x.ndim != 1:
        raise Unsupported(f"cumulative_sum of {x} without an axis; allowed: one axis; remedy: axis=")
    (along,) = axes_of("cumulative_sum", x, 0 if axis is None else axis)
    if dtype is not None or not floating(x.dtype):
        x = cast(x, np.dtype(dtype or (np.uint64 if x.dtype.kind == "u" else np.int64)))
    total = trace.emit("CumSum", [x, trace.constant(np.int64(along))], x.dtype, x.shape)
    if not include_initial:
        return total
    start = xp.zeros((*x.shape[:along], 1, *x.shape[along + 1 :]), dtype=x.dtype)
    return xp.concat([start, total], axis=along)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "all": _all,
    "any": _any,
    "argmax": _place("argmax", "ArgMax"),
    "argmin": _place("argmin", "ArgMin"),
    "count_nonzero": _count_nonzero,
    "cumulative_sum": _cumulative_sum,
    "max": _extreme("max", "ReduceMax"),
    "mean": _mean,
    "min": _extreme("min", "ReduceMin"),
    "prod": _adding("prod", "ReduceProd"),
    "std": _spread("std", root=True),
    "sum": _adding("sum", "ReduceSum"),
    "var": _spread("var", root=False),
}
