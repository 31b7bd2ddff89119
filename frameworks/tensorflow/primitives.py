"""`PRIMITIVES`: what composites compute with on TensorFlow."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from deep5.frameworks.tensorflow.array import TensorFlowArray, as_tensors, extent_tensor
from deep5.frameworks.tensorflow.array_namespace import ARRAYS, as_arrays
from deep5.frameworks.tensorflow.indices import classes, gathered, picked, placed, top_k
from deep5.frameworks.tensorflow.namespace import NAMESPACE
from deep5.frameworks.tensorflow.order import kernel_order
from deep5.frameworks.tensorflow.short import with_bias
from deep5.frameworks.tensorflow.windows import convolution, transposed_convolution
from deep5.networks.kernels.recurrent import multiplied
from deep5.networks.tracing.extents import TracedExtent, quotient
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


def _summed(given: Any, x: Any, y: Any) -> Any:
    """Gradients with respect to x and y, summed over the axes along which these were broadcast."""
    if x.shape == y.shape and x.shape.is_fully_defined():
        return given
    shapes = tf.shape(x), tf.shape(y)
    axes = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])
    return [tf.reshape(tf.reduce_sum(*each), shape) for *each, shape in zip(given, axes, shapes, strict=True)]


@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
def _floating_fmod(x: Any, y: Any) -> Any:
    wide = tf.float32 if x.dtype.size < 4 else x.dtype  # holds the remainder of shorter types exactly
    remainder = tf.cast(tf.raw_ops.TruncateMod(x=tf.cast(x, wide), y=tf.cast(y, wide)), x.dtype)
    # The kernel returns NaN for an infinite y, of which there is no part in x.
    remainder = tf.where(tf.abs(x) < tf.abs(y), x, remainder)

    def gradient(dy: Any) -> Any:
        # The remainder is x - n y with an integer n.
        return _summed((dy, -dy * tf.round((x - remainder) / y)), x, y)

    return remainder, gradient


def _fmod(x: Any, y: Any) -> Any:
    if x.dtype.is_floating:
        return _floating_fmod(x, y)
    if x.dtype.is_unsigned:
        return tf.math.floormod(x, y)
    wide = x.dtype if x.dtype in (tf.int32, tf.int64) else tf.int32
    return tf.cast(tf.raw_ops.TruncateMod(x=tf.cast(x, wide), y=tf.cast(y, wide)), x.dtype)


def _sharing(function: Callable[..., Any], is_first: Callable[..., Any]) -> Callable[..., Any]:
    """A maximum or minimum; of equal numbers both get half of the gradient, of which TensorFlow gives the first all.

    `is_first` compares x with y: whether the function is x, and not y.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
    def shared(x: Any, y: Any) -> Any:
        def gradient(dy: Any) -> Any:
            first, same, none = is_first(x, y), x == y, tf.zeros((), dy.dtype)
            own = tf.where(same, 0.5 * dy, dy)
            return _summed((tf.where(first | same, own, none), tf.where(first, none, own)), x, y)

        return function(x, y), gradient

    return lambda x, y: (shared if x.dtype.is_floating else function)(x, y)


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
    "maximum": _sharing(tf.maximum, tf.greater),
    "minimum": _sharing(tf.minimum, tf.less),
    "normal": _normal,
    "normal_distribution": _normal_distribution,
    "picked": picked,
    "placed": placed,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    "rsqrt": lambda x: 1 / tf.sqrt(x),  # TensorFlow's own is less exact
    "square": lambda x: x * x,
    "silu": lambda x: x * tf.sigmoid(x),
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

    def early(self, function: Callable[..., Any], *arrays: Any) -> Any:
        return function(*arrays)

    def size_of(self, x: Any) -> Any:
        numbers = tf.cast(tf.reshape(as_tensors(x), [-1]), tf.int64)
        return as_arrays(tf.reduce_max(tf.concat([numbers, tf.ones([1], tf.int64)], 0)))

    def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
        given = [extent for extent in shape if not isinstance(extent, int) or extent != -1]
        unknown = [extent for extent in (*given, *x.shape) if not isinstance(extent, int)]
        whole = 0 not in [extent for extent in given if isinstance(extent, int)]
        if len(given) < len(shape) and whole and unknown and all(isinstance(each, TracedExtent) for each in unknown):
            # Unknown sizes that both shapes contain cancel: then the inferred size is known.
            left = quotient(x.shape, given)
            shape = [left if isinstance(extent, int) and extent == -1 else extent for extent in shape]
        return as_arrays(tf.reshape(as_tensors(x), _extents(shape)))

    def broadcast_to(self, x: Any, shape: Sequence[Any]) -> Any:
        return as_arrays(tf.broadcast_to(as_tensors(x), _extents(shape)))

    def full(self, shape: Sequence[Any], fill: Any, *, dtype: Any, device: Any = None) -> Any:
        return ARRAYS.full(tuple(_extents(shape)), fill, dtype=dtype)

    def tile(self, x: Any, repeats: Sequence[Any]) -> Any:
        if x.dtype == tf.uint16:  # which has no kernel
            return self.bits(self.tile(self.bits(x, tf.int16), repeats), tf.uint16)
        return as_arrays(tf.tile(as_tensors(x), _extents(repeats)))

    def pad(self, x: Any, pads: Sequence[tuple[Any, Any]], fill: Any) -> Any:
        z, fill, known = as_tensors(x), as_tensors(fill), all(isinstance(each, int) for pair in pads for each in pair)
        if known:
            more = [(max(low, 0), max(high, 0)) for low, high in pads]
            parts = [slice(max(-low, 0), high if high < 0 else None) for low, high in pads]
        else:
            both = tf.stack([_extents(pair) for pair in pads])
            more, less = tf.maximum(both, 0), tf.minimum(both, 0)
        if tf.is_tensor(fill) and z.dtype.is_floating:  # the kernel has no gradient with respect to a tensor
            inside = tf.pad(tf.ones(tf.shape(z), tf.bool), more, constant_values=False)
            z = tf.where(inside, tf.pad(z, more), tf.reshape(fill, []))
        else:
            z = tf.pad(z, more, constant_values=tf.reshape(tf.cast(fill, z.dtype), []))
        if not known:
            ends = tf.shape(z) + less[:, 1]
            parts = [slice(-less[at, 0], ends[at]) for at in range(len(pads))]
        return as_arrays(z[tuple(parts)] if not known or min(map(min, pads), default=0) < 0 else z)

    def sizes(self, numbers: Any, place: Any) -> Any:
        if isinstance(numbers, tuple) and not all(isinstance(each, int) for each in numbers):
            return as_arrays(tf.stack([extent_tensor(each, tf.int64) for each in numbers]))
        return ARRAYS.asarray(numbers, dtype=tf.int64)

    def number(self, x: Any) -> Any:
        return as_tensors(x).numpy().item()

    def split(self, x: Any, sizes: Sequence[Any], axis: int) -> Any:
        return as_arrays(tf.split(as_tensors(x), as_tensors(list(sizes)), axis))

    def blank(self, shape: tuple[Any, ...], like: Any) -> Any:
        return ARRAYS.zeros(shape, dtype=like.dtype)

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

    def einsum(self, equation: str, *operands: Any) -> Any:
        return as_arrays(_contracted(equation, *map(as_tensors, operands)))

    def integer_convolution(self, x: Any, weight: Any, window: Window, group: int) -> Any:
        # Exact in float64, in which TensorFlow has kernels.
        image, kernel = (tf.cast(as_tensors(value), tf.float64) for value in (x, weight))
        kernel = tf.transpose(kernel, kernel_order(weight.ndim))
        return as_arrays(tf.cast(convolution(image, kernel, None, window, group, False, False), tf.int32))

    def bits(self, x: Any, dtype: Any) -> Any:
        return as_arrays(tf.bitcast(as_tensors(x), dtype))

    def scan(
        self, step: Callable[..., Any], states: tuple[Any, ...], rows: tuple[Any, ...], back: bool
    ) -> tuple[Any, Any]:
        def new(held: Any, row: Any) -> Any:
            return as_tensors(step(as_arrays(held), as_arrays(row)))

        found = tf.scan(new, as_tensors(rows), as_tensors(states), reverse=back)
        return tuple(as_arrays(each[0 if back else -1]) for each in found), as_arrays(found[0])

    recurrent = multiplied


def _extents(numbers: Sequence[Any]) -> list[Any]:
    """Sizes as integers, or int32 tensors where they are not known."""
    return [each if isinstance(each, int) else tf.cast(as_tensors(each), tf.int32) for each in numbers]


def _fitted(z: Any, length: Any) -> Any:
    """The first elements along the last axis, with zeros at the end if there are fewer."""
    z = z[..., :length]
    return tf.pad(z, [*[(0, 0)] * (z.shape.rank - 1), (0, length - tf.shape(z)[-1])])


def _contracted(equation: str, *operands: Any) -> Any:
    """Einsum; integers without a kernel are computed in int32 or int64 and keep the lowest bits."""
    terms, arrow, result = equation.partition("->")
    if arrow and "..." in terms and "..." not in result:  # TensorFlow keeps such axes, and sums over letters only
        y = _contracted(f"{terms}->...{result}", *operands)
        return tf.reduce_sum(y, list(range(y.shape.rank - len(result))))
    kind = operands[0].dtype
    if kind.is_integer:
        wide = tf.int32 if kind.size <= 4 and kind != tf.uint32 else tf.int64
        return tf.cast(tf.einsum(equation, *(tf.cast(value, wide) for value in operands)), kind)
    return tf.einsum(equation, *operands)


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
        how = {name: _on_arrays(value) if callable(value) else value for name, value in attributes.items()}
        return as_tensors(function(PRIMITIVES, *map(as_arrays, given), **how))

    run.__name__ = function.__name__
    return run


def _on_arrays(body: Callable[..., Any]) -> Callable[..., Any]:
    """A subgraph as a function of arrays."""
    return lambda *values: as_arrays(tuple(body(*map(as_tensors, values))))


PRIMITIVES = TensorFlowPrimitives()
