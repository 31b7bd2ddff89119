"""Further functions of the array API standard for TensorFlow: sorting, scans, indexing, shapes, linear algebra, dtypes.

References:
    Python array API standard, 2024.12, https://data-apis.org/array-api.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["FURTHER", "matched"]

Axes = int | Sequence[int] | None

_KINDS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda dtype: dtype == tf.bool,
    "signed integer": lambda dtype: dtype.is_integer and not dtype.is_unsigned,
    "unsigned integer": lambda dtype: dtype.is_integer and dtype.is_unsigned,
    "integral": lambda dtype: dtype.is_integer,
    "real floating": lambda dtype: dtype.is_floating,
    "complex floating": lambda dtype: dtype.is_complex,
    "numeric": lambda dtype: dtype != tf.bool,
}


def matched(*values: Any) -> list[Any]:
    """The values as tensors; numbers take the dtype of the first array."""
    dtype = next((value.dtype for value in values if hasattr(value, "dtype")), None)
    return [value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value, dtype=dtype) for value in values]


def _tensor(x: Any) -> Any:
    return x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)


# Sorting. TensorFlow cannot sort booleans, and implements descending order by negation; only its ascending sort is
# stable. Neither the standard nor TensorFlow defines the position of NaN. TensorFlow's argmax and argmin skip NaN,
# where other frameworks return the index of the first, and inf // 2 is inf, where others give NaN.


def _argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    x = _tensor(x)
    if not descending:
        return tf.cast(tf.argsort(_sortable(x), axis=axis, stable=True), tf.int64)
    # Ascending from the end: among equal elements the last comes first, and is the first when read from the front.
    length = tf.shape(x, out_type=tf.int64)[axis]
    behind = tf.argsort(_sortable(tf.reverse(x, [axis])), axis=axis, stable=True)
    return length - 1 - tf.reverse(tf.cast(behind, tf.int64), [axis])


def _sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    return _take_along_axis(x, _argsort(x, axis=axis, descending=descending, stable=stable), axis=axis)


def _sortable(x: Any) -> Any:
    return tf.cast(x, tf.int32) if x.dtype == tf.bool else x


def _take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    x, indices = _tensor(x), _tensor(indices)
    indices = tf.where(indices < 0, indices + tf.cast(tf.shape(x)[axis], indices.dtype), indices)
    return _gathered(x, indices, axis)


def _gathered(x: Any, indices: Any, axis: int) -> Any:
    rank = x.shape.rank
    order = [*(each for each in range(rank) if each != axis % rank), axis % rank]
    back = [order.index(each) for each in range(rank)]
    x, indices = tf.transpose(x, order), tf.transpose(indices, order)
    # Dimensions of size 1 broadcast.
    lead = tf.broadcast_dynamic_shape(tf.shape(x)[:-1], tf.shape(indices)[:-1])
    x = tf.broadcast_to(x, tf.concat([lead, tf.shape(x)[-1:]], 0))
    indices = tf.broadcast_to(indices, tf.concat([lead, tf.shape(indices)[-1:]], 0))
    return tf.transpose(tf.gather(x, indices, axis=-1, batch_dims=rank - 1), back)


def _searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    x1, x2 = matched(x1, x2)
    x1 = x1 if sorter is None else tf.gather(x1, sorter)
    found = tf.searchsorted(x1, tf.reshape(x2, [-1]), side=side, out_type=tf.int64)
    return tf.reshape(found, tf.shape(x2))


# Scans and sums.


def _scan(function: Callable[..., Any], whole: Any) -> Callable[..., Any]:
    def scan(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
        x = _tensor(x)
        axis = 0 if axis is None else axis
        x = tf.cast(x, dtype if dtype is not None else _wide(x.dtype))
        if include_initial:
            shape = tf.tensor_scatter_nd_update(tf.shape(x), [[axis % x.shape.rank]], [1])
            x = tf.concat([tf.cast(tf.fill(shape, whole), x.dtype), x], axis)
        return function(x, axis=axis)

    return scan


def _wide(dtype: Any) -> Any:
    """The dtype of a sum."""
    if dtype == tf.bool or (dtype.is_integer and not dtype.is_unsigned):
        return tf.int64
    return tf.uint64 if dtype.is_integer else dtype


def _count_nonzero(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Any:
    return tf.math.count_nonzero(x, axis=axis, keepdims=keepdims, dtype=tf.int64)


def _diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    x = tf.concat([each for each in (prepend, x, append) if each is not None], axis)
    for _ in range(n):
        front = [slice(None)] * x.shape.rank
        back = list(front)
        front[axis], back[axis] = slice(1, None), slice(None, -1)
        x = x[tuple(front)] - x[tuple(back)]
    return x


# Element-wise functions.


def _logaddexp(x1: Any, x2: Any, /) -> Any:
    x1, x2 = matched(x1, x2)
    larger = tf.maximum(x1, x2)
    distance = -tf.abs(x1 - x2)
    # The difference of two equal infinities is NaN.
    return tf.where(x1 == x2, larger + math.log(2.0), larger + tf.math.log1p(tf.exp(distance)))


def _hypot(x1: Any, x2: Any, /) -> Any:
    x1, x2 = (tf.abs(each) for each in matched(x1, x2))
    larger, smaller = tf.maximum(x1, x2), tf.minimum(x1, x2)
    ratio = tf.math.divide_no_nan(smaller, larger)
    exact = larger * tf.sqrt(1 + ratio * ratio)  # avoids squaring large values
    infinite = tf.math.is_inf(x1) | tf.math.is_inf(x2)
    return tf.where(infinite, tf.constant(math.inf, larger.dtype), exact)


def _signbit(x: Any, /) -> Any:
    whole = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    return tf.bitcast(x, whole) < 0


def _copysign(x1: Any, x2: Any, /) -> Any:
    x1, x2 = matched(x1, x2)
    return tf.where(_signbit(x2), -tf.abs(x1), tf.abs(x1))


def _trunc(x: Any, /) -> Any:
    x = _tensor(x)
    return x if x.dtype.is_integer else tf.where(x < 0, tf.math.ceil(x), tf.floor(x))


def _bitwise(numbers: Callable[..., Any], truths: Callable[..., Any]) -> Callable[..., Any]:
    def combine(x1: Any, x2: Any, /) -> Any:
        x1, x2 = matched(x1, x2)
        return truths(x1, x2) if x1.dtype == tf.bool else numbers(x1, x2)

    return combine


def _pair(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x1, x2, /: function(*matched(x1, x2))


# Shapes.


def _moveaxis(x: Any, source: Any, destination: Any, /) -> Any:
    rank = x.shape.rank
    sources = [axis % rank for axis in ([source] if isinstance(source, int) else source)]
    places = [axis % rank for axis in ([destination] if isinstance(destination, int) else destination)]
    order = [axis for axis in range(rank) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return tf.transpose(x, order)


def _roll(x: Any, /, shift: Any, *, axis: Axes = None) -> Any:
    x = _tensor(x)
    if axis is None:
        return tf.reshape(tf.roll(tf.reshape(x, [-1]), shift, 0), tf.shape(x))
    axes = [axis] if isinstance(axis, int) else list(axis)
    return tf.roll(x, [shift] * len(axes) if isinstance(shift, int) else list(shift), axes)


def _repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    return tf.repeat(x, repeats, axis=axis)


def _tile(x: Any, repetitions: Sequence[int], /) -> Any:
    x, times = _tensor(x), list(repetitions)
    for _ in range(len(times) - x.shape.rank):
        x = x[tf.newaxis]
    return tf.tile(x, [1] * (x.shape.rank - len(times)) + times)


def _broadcast_arrays(*arrays: Any) -> list[Any]:
    shape = reduce(tf.broadcast_dynamic_shape, [tf.shape(x) for x in arrays])
    return [tf.broadcast_to(x, shape) for x in arrays]


def _unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    return tuple(tf.unstack(x, axis=axis))


# Linear algebra.


def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x1, x2 = matched(x1, x2)
    return tf.reduce_sum(x1 * x2, axis=axis)


def _vector_norm(x: Any, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Any:  # noqa: A002
    size = tf.abs(_tensor(x))
    if ord == math.inf:
        return tf.reduce_max(size, axis=axis, keepdims=keepdims)
    if ord == -math.inf:
        return tf.reduce_min(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return tf.cast(_count_nonzero(size, axis=axis, keepdims=keepdims), size.dtype)
    if ord == 1:
        return tf.reduce_sum(size, axis=axis, keepdims=keepdims)
    if ord == 2:
        return tf.sqrt(tf.reduce_sum(size * size, axis=axis, keepdims=keepdims))
    return tf.reduce_sum(size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def _outer(x1: Any, x2: Any, /) -> Any:
    x1, x2 = matched(x1, x2)
    return x1[:, tf.newaxis] * x2[tf.newaxis, :]


def _trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    diagonal = _diagonal(x, offset=offset)
    return tf.reduce_sum(tf.cast(diagonal, dtype if dtype is not None else _wide(diagonal.dtype)), -1)


def _diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return tf.linalg.diag_part(x, k=offset)


def _solve(x1: Any, x2: Any, /) -> Any:
    x1, x2 = matched(x1, x2)
    if x2.shape.rank == 1:
        return tf.squeeze(tf.linalg.solve(x1, x2[:, tf.newaxis]), -1)
    return tf.linalg.solve(x1, x2)


# Array creation and dtypes.


def _eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Any:
    columns = n_rows if n_cols is None else n_cols
    difference = tf.range(columns)[tf.newaxis, :] - tf.range(n_rows)[:, tf.newaxis]
    return tf.cast(difference == k, tf.float32 if dtype is None else dtype)


def _linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Any:
    # In float64, so that the end points are exact.
    made = np.linspace(start, stop, num, endpoint=endpoint)
    return tf.cast(tf.constant(made), tf.float32 if dtype is None else dtype)


def _meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    return list(tf.meshgrid(*arrays, indexing=indexing))


def _dtype_of(given: Any) -> Any:
    return tf.as_dtype(getattr(given, "dtype", given))


def _isdtype(dtype: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_isdtype(dtype, each) for each in kind)
    dtype = tf.as_dtype(dtype)
    if not isinstance(kind, str):
        return bool(dtype == tf.as_dtype(kind))
    if kind not in _KINDS:
        raise ValueError(f"isdtype: got the kind {kind!r}; allowed: {', '.join(_KINDS)}")
    return bool(_KINDS[kind](dtype))


def _result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype of a result; Python numbers take the dtype of the arrays if they are of the same kind."""
    numbers = [each for each in arrays_and_dtypes if isinstance(each, (bool, int, float))]
    dtypes = [_dtype_of(each).as_numpy_dtype for each in arrays_and_dtypes if not isinstance(each, (bool, int, float))]
    return tf.as_dtype(np.result_type(*dtypes, *numbers))


def _finfo(dtype: Any, /) -> Any:
    """The limits of a floating-point dtype."""
    import ml_dtypes

    dtype = _dtype_of(dtype)
    found: Any = ml_dtypes.finfo(dtype.as_numpy_dtype)  # type: ignore[no-untyped-call]
    values = {name: float(getattr(found, name)) for name in ("eps", "max", "min", "smallest_normal")}
    return SimpleNamespace(bits=found.bits, dtype=dtype, **values)


def _iinfo(dtype: Any, /) -> Any:
    dtype = _dtype_of(dtype)
    found = np.iinfo(dtype.as_numpy_dtype)
    return SimpleNamespace(bits=found.bits, max=int(found.max), min=int(found.min), dtype=dtype)


_LINALG = SimpleNamespace(
    cholesky=lambda x, /, *, upper=False: (
        tf.linalg.matrix_transpose(tf.linalg.cholesky(x)) if upper else tf.linalg.cholesky(x)
    ),
    det=tf.linalg.det,
    diagonal=_diagonal,
    inv=tf.linalg.inv,
    outer=_outer,
    solve=_solve,
    trace=_trace,
    vecdot=_vecdot,
    vector_norm=_vector_norm,
)

FURTHER: dict[str, Any] = {
    "acosh": tf.acosh,
    "argsort": _argsort,
    "asinh": tf.asinh,
    "atanh": tf.atanh,
    "bitwise_and": _bitwise(tf.bitwise.bitwise_and, tf.logical_and),
    "bitwise_invert": lambda x, /: tf.logical_not(x) if x.dtype == tf.bool else tf.bitwise.invert(x),
    "bitwise_left_shift": _pair(tf.bitwise.left_shift),
    "bitwise_or": _bitwise(tf.bitwise.bitwise_or, tf.logical_or),
    "bitwise_right_shift": _pair(tf.bitwise.right_shift),
    "bitwise_xor": _bitwise(tf.bitwise.bitwise_xor, tf.math.logical_xor),
    "broadcast_arrays": _broadcast_arrays,
    "copysign": _copysign,
    "count_nonzero": _count_nonzero,
    "cumulative_prod": _scan(tf.math.cumprod, 1),
    "cumulative_sum": _scan(tf.math.cumsum, 0),
    "diff": _diff,
    "empty": lambda shape, *, dtype=None, device=None: tf.zeros(shape, tf.float32 if dtype is None else dtype),
    "empty_like": lambda x, /, *, dtype=None, device=None: tf.zeros_like(x, dtype=dtype),
    "eye": _eye,
    "finfo": _finfo,
    "hypot": _hypot,
    "iinfo": _iinfo,
    "isdtype": _isdtype,
    "linalg": _LINALG,
    "linspace": _linspace,
    "log10": lambda x, /: tf.math.log(x) / tf.constant(math.log(10.0), x.dtype),
    "log2": lambda x, /: tf.math.log(x) / tf.constant(math.log(2.0), x.dtype),
    "logaddexp": _logaddexp,
    "meshgrid": _meshgrid,
    "moveaxis": _moveaxis,
    "nextafter": _pair(tf.math.nextafter),
    "repeat": _repeat,
    "result_type": _result_type,
    "roll": _roll,
    "searchsorted": _searchsorted,
    "signbit": _signbit,
    "sort": _sort,
    "take_along_axis": _take_along_axis,
    "tile": _tile,
    "trunc": _trunc,
    "unstack": _unstack,
    "vecdot": _vecdot,
    **{
        name: getattr(tf, name)
        for name in ("float16", "bfloat16", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
    },
}
