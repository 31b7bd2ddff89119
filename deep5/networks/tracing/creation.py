"""Functions that create arrays, and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, Unsupported
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.elementwise import number
from deep5.networks.tracing.extents import TracedExtent, product, same
from deep5.networks.tracing.promotion import array_of, cast, kind_of, operands
from deep5.networks.tracing.reductions import axes_of
from deep5.networks.tracing.shapes import broadcast_shapes
from deep5.networks.tracing.shaping import shape_of
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS"]

_FLOAT = np.dtype(np.float64)  # NumPy's default, which differs from torch's: operators should specify types


def _asarray(trace: Trace, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    if isinstance(obj, TracedArray):
        return obj if dtype is None else trace.namespace.astype(obj, dtype)
    if isinstance(obj, TracedExtent):
        return trace.number(obj, np.int64 if dtype is None else dtype)
    if isinstance(obj, (list, tuple)) and any(isinstance(part, (TracedArray, TracedExtent)) for part in obj):
        return trace.namespace.stack([_asarray(trace, part, dtype=dtype) for part in obj])
    array = np.asarray(obj, dtype=None if dtype is None else np.dtype(dtype))
    kind_of(array.dtype)
    return trace.constant(array)


def _full(trace: Trace, shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    if isinstance(fill_value, TracedArray):
        filling = fill_value if dtype is None else cast(fill_value, np.dtype(dtype))
    else:
        filling = _asarray(trace, fill_value, dtype=dtype)
    extents = shape_of(shape)
    return trace.emit("Expand", [filling, trace.shape(extents)], filling.dtype, extents) if extents else filling


def _filled(value: float) -> Callable[..., TracedArray]:
    def make(trace: Trace, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
        return _full(trace, shape, value, dtype=_FLOAT if dtype is None else dtype)

    return make


def _full_like(trace: Trace, x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    x = array_of(trace, x)
    return _full(trace, x.shape, fill_value, dtype=x.dtype if dtype is None else dtype)


def _like(value: float) -> Callable[..., TracedArray]:
    return lambda trace, x, /, *, dtype=None, device=None: _full_like(trace, x, value, dtype=dtype)


def _arange(
    trace: Trace, start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Any:
    low, high = (0, start) if stop is None else (start, stop)
    kind = None if dtype is None else np.dtype(dtype)
    if not any(isinstance(each, TracedExtent) for each in (low, high, step)):
        return trace.constant(np.arange(low, high, step, dtype=kind))
    if not all(isinstance(each, (int, TracedExtent)) for each in (low, high)) or step != 1:
        raise Unsupported(f"arange({low}, {high}, {step}); allowed with symbolic dimensions: integers, in steps of 1")
    ends = [_asarray(trace, each, dtype=np.int64) for each in (low, high, 1)]
    found = trace.emit("Range", ends, np.int64, (high - low,))
    return found if kind is None else cast(found, kind)


def _eye(trace: Trace, n_rows: Any, n_cols: Any = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Any:
    xp, columns = trace.namespace, n_rows if n_cols is None else n_cols
    here = xp.arange(columns)[None, :] - xp.arange(n_rows)[:, None] == k
    return cast(here, _FLOAT if dtype is None else np.dtype(dtype))


def _linspace(
    trace: Trace,
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Any:
    if not all(isinstance(each, (int, float)) for each in (start, stop, num)):
        raise Unsupported(f"linspace({start}, {stop}, {num}); allowed: numbers that are known")
    return trace.constant(np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint))


def _band(*, lower: bool) -> Callable[..., TracedArray]:
    """Keep the elements on one side of the k-th diagonal; the others become zero."""

    def function(trace: Trace, x: Any, /, *, k: int = 0) -> Any:
        xp, x = trace.namespace, array_of(trace, x)
        if x.ndim < 2:
            raise ShapeError(f"tril, triu of {x}; allowed: rank 2 or more")
        offset = xp.arange(x.shape[-1])[None, :] - xp.arange(x.shape[-2])[:, None]
        return xp.where(offset <= k if lower else offset >= k, x, number(x, 0))

    return function


def _meshgrid(trace: Trace, *arrays: Any, indexing: str = "xy") -> Any:
    xp, given = trace.namespace, [array_of(trace, x) for x in arrays]
    count = len(given)
    spread = [x[(*(None,) * place, slice(None), *(None,) * (count - place - 1))] for place, x in enumerate(given)]
    made = xp.broadcast_arrays(*spread)
    if indexing == "xy" and count > 1:
        made = [xp.permute_dims(x, (1, 0, *range(2, count))) for x in made]
    return list(made)


def _matmul(trace: Trace, x1: Any, x2: Any, /) -> Any:
    x, y = operands(trace, "matmul", (x1, x2), "integer", "float")
    if not x.ndim or not y.ndim:
        raise ShapeError(f"matmul of {x} and {y}; allowed: rank 1 or more each")
    _alike("matmul", x.shape[-1], y.shape[max(y.ndim - 2, 0)], x, y)
    around = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    rows = x.shape[-2:-1] if x.ndim > 1 else ()
    columns = y.shape[-1:] if y.ndim > 1 else ()
    return trace.emit("MatMul", [x, y], x.dtype, (*around, *rows, *columns))


def _alike(name: str, left: int | TracedExtent, right: int | TracedExtent, x: TracedArray, y: TracedArray) -> None:
    if isinstance(left, int) and isinstance(right, int) and left != right:
        raise ShapeError(f"{name} of {x} and {y}; allowed: equal sizes of the axes that are summed")


def _vecdot(trace: Trace, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x, y = operands(trace, "vecdot", (x1, x2), "integer", "float")
    if axis >= 0 or -axis > min(x.ndim, y.ndim):
        raise ShapeError(f"vecdot of {x} and {y}: got axis={axis}; allowed: one of both, counted from the last")
    if not same(x.shape[axis], y.shape[axis]):
        _alike("vecdot", x.shape[axis], y.shape[axis], x, y)
    return trace.namespace.sum(x * y, axis=axis, dtype=x.dtype)


def _tensordot(trace: Trace, x1: Any, x2: Any, /, *, axes: int | Sequence[Sequence[int]] = 2) -> Any:
    """Written as one matrix product."""
    xp, (x, y) = trace.namespace, operands(trace, "tensordot", (x1, x2), "integer", "float")
    if isinstance(axes, int):
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        left, right = axes_of("tensordot", x, tuple(axes[0])), axes_of("tensordot", y, tuple(axes[1]))
    if len(left) != len(right):
        raise ShapeError(f"tensordot: got axes={axes}; allowed: as many of one as of the other")
    for a, b in zip(left, right, strict=True):
        _alike("tensordot", x.shape[a], y.shape[b], x, y)
    rows = [place for place in range(x.ndim) if place not in left]
    columns = [place for place in range(y.ndim) if place not in right]
    summed = product([x.shape[place] for place in left])
    over, beside = [x.shape[place] for place in rows], [y.shape[place] for place in columns]
    one = xp.reshape(xp.permute_dims(x, (*rows, *left)), (product(over), summed))
    other = xp.reshape(xp.permute_dims(y, (*right, *columns)), (summed, product(beside)))
    return xp.reshape(one @ other, (*over, *beside))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arange": _arange,
    "asarray": _asarray,
    "empty": _filled(0.0),
    "empty_like": _like(0.0),
    "eye": _eye,
    "full": _full,
    "full_like": _full_like,
    "linspace": _linspace,
    "matmul": _matmul,
    "meshgrid": _meshgrid,
    "ones": _filled(1.0),
    "ones_like": _like(1.0),
    "tensordot": _tensordot,
    "tril": _band(lower=True),
    "triu": _band(lower=False),
    "vecdot": _vecdot,
    "zeros": _filled(0.0),
    "zeros_like": _like(0.0),
}
