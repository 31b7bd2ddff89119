"""`PRIMITIVES`: what composites compute with on TensorFlow."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.frameworks.tensorflow.array import TensorFlowArray, as_tensors
from deep5.frameworks.tensorflow.array_namespace import ARRAYS, as_arrays
from deep5.frameworks.tensorflow.indices import classes, gathered, picked, placed, top_k
from deep5.frameworks.tensorflow.namespace import NAMESPACE
from deep5.frameworks.tensorflow.order import kernel_order
from deep5.frameworks.tensorflow.short import with_bias
from deep5.frameworks.tensorflow.windows import convolution, transposed_convolution
from deep5.networks.tracing.extents import TracedExtent
from deep5.networks.window import Window

__all__ = ["PRIMITIVES", "native", "on_tensors"]


def _normal_distribution(x: Any) -> Any:
    return 0.5 * (1 + tf.math.erf(x * math.sqrt(0.5)))


def _seeded(seed: float | None) -> Any:
    if seed is None:
        return tf.random.uniform([2], maxval=1 << 30, dtype=tf.int32)
    return tf.stack([tf.bitcast(tf.constant(seed, tf.float32), tf.int32), tf.constant(0)])


def _likelihood(x: Any, label: Any, checked: bool) -> Any:
    if checked:
        return -tf.gather(x, label, axis=-1, batch_dims=label.shape.rank)
    inside = (label >= 0) & (label < tf.cast(tf.shape(x)[-1], label.dtype))
    poison = tf.where(inside, tf.ones((), x.dtype), tf.constant(math.nan, x.dtype))
    # The whole sample is NaN, so that its gradient is NaN as well, and no update uses it.
    return _likelihood(x * poison[..., tf.newaxis], tf.where(inside, label, tf.zeros((), label.dtype)), True)


def _found(x: Any) -> Any:
    return tf.where(x if x.dtype == tf.bool else tf.not_equal(x, tf.zeros((), x.dtype)))


def _fmod(x: Any, y: Any) -> Any:
    if not x.dtype.is_floating:
        if x.dtype.is_unsigned:
            return tf.math.floormod(x, y)
        wide = x.dtype if x.dtype in (tf.int32, tf.int64) else tf.int32
        return tf.cast(tf.raw_ops.TruncateMod(x=tf.cast(x, wide), y=tf.cast(y, wide)), x.dtype)
    wide = tf.float32 if x.dtype.size < 4 else x.dtype  # holds the remainder of shorter types exactly
    remainder = tf.cast(tf.raw_ops.TruncateMod(x=tf.cast(x, wide), y=tf.cast(y, wide)), x.dtype)
    # The kernel returns NaN for an infinite y, of which there is no part in x.
    whole = tf.math.is_inf(y) & tf.math.is_finite(x)
    remainder = tf.where(whole, x, remainder)
    # The kernel has no gradient: x - n y with an integer n has the same one. The added terms are zero.
    fixed, held_x, held_y = map(tf.stop_gradient, (remainder, x, y))
    count = tf.where(whole, tf.zeros_like(x), tf.round((held_x - fixed) / held_y))
    return fixed + (x - held_x) - count * tf.where(whole, tf.zeros_like(y), y - held_y)


def _sharing(function: Callable[..., Any], x: Any, y: Any) -> Any:
    """A maximum or minimum; of equal numbers both get half of the gradient, of which TensorFlow gives the first all."""
    if not x.dtype.is_floating:
        return function(x, y)
    return tf.where(x == y, 0.5 * x + 0.5 * y, function(x, y))


def _cross_entropy(x: Any, label: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=x)


# With a seed, a stateless function gives the same numbers at every call; without one, they differ between calls.


def _normal(stream: Any, shape: Any, kind: Any, place: Any, mean: float, scale: float) -> Any:
    return tf.random.stateless_normal(shape, _seeded(stream), mean, scale, kind)


def _uniform(stream: Any, shape: Any, kind: Any, place: Any, low: float, high: float) -> Any:
    return tf.random.stateless_uniform(shape, _seeded(stream), tf.cast(low, kind), tf.cast(high, kind), kind)


def _coins(stream: Any, x: Any) -> Any:
    return _uniform(stream, tf.shape(x), x.dtype, None, 0.0, 1.0) < x


def _draws(stream: Any, logits: Any, count: int) -> Any:
    return tf.random.stateless_categorical(logits, count, _seeded(stream))


# Functions of tensors.
_PLAIN = {
    "classes": classes,
    "coins": _coins,
    "complex_of": tf.complex,
    "cross_entropy": _cross_entropy,
    "draws": _draws,
    "elu": tf.nn.elu,
    "erf": tf.math.erf,
    "fmod": _fmod,
    "found": _found,
    "gathered": gathered,
    "held": tf.stop_gradient,
    "likelihood": _likelihood,
    "log_softmax": tf.nn.log_softmax,
    "logsumexp": tf.reduce_logsumexp,
    "maximum": functools.partial(_sharing, tf.maximum),
    "minimum": functools.partial(_sharing, tf.minimum),
    "normal": _normal,
    "normal_distribution": _normal_distribution,
    "picked": picked,
    "placed": placed,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    "silu": tf.nn.silu,
    "softmax": tf.nn.softmax,
    "softplus": tf.math.softplus,
    "top_k": top_k,
    "uniform": _uniform,
}


@functools.lru_cache(maxsize=64)
def _table(function: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
    return function(np, *numbers)


class TensorFlowPrimitives:
    """`Primitives` for TensorFlow, on `TensorFlowArray`."""

    def __getattr__(self, name: str) -> Any:
        if name in _PLAIN:
            return functools.partial(_applied, _PLAIN[name])
        return getattr(ARRAYS, name)

    def table(self, function: Callable[..., Any], *numbers: Any, like: Any) -> Any:
        if not any(isinstance(number, (TracedExtent, TensorFlowArray)) for number in numbers):
            found = _table(function, numbers)
            return tuple(map(ARRAYS.asarray, found)) if isinstance(found, tuple) else ARRAYS.asarray(found)
        return function(self, *numbers)

    def host(self, function: Callable[..., Any], *numbers: Any) -> Any:
        return function(*numbers)

    def size_of(self, x: Any) -> Any:
        numbers = tf.cast(tf.reshape(as_tensors(x), [-1]), tf.int64)
        return as_arrays(tf.reduce_max(tf.concat([numbers, tf.ones([1], tf.int64)], 0)))

    def blank(self, shape: tuple[Any, ...], like: Any) -> Any:
        return ARRAYS.zeros(shape, dtype=like.dtype)

    def pad(self, x: Any, pads: Any, fill: Any) -> Any:
        more = [tuple(max(each, 0) for each in pair) for pair in pads]
        parts = tuple(slice(-min(low, 0), min(high, 0) or None) for low, high in pads)
        x = as_tensors(x[parts])
        return as_arrays(tf.pad(x, more, constant_values=tf.cast(fill, x.dtype)))

    def transposed_convolution(
        self, x: Any, weight: Any, bias: Any, window: Window, group: int, removed: Any, more: tuple[int, ...]
    ) -> Any:
        y = as_arrays(transposed_convolution(as_tensors(x), as_tensors(weight), window, group))
        sides = [(-begin, own - end) for (begin, end), own in zip(removed, more, strict=True)]
        y = as_tensors(self.pad(y, [(0, 0), *sides, (0, 0)], 0))
        return as_arrays(y if bias is None else with_bias(y, as_tensors(bias)))

    def lesser(self, size: Any, other: Any) -> Any:
        if isinstance(size, int) and isinstance(other, int):
            return min(size, other)
        return ARRAYS.minimum(*(ARRAYS.asarray(each, dtype=tf.int64) for each in (size, other)))

    def loop(self, condition: Callable[..., Any], body: Callable[..., Any], state: tuple[Any, ...]) -> Any:
        return as_arrays(
            tf.while_loop(
                lambda *now: as_tensors(condition(*map(as_arrays, now))),
                lambda *now: as_tensors(body(*map(as_arrays, now))),
                [as_tensors(each) for each in state],
            )
        )

    def wide(self, x: Any) -> Any:
        return x if x.dtype in (tf.float32, tf.float64) else ARRAYS.astype(x, tf.float32)

    def limits(self, dtype: Any) -> tuple[float, float]:
        return dtype.min, dtype.max

    def is_floating(self, dtype: Any) -> bool:
        return bool(dtype.is_floating)

    def clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        x = x if low is None else ARRAYS.maximum(x, low)
        return x if high is None else ARRAYS.minimum(x, high)

    def parts_of(self, x: Any) -> tuple[Any, Any]:
        return _applied(tf.math.real, x), _applied(tf.math.imag, x)

    def transformed(self, x: Any, count: Any, kind: str) -> Any:
        z, length = as_tensors(x), tf.cast(as_tensors(count), tf.int32)
        if kind in ("rfft", "irfft"):
            z = _fitted(z, length if kind == "rfft" else length // 2 + 1)
            return as_arrays(getattr(tf.signal, kind)(z, [length]))
        return as_arrays(getattr(tf.signal, kind)(_fitted(z, length)))

    def narrowed(self, x: Any, dtype: Any, saturate: bool) -> Any:
        return ARRAYS.astype(x, dtype)

    def integer_convolution(self, x: Any, weight: Any, window: Window, group: int) -> Any:
        # Exact in float64, in which TensorFlow has kernels.
        image, kernel = (tf.cast(as_tensors(value), tf.float64) for value in (x, weight))
        kernel = tf.transpose(kernel, kernel_order(weight.ndim))
        return as_arrays(tf.cast(convolution(image, kernel, None, window, group, False, False), tf.int32))

    def bits(self, x: Any, dtype: Any) -> Any:
        return as_arrays(tf.bitcast(as_tensors(x), dtype))


def _fitted(z: Any, length: Any) -> Any:
    """The first elements along the last axis, with zeros at the end if there are fewer."""
    z = z[..., :length]
    return tf.pad(z, [*[(0, 0)] * (z.shape.rank - 1), (0, length - tf.shape(z)[-1])])


def _applied(function: Callable[..., Any], *arrays: Any, **how: Any) -> Any:
    return as_arrays(function(*map(as_tensors, arrays), **how))


@functools.cache
def native(name: str) -> Callable[..., Any]:
    """A function of the standard, or of `Primitives`, as a function of tensors."""
    function = _PLAIN[name] if name in _PLAIN else getattr(NAMESPACE, name)

    def call(*tensors: Any) -> Any:
        return function(*tensors)

    call.__name__ = name
    return call


@functools.cache
def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """A composite as a function of tensors."""

    def run(*inputs: Any, **attributes: Any) -> Any:
        given = (tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value for value in inputs)
        return as_tensors(function(PRIMITIVES, *map(as_arrays, given), **attributes))

    run.__name__ = function.__name__
    return run


PRIMITIVES = TensorFlowPrimitives()
