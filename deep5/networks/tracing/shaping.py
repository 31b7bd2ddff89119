"""Functions that move elements: reshaping, axes, joining, repeating, indexing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, Unsupported, brief
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.extents import Shape, TracedExtent, product, quotient, same, static
from deep5.networks.tracing.promotion import array_of, promoted
from deep5.networks.tracing.reductions import axes_of
from deep5.networks.tracing.shapes import broadcast_shapes
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS", "shape_of"]

Axis = int | Sequence[int] | None


def shape_of(given: Any) -> Shape:
    """A shape argument: a dimension, or several."""
    extents = (given,) if isinstance(given, (int, str)) else tuple(given)
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, (int, np.integer, TracedExtent)):
            raise Unsupported(f"got the dimension {brief(extent)}; allowed: integers, and dimensions of arrays")
    return tuple(extent if isinstance(extent, TracedExtent) else int(extent) for extent in extents)


def _reshape(trace: Trace, x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    x, goal = array_of(trace, x), shape_of(shape)
    open_places = [place for place, extent in enumerate(goal) if isinstance(extent, int) and extent < 0]
    if len(open_places) > 1 or any(goal[place] != -1 for place in open_places):
        raise ShapeError(f"reshape: got {list(goal)}; allowed: dimensions of at least 0, and -1 once")
    rest = [extent for place, extent in enumerate(goal) if place not in open_places]
    final, target = goal, list(goal)
    if open_places:
        found = quotient(x.shape, rest)
        final = tuple(found if place in open_places else extent for place, extent in enumerate(goal))
        if isinstance(found, int) or not static(rest) or 0 in rest:
            target = list(final)
    _fits(x, final)
    # 0 is a dimension, not ONNX's "unchanged"; it is not allowed together with -1.
    dynamic = not static(target) or 0 in [extent for extent in target if isinstance(extent, int)]
    attributes = {"allowzero": 1} if dynamic else {}
    return trace.emit("Reshape", [x, trace.shape(target)], x.dtype, final, **attributes)


def _fits(x: TracedArray, shape: Shape) -> None:
    before, after = product(x.shape), product(shape)
    if isinstance(before, int) and isinstance(after, int) and before != after:
        raise ShapeError(f"reshape: got {list(shape)} for {x}; allowed: shapes of {before} elements")


def _permute_dims(trace: Trace, x: Any, /, axes: Sequence[int]) -> Any:
    x = array_of(trace, x)
    order = axes_of("permute_dims", x, tuple(axes))
    if len(order) != x.ndim:
        raise ShapeError(f"permute_dims: got axes={tuple(axes)} for {x}; allowed: every axis once")
    if order == tuple(range(x.ndim)):
        return x
    return trace.emit("Transpose", [x], x.dtype, tuple(x.shape[place] for place in order), perm=list(order))


def _matrix_transpose(trace: Trace, x: Any, /) -> Any:
    x = array_of(trace, x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose of {x}; allowed: rank 2 or more")
    return _permute_dims(trace, x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _moveaxis(trace: Trace, x: Any, source: Axis, destination: Axis, /) -> Any:
    x = array_of(trace, x)
    old, new = axes_of("moveaxis", x, source), axes_of("moveaxis", x, destination)
    if len(old) != len(new):
        raise ShapeError(f"moveaxis: got {source} to {destination}; allowed: as many places as axes")
    order = [place for place in range(x.ndim) if place not in old]
    for to, place in sorted(zip(new, old, strict=True)):
        order.insert(to, place)
    return _permute_dims(trace, x, order)


def _concat(trace: Trace, arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    given = [array_of(trace, x) for x in arrays]
    if not given:
        raise ShapeError("concat of no arrays; allowed: at least one")
    dtype = promoted(*(x.dtype for x in given))
    given = [trace.namespace.astype(x, dtype) for x in given]
    if axis is None:
        given, axis = [_reshape(trace, x, (-1,)) for x in given], 0
    (along,) = axes_of("concat", given[0], axis)
    shape = list(given[0].shape)
    for x in given[1:]:
        if x.ndim != len(shape) or any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for place, (a, b) in enumerate(zip(shape, x.shape, strict=True))
            if place != along
        ):
            raise ShapeError(f"concat: got {', '.join(map(str, given))}; allowed: shapes that differ on axis {along}")
        shape[along] = shape[along] + x.shape[along]
    return given[0] if len(given) == 1 else trace.emit("Concat", given, dtype, tuple(shape), axis=along)


def _expand_dims(trace: Trace, x: Any, /, *, axis: int = 0) -> Any:
    x = array_of(trace, x)
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise ShapeError(f"expand_dims: got axis={axis} for {x}; allowed: {-x.ndim - 1} to {x.ndim}")
    place = axis % (x.ndim + 1)
    shape = (*x.shape[:place], 1, *x.shape[place:])
    return trace.emit("Unsqueeze", [x, trace.ints([place])], x.dtype, shape)


def _squeeze(trace: Trace, x: Any, /, axis: Axis) -> Any:
    x = array_of(trace, x)
    axes = axes_of("squeeze", x, axis)
    if any(isinstance(x.shape[place], int) and x.shape[place] != 1 for place in axes):
        raise ShapeError(f"squeeze: got axis={axis} for {x}; allowed: axes of size 1")
    shape = tuple(extent for place, extent in enumerate(x.shape) if place not in axes)
    return trace.emit("Squeeze", [x, trace.ints(axes)], x.dtype, shape) if axes else x


def _stack(trace: Trace, arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    return _concat(trace, [_expand_dims(trace, x, axis=axis) for x in arrays], axis=axis)


def _unstack(trace: Trace, x: Any, /, *, axis: int = 0) -> Any:
    x = array_of(trace, x)
    (along,) = axes_of("unstack", x, axis)
    count = x.shape[along]
    if not isinstance(count, int):
        raise Unsupported(f"unstack of {x} along a symbolic dimension; allowed: fixed dimensions")
    return tuple(x[(*(slice(None),) * along, place)] for place in range(count))


def _broadcast_to(trace: Trace, x: Any, /, shape: Any) -> Any:
    x, goal = array_of(trace, x), shape_of(shape)
    stretched = broadcast_shapes(x.shape, goal)
    if len(stretched) != len(goal) or any(
        isinstance(a, int) and not same(a, b) for a, b in zip(goal, stretched, strict=True)
    ):
        raise ShapeError(f"broadcast_to: got {list(goal)} for {x}; allowed: shapes that it can be stretched to")
    if len(goal) == x.ndim and all(map(same, goal, x.shape)):
        return x
    return trace.emit("Expand", [x, trace.shape(goal)], x.dtype, goal)


def _broadcast_arrays(trace: Trace, *arrays: Any) -> Any:
    given = [array_of(trace, x) for x in arrays]
    shape = broadcast_shapes(*(x.shape for x in given))
    return [_broadcast_to(trace, x, shape) for x in given]


def _flip(trace: Trace, x: Any, /, *, axis: Axis = None) -> Any:
    x = array_of(trace, x)
    axes = axes_of("flip", x, axis)
    return x[tuple(slice(None, None, -1 if place in axes else None) for place in range(x.ndim))]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "broadcast_arrays": _broadcast_arrays,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "expand_dims": _expand_dims,
    "flip": _flip,
    "matrix_transpose": _matrix_transpose,
    "moveaxis": _moveaxis,
    "permute_dims": _permute_dims,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "stack": _stack,
    "unstack": _unstack,
}
