"""The functions of deep5's array namespace for TensorFlow on `TensorFlowArray`, with the standard's promotion.

Each function unwraps the tensors, calls the function of the same name in `namespace.py`, and wraps the results. Shapes
may contain dimensions that are unknown before the graph runs.

References:
    Python array API standard, 2024.12, https://data-apis.org/array-api.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.frameworks.tensorflow.array import TensorFlowArray, as_tensors, extent_tensor
from deep5.frameworks.tensorflow.array_promotion import operands
from deep5.frameworks.tensorflow.namespace import NAMESPACE
from deep5.networks.tracing.extents import TracedExtent
from deep5.networks.tracing.promotion import kind_of

__all__ = ["ARRAYS", "ArrayNamespace", "as_arrays"]

# Functions whose arguments are all arrays and numbers that are promoted to one dtype.
_MEETING = (
    *("add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less"),
    *("less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply"),
    *("nextafter", "not_equal", "pow", "remainder", "subtract"),
    *("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
)
# Functions that promote only their first two arguments; the others are options.
_PRODUCTS = ("matmul", "outer", "solve", "tensordot", "vecdot")
# These do not change integers; TensorFlow has them for other dtypes only.
_ROUNDING = ("ceil", "floor", "round")


def as_arrays(value: Any) -> Any:
    """Wraps tensors as arrays, also in a tuple or list; returns anything else unchanged."""
    if isinstance(value, tf.Tensor):
        return _array(value)
    return type(value)(map(as_arrays, value)) if type(value) in (tuple, list) else value


def _array(tensor: Any) -> TensorFlowArray:
    return TensorFlowArray(tensor, ARRAYS)


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Converts a function of tensors to a function of arrays."""

    def call(*args: Any, **settings: Any) -> Any:
        given = {name: as_tensors(value) for name, value in settings.items()}
        return as_arrays(function(*map(as_tensors, args), **given))

    return call


def _meeting(name: str, function: Callable[..., Any], count: int | None = None) -> Callable[..., Any]:
    """Same as `_on_tensors`, and promotes the first `count` arguments to one dtype; all if `count` is None."""
    kinds = ("float",) if name == "divide" else ()

    def call(*values: Any, **settings: Any) -> Any:
        further = () if count is None else values[count:]
        return as_arrays(function(*operands(name, values[:count], *kinds), *further, **settings))

    return call


def _listed(name: str) -> Callable[..., Any]:
    """Same as `_on_tensors`, for a function of a list of arrays."""

    def call(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
        return as_arrays(getattr(NAMESPACE, name)(operands(name, list(arrays)), axis=axis))

    return call


def _where(condition: Any, x1: Any, x2: Any, /) -> Any:
    return as_arrays(tf.where(as_tensors(condition), *operands("where", (x1, x2))))


def _clip(x: Any, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - the standard's names
    low, high = (None if each is None else operands("clip", (x, each))[1] for each in (min, max))
    return as_arrays(NAMESPACE.clip(as_tensors(x), low, high))


def _asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    if isinstance(obj, TracedExtent):
        value = extent_tensor(obj, tf.int64)
    elif dtype is None and not hasattr(obj, "dtype") and _kind(obj) == "i":
        value = tf.convert_to_tensor(obj, dtype=tf.int64)  # the default of NumPy and of the standard's arange
    else:
        value = NAMESPACE.asarray(as_tensors(obj), dtype=dtype)
    value = value if dtype is None else tf.cast(value, dtype)
    return _array(tf.identity(value) if copy else value)


def _kind(obj: Any) -> str:
    """The kind of numbers, nested in lists or not: `b`, `i` or `f`; `O` for anything that contains arrays."""
    if isinstance(obj, (list, tuple)):
        kinds = {_kind(each) for each in obj}
        return kinds.pop() if len(kinds) == 1 else "O" if not kinds or "O" in kinds else "f"
    return "b" if isinstance(obj, bool) else "i" if isinstance(obj, int) else "f" if isinstance(obj, float) else "O"


def _full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    shape = as_tensors(shape if isinstance(shape, (tuple, list)) else (shape,))
    return _array(tf.fill(shape, _asarray(fill_value, dtype=dtype).tensor))


def _filled(number: int) -> Callable[..., Any]:
    def make(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
        dtype = tf.float32 if dtype is None else dtype
        return _full(shape, _of_kind(number, dtype), dtype=dtype)

    return make


def _full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    x = as_tensors(x)
    filler = _asarray(fill_value, dtype=x.dtype if dtype is None else dtype).tensor
    known = x.shape.is_fully_defined()
    return _array(tf.broadcast_to(filler, x.shape if known else tf.shape(x)))


def _like(number: int) -> Callable[..., Any]:
    def make(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
        return _full_like(x, _of_kind(number, x.dtype if dtype is None else dtype), dtype=dtype)

    return make


def _of_kind(number: int, dtype: Any) -> bool | int:
    return bool(number) if dtype == tf.bool else number


def _arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    bounds = (start, step) if stop is None else (start, stop, step)
    whole = all(isinstance(each, (int, TracedExtent)) for each in bounds)
    dtype = dtype or (tf.int64 if whole else tf.float32)
    unknown = (TracedExtent, TensorFlowArray)
    limits = [tf.cast(as_tensors(each), dtype) if isinstance(each, unknown) else each for each in bounds]
    return _array(tf.range(0, *limits, dtype=dtype) if stop is None else tf.range(*limits, dtype=dtype))


def _linspace(start: Any, stop: Any, /, num: Any, **settings: Any) -> Any:
    if isinstance(num, TracedExtent):
        raise Unsupported(f"linspace of {num} numbers; allowed: a number that is fixed; remedy: xp.arange")
    return as_arrays(NAMESPACE.linspace(start, stop, num, **settings))


def _roll(x: Any, /, shift: Any, *, axis: Any = None) -> Any:
    if isinstance(axis, int) and isinstance(shift, TracedExtent):
        shift, axis = (shift,), (axis,)
    return as_arrays(NAMESPACE.roll(as_tensors(x), as_tensors(shift), axis=axis))


def _total(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        x = as_tensors(x)
        if dtype is None:
            kind = kind_of(np.dtype(x.dtype.as_numpy_dtype))
            dtype = x.dtype if kind == "float" else tf.uint64 if x.dtype.is_unsigned else tf.int64
        return _array(function(tf.cast(x, dtype), axis=axis, keepdims=keepdims))

    return reduce


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
        return _array(function(tf.cast(as_tensors(x), tf.bool), axis=axis, keepdims=keepdims))

    return reduce


def _unstack(x: Any, /, *, axis: int = 0) -> Any:
    if x.shape and isinstance(extent := x.shape[axis], TracedExtent):
        raise Unsupported(f"unstack into {extent} arrays; allowed: a number that is fixed; remedy: another axis")
    return as_arrays(NAMESPACE.unstack(as_tensors(x), axis=axis))


def _test(name: str, answer: bool) -> Callable[..., Any]:
    """An element-wise test. All integers have the same answer; TensorFlow supports the test for other dtypes only."""

    def call(x: Any, /) -> Any:
        if x.dtype.is_integer:
            return _full_like(x, answer, dtype=tf.bool)
        return as_arrays(getattr(NAMESPACE, name)(as_tensors(x)))

    return call


def _rounding(name: str) -> Callable[..., Any]:
    def call(x: Any, /) -> Any:
        return x if x.dtype.is_integer else as_arrays(getattr(NAMESPACE, name)(as_tensors(x)))

    return call


_OWN: dict[str, Callable[..., Any]] = {
    "all": _truth(tf.reduce_all),
    "any": _truth(tf.reduce_any),
    "arange": _arange,
    "asarray": _asarray,
    "clip": _clip,
    "concat": _listed("concat"),
    "empty": _filled(0),
    "empty_like": _like(0),
    "full": _full,
    "full_like": _full_like,
    "isfinite": _test("isfinite", True),
    "isinf": _test("isinf", False),
    "isnan": _test("isnan", False),
    "linspace": _linspace,
    "ones": _filled(1),
    "ones_like": _like(1),
    "prod": _total(tf.reduce_prod),
    "roll": _roll,
    "stack": _listed("stack"),
    "sum": _total(tf.reduce_sum),
    "unstack": _unstack,
    "where": _where,
    "zeros": _filled(0),
    "zeros_like": _like(0),
    **{name: _rounding(name) for name in _ROUNDING},
}


class ArrayNamespace:
    """The functions, constants and dtypes under the standard's names.

    Args:
        tensors: The functions, constants and dtypes for tensors.
        own: Functions that replace those.
    """

    __name__ = "deep5.frameworks.tensorflow.array_namespace"

    def __init__(self, tensors: Any, own: Mapping[str, Callable[..., Any]]) -> None:
        self._tensors, self._own = tensors, own

    def __getattr__(self, name: str) -> Any:
        made = self._own.get(name)
        if made is None:
            made = self._made(name, getattr(self._tensors, name))
        setattr(self, name, made)  # cached
        return made

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._tensors), *self._own})

    def _made(self, name: str, function: Any) -> Any:
        if isinstance(function, SimpleNamespace):
            return ArrayNamespace(function, {each: getattr(self, each) for each in _SHARED})
        if not callable(function):
            return function
        if name in _MEETING or name in _PRODUCTS:
            return _meeting(name, function, None if name in _MEETING else 2)
        return _on_tensors(function)


_SHARED = ("matmul", "matrix_transpose", "tensordot")
ARRAYS = ArrayNamespace(NAMESPACE, _OWN)
