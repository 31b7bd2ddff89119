"""deep5's array namespace for TensorFlow, whose tensors have none: the functions that rules and operators use.

They take tensors and variables, in eager calls and in a `tf.function` being traced. A Python number takes the dtype of
the array that it is combined with, as in the standard; TensorFlow does so only if the array comes first.

References:
    Python array API standard, 2024.12, https://data-apis.org/array-api.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.frameworks.tensorflow.standard import FURTHER, matched

__all__ = ["NAMESPACE", "Namespace"]

Axis = int | Sequence[int] | None


def _combining(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of several arrays and numbers."""
    return lambda *values: function(*matched(*values))


def _asarray(x: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    value = tf.convert_to_tensor(x) if hasattr(x, "dtype") else tf.convert_to_tensor(x, dtype=dtype)
    value = value if dtype is None else tf.cast(value, dtype)
    return tf.identity(value) if copy else value


def _full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    return tf.fill((shape,) if isinstance(shape, int) else shape, _asarray(fill_value, dtype=dtype))


def _filled(number: float) -> Callable[..., Any]:
    def make(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
        return _full(shape, number, dtype=tf.float32 if dtype is None else dtype)

    return make


def _full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    return tf.broadcast_to(_asarray(fill_value, dtype=x.dtype if dtype is None else dtype), tf.shape(x))


def _like(number: float) -> Callable[..., Any]:
    return lambda x, /, *, dtype=None, device=None: _full_like(x, number, dtype=dtype)


def _reciprocal(x: Any, /) -> Any:
    """1 / x. TensorFlow's graph rewriting would make it its own reciprocal, which is wrong by up to 1.3 last digits."""
    return -1 / -x


def _clip(x: Any, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - the standard's names
    x = x if min is None else _combining(tf.maximum)(x, min)
    return tf.convert_to_tensor(x) if max is None else _combining(tf.minimum)(x, max)


def _reducing(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
        return function(x, axis=axis, keepdims=keepdims)

    return reduce


def _sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
    return tf.reduce_sum(x if dtype is None else tf.cast(x, dtype), axis=axis, keepdims=keepdims)


def _check_floating(x: Any) -> None:
    """Check for floating-point: the standard defines means for no other dtype, and TensorFlow would round them."""
    if not x.dtype.is_floating and not x.dtype.is_complex:
        raise Unsupported(
            f"a mean, or a spread around it, of {x.dtype.name}; allowed: floating-point numbers; remedy: "
            "xp.astype(x, xp.float32)"
        )


def _mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    _check_floating(x)
    return tf.reduce_mean(x, axis=axis, keepdims=keepdims)


def _spread(root: bool) -> Callable[..., Any]:
    def reduce(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Any:
        _check_floating(x)
        deviation = x - tf.reduce_mean(x, axis=axis, keepdims=True)
        total = tf.reduce_sum(deviation * deviation, axis=axis, keepdims=keepdims)
        count = tf.cast(tf.size(x) // tf.maximum(tf.size(total), 1), total.dtype)
        variance = total / (count - tf.cast(correction, total.dtype))
        return tf.sqrt(variance) if root else variance

    return reduce


def _place_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
        if axis is None:
            place = function(tf.reshape(x, (-1,)), axis=0, output_type=tf.int64)
            return tf.reshape(place, (1,) * x.shape.rank) if keepdims else place
        place = function(x, axis=axis, output_type=tf.int64)
        return tf.expand_dims(place, axis) if keepdims else place

    return reduce


def _matmul(x: Any, y: Any, /) -> Any:
    x, y = matched(x, y)
    if x.shape.rank == 1 and y.shape.rank == 1:
        return tf.tensordot(x, y, 1)
    if x.shape.rank == 1:
        return tf.squeeze(tf.matmul(x[tf.newaxis], y), -2)
    return tf.linalg.matvec(x, y) if y.shape.rank == 1 else tf.matmul(x, y)


def _concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    return tf.concat([tf.reshape(x, (-1,)) for x in arrays], 0) if axis is None else tf.concat(list(arrays), axis)


def _expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    return tf.expand_dims(x, axis)


def _take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    return tf.gather(x, indices, axis=0 if axis is None else axis)


def _arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    numbers = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(number, int) for number in (*numbers, step))
    chosen = dtype or (tf.int64 if whole else tf.float32)
    return tf.range(*numbers, step, dtype=chosen)


_FUNCTIONS: dict[str, Any] = {
    # Two or more arrays and numbers.
    "add": _combining(tf.add),
    "atan2": _combining(tf.atan2),
    "divide": _combining(tf.divide),
    "equal": _combining(tf.equal),
    "floor_divide": _combining(tf.math.floordiv),
    "greater": _combining(tf.greater),
    "greater_equal": _combining(tf.greater_equal),
    "less": _combining(tf.less),
    "less_equal": _combining(tf.less_equal),
    "logical_and": _combining(tf.logical_and),
    "logical_or": _combining(tf.logical_or),
    "logical_xor": _combining(tf.math.logical_xor),
    "maximum": _combining(tf.maximum),
    "minimum": _combining(tf.minimum),
    "multiply": _combining(tf.multiply),
    "not_equal": _combining(tf.not_equal),
    "pow": _combining(tf.pow),
    "remainder": _combining(tf.math.floormod),
    "subtract": _combining(tf.subtract),
    "where": lambda condition, x1, x2: tf.where(condition, *matched(x1, x2)),
    # Element-wise.
    "abs": tf.abs,
    "acos": tf.acos,
    "asin": tf.asin,
    "atan": tf.atan,
    "ceil": tf.math.ceil,
    "clip": _clip,
    "cos": tf.cos,
    "cosh": tf.cosh,
    "exp": tf.exp,
    "expm1": tf.math.expm1,
    "floor": tf.floor,
    "isfinite": tf.math.is_finite,
    "isinf": tf.math.is_inf,
    "isnan": tf.math.is_nan,
    "log": tf.math.log,
    "log1p": tf.math.log1p,
    "logical_not": tf.logical_not,
    "negative": tf.negative,
    "positive": tf.convert_to_tensor,
    "reciprocal": _reciprocal,
    "round": tf.round,
    "sign": tf.sign,
    "sin": tf.sin,
    "sinh": tf.sinh,
    "sqrt": tf.sqrt,
    "square": tf.square,
    "tan": tf.tan,
    "tanh": tf.tanh,
    # Reductions.
    "all": _reducing(tf.reduce_all),
    "any": _reducing(tf.reduce_any),
    "argmax": _place_of(tf.argmax),
    "argmin": _place_of(tf.argmin),
    "max": _reducing(tf.reduce_max),
    "mean": _mean,
    "min": _reducing(tf.reduce_min),
    "prod": _reducing(tf.reduce_prod),
    "std": _spread(root=True),
    "sum": _sum,
    "var": _spread(root=False),
    # Products.
    "matmul": _matmul,
    "matrix_transpose": tf.linalg.matrix_transpose,
    "tensordot": lambda x1, x2, /, *, axes=2: tf.tensordot(x1, x2, axes),
    # Shapes and indexing.
    "broadcast_to": tf.broadcast_to,
    "concat": _concat,
    "expand_dims": _expand_dims,
    "flip": lambda x, /, *, axis=None: tf.reverse(
        x, list(range(x.shape.rank)) if axis is None else tf.reshape(axis, [-1])
    ),
    "permute_dims": tf.transpose,
    "reshape": lambda x, /, shape, *, copy=None: tf.reshape(x, shape),
    "squeeze": lambda x, /, axis: tf.squeeze(x, axis),
    "stack": lambda arrays, /, *, axis=0: tf.stack(list(arrays), axis),
    "take": _take,
    "tril": lambda x, /, *, k=0: _band(x, k, lower=True),
    "triu": lambda x, /, *, k=0: _band(x, k, lower=False),
    # Array creation.
    "arange": _arange,
    "asarray": _asarray,
    "astype": lambda x, dtype, /, *, copy=True, device=None: tf.cast(x, dtype),
    "full": _full,
    "full_like": _full_like,
    "ones": _filled(1.0),
    "ones_like": _like(1.0),
    "zeros": _filled(0.0),
    "zeros_like": _like(0.0),
    # Constants and dtypes.
    "bool": tf.bool,
    "e": math.e,
    "float32": tf.float32,
    "float64": tf.float64,
    "inf": math.inf,
    "int32": tf.int32,
    "int64": tf.int64,
    "nan": math.nan,
    "newaxis": None,
    "pi": math.pi,
    **FURTHER,
}


def _band(x: Any, k: int, *, lower: bool) -> Any:
    """The elements on one side of the k-th diagonal, the others zero."""
    shape = tf.shape(x)
    offset = tf.range(shape[-1])[tf.newaxis, :] - tf.range(shape[-2])[:, tf.newaxis]
    return tf.where(offset <= k if lower else offset >= k, x, tf.zeros((), x.dtype))


class Namespace:
    """The functions, constants and dtypes under the standard's names."""

    __name__ = "deep5.frameworks.tensorflow.namespace"

    def __getattr__(self, name: str) -> Any:
        try:
            return _FUNCTIONS[name]
        except KeyError:
            raise AttributeError(
                f"deep5's array namespace for TensorFlow has no {name!r}; allowed: {', '.join(sorted(_FUNCTIONS))}"
            ) from None

    def __dir__(self) -> list[str]:
        return sorted(_FUNCTIONS)


NAMESPACE = Namespace()
