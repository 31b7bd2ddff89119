"""`PRIMITIVES`: what composites compute with on JAX."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deep5.core.errors import ShapeError
from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.kernels.host import check_indices, host_array, is_known
from deep5.frameworks.jax.kernels.recurrent import recurrent
from deep5.frameworks.jax.operators_index import gathered, picked, placed
from deep5.frameworks.jax.operators_math import FEW_BITS, absolute, few_bits
from deep5.networks.window import Window

__all__ = ["PRIMITIVES"]


_FEW = {str(kind.numpy()) for kind in FEW_BITS}


@functools.lru_cache(maxsize=64)
def _table(function: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
    return function(np, *numbers)


def _windows_apart(x: Any, weight: Any) -> Any:
    """A transposed convolution whose windows neither overlap nor leave gaps: one matrix product, then reordered.

    A training step of `center_net` takes a third less time than with the convolution.
    """
    (samples, *space, _), (_, made, *kernel) = x.shape, weight.shape
    y = lax.dot_general(x, weight, (((x.ndim - 1,), (0,)), ((), ())))  # N, space, M, kernel
    count = len(space)
    order = [0, *(at for axis in range(count) for at in (1 + axis, 2 + count + axis)), 1 + count]
    sizes = [extent * size for extent, size in zip(space, kernel, strict=True)]
    return y.transpose(order).reshape(samples, *sizes, made)


@jax.custom_jvp  # type: ignore[untyped-decorator]  # JAX is not type-checked
def _inverse_tanh(x: Any) -> Any:
    """atanh x = sign(x) log(1 + 2 |x| / (1 - |x|)) / 2; of negative numbers XLA's log1p loses two digits."""
    size = jnp.abs(x)
    return 0.5 * jnp.sign(x) * jnp.log1p(2 * size / (1 - size))


@_inverse_tanh.defjvp  # type: ignore[untyped-decorator]  # JAX is not type-checked
def _inverse_tanh_along(values: Any, directions: Any) -> Any:
    (x,), (moved,) = values, directions
    return _inverse_tanh(x), moved / (1 - x * x)


# Padding that repeats or reflects an axis has three. The gradient of slices is 3.3 times as fast as that of indices.
_FEW_RUNS = 3


def _runs(indices: np.ndarray) -> list[tuple[int, int, int]]:
    """The first index, the step and the length of at most `_FEW_RUNS` runs of indices in steps of -1, 0 or 1."""
    found: list[tuple[int, int, int]] = []
    while indices.size and indices.ndim == 1 and indices.min() >= 0:
        step = int(indices[1] - indices[0]) if indices.size > 1 else 0
        count = int(np.argmax(np.append(np.diff(indices) != step, True))) + 1
        if len(found) == _FEW_RUNS or abs(step) > 1:
            return []
        found.append((int(indices[0]), step, count))
        indices = indices[count:]
    return found


def _run(x: Any, axis: int, first: int, step: int, count: int) -> Any:
    if not step:
        one = lax.slice_in_dim(x, first, first + 1, axis=axis)
        return jnp.broadcast_to(one, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    low = min(first, first + step * (count - 1))
    part = lax.slice_in_dim(x, low, low + count, axis=axis)
    return part if step > 0 else lax.rev(part, (axis % x.ndim,))


class JaxPrimitives:
    """`Primitives` for JAX."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    erf, fmod, sigmoid, softplus = map(staticmethod, (lax.erf, jnp.fmod, jax.nn.sigmoid, jax.nn.softplus))
    cumulative_sum, cumulative_prod = map(staticmethod, (jnp.cumsum, jnp.cumprod))
    abs, atanh = map(staticmethod, (absolute, _inverse_tanh))
    softmax, log_softmax = map(staticmethod, (jax.nn.softmax, jax.nn.log_softmax))
    relu, elu, silu = map(staticmethod, (jax.nn.relu, jax.nn.elu, jax.nn.silu))
    # The gradient of a product of x with itself has one term more: that of a LayerNormalization takes 5 times as long
    # where XLA needs new memory for it.
    square, rsqrt = map(staticmethod, (jnp.square, lax.rsqrt))

    def astype(self, x: Any, dtype: Any) -> Any:
        # Known numbers on the host: JAX would trace the conversion, from float64.
        return x.astype(dtype) if isinstance(x, np.ndarray) else jnp.astype(x, dtype)

    def normal_distribution(self, x: Any) -> Any:
        # 1 + erf would cancel for negative numbers.
        return 0.5 * lax.erfc(x * -math.sqrt(0.5))

    def logsumexp(self, x: Any, axis: Any, keepdims: bool) -> Any:
        if not x.size:  # of which JAX's has no maximum
            return jnp.log(jnp.sum(x, axis=axis, keepdims=keepdims))
        return jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)

    def table(self, function: Callable[..., Any], *numbers: Any, like: Any) -> Any:
        return _table(function, numbers)

    def host(self, function: Callable[..., Any], *numbers: Any) -> Any:
        return function(*numbers)

    def take(self, x: Any, indices: Any, *, axis: int) -> Any:
        # The default mode would compare every index with the size.
        if isinstance(indices, np.ndarray):
            check_indices(indices, x.shape[axis])
            if 0 < len(runs := _runs(indices)) <= _FEW_RUNS:
                return jnp.concat([_run(x, axis, *run) for run in runs], axis=axis)
        return jnp.take(x, indices, axis=axis, mode="clip")

    def permute_dims(self, x: Any, axes: tuple[int, ...]) -> Any:
        return np.transpose(x, axes) if isinstance(x, np.ndarray) else jnp.permute_dims(x, axes)

    def matmul(self, x: Any, y: Any) -> Any:
        return layers.product(x, y, lax.Precision.HIGHEST)

    def early(self, function: Callable[..., Any], *arrays: Any) -> Any:
        with jax.ensure_compile_time_eval() if all(map(is_known, arrays)) else contextlib.nullcontext():
            return function(*arrays)

    def size_of(self, x: Any) -> int:
        return int(host_array(x).max(initial=1))

    def sizes(self, numbers: Any, place: Any) -> Any:
        return np.array(numbers, np.int64)

    def number(self, x: Any) -> Any:
        return host_array(x).item()

    def split(self, x: Any, sizes: Sequence[int], axis: int) -> Any:
        # One operation, whose gradient is one concatenation: that of slices adds as many padded arrays.
        return tuple(lax.split(x, tuple(map(int, sizes)), axis))

    def blank(self, shape: tuple[int, ...], like: Any) -> Any:
        return jnp.zeros(shape, like.dtype)

    def wide(self, x: Any) -> Any:
        return x.astype(jnp.promote_types(x.dtype, "float32"))

    def limits(self, dtype: Any) -> tuple[float, float]:
        info = jnp.finfo(dtype) if self.is_floating(dtype) else jnp.iinfo(dtype)
        return info.min, info.max

    def is_floating(self, dtype: Any) -> bool:
        return bool(jnp.issubdtype(dtype, jnp.floating))

    def held(self, x: Any) -> Any:
        return lax.stop_gradient(x)

    def clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        # Not jnp.clip, whose gradient is one half at the bounds.
        x = x if low is None else jnp.where(x < low, low, x)
        return x if high is None else jnp.where(x > high, high, x)

    def complex_of(self, real: Any, imaginary: Any) -> Any:
        return lax.complex(real, imaginary)

    def parts_of(self, x: Any) -> tuple[Any, Any]:
        return jnp.real(x), jnp.imag(x)

    def transformed(self, x: Any, count: Any, kind: str) -> Any:
        return getattr(jnp.fft, kind)(x, count)

    def bits(self, x: Any, dtype: Any) -> Any:
        return lax.bitcast_convert_type(x, dtype)

    def narrowed(self, x: Any, dtype: Any, saturate: bool) -> Any:
        return few_bits(x, dtype, saturate) if np.dtype(dtype).name in _FEW else x.astype(dtype)

    def integer_convolution(self, x: Any, weight: Any, window: Window, group: int) -> Any:
        return layers.convolution(x, weight, None, window, group, False)

    def transposed_convolution(
        self, x: Any, weight: Any, bias: Any, window: Window, group: int, removed: Any, more: tuple[int, ...]
    ) -> Any:
        (channels, made, *kernel), axes = weight.shape, "DHW"[3 - len(more) :]
        steps, apart = (tuple(window.strides), set(window.dilations)), (tuple(kernel), {1})
        if group == 1 and steps == apart and not any(more) and all(pair == (0, 0) for pair in removed):
            y = _windows_apart(x, weight)
            return y if bias is None else layers.with_bias(y, bias)
        # A convolution of the image with zeros between its elements, and the kernel reversed.
        turned = weight.reshape(group, channels // group, made, *kernel).swapaxes(1, 2)
        turned = jnp.flip(turned.reshape(group * made, channels // group, *kernel), range(2, weight.ndim))
        y = lax.conv_general_dilated(
            x,
            turned,
            (1,) * len(kernel),
            [
                (span - 1 - begin, span - 1 - end + own)
                for span, (begin, end), own in zip(window.spans(tuple(kernel)), removed, more, strict=True)
            ],
            lhs_dilation=window.strides,
            rhs_dilation=window.dilations,
            dimension_numbers=(f"N{axes}C", f"OI{axes}", f"N{axes}C"),
            feature_group_count=group,
        )
        return y if bias is None else layers.with_bias(y, bias)

    def pad(self, x: Any, pads: Sequence[tuple[int, int]], fill: Any) -> Any:
        return lax.pad(jnp.asarray(x), jnp.asarray(fill, x.dtype).reshape(()), [(*pair, 0) for pair in pads])

    def gathered(self, x: Any, indices: Any, axis: int, checked: bool) -> Any:
        return gathered(x, indices, axis)

    picked = staticmethod(picked)
    placed = staticmethod(placed)

    def found(self, x: Any) -> Any:
        known = host_array(x)
        return np.argwhere(known) if known.ndim else np.zeros((int(bool(known)), 0), np.int64)

    def classes(self, x: Any, axis: int) -> Any:
        _, first, numbers, counts = np.unique(host_array(x), True, True, True, axis=axis)
        return first, numbers.reshape(-1), counts

    def top_k(self, x: Any, count: int, axis: int, largest: bool) -> Any:
        x = jnp.moveaxis(jnp.asarray(x), axis, -1)
        if count > x.shape[-1]:
            raise ShapeError(f"k = {count}; allowed: up to {x.shape[-1]}, the size of the axis")
        if jnp.issubdtype(x.dtype, jnp.floating):  # which orders -0 before 0; they are equal
            keys = jnp.where(x == 0, 0, x).astype(x.dtype)
            _, places = lax.top_k(keys if largest else -keys, count)
            values = jnp.take_along_axis(x, places, axis=-1)
        else:  # reversed by complement: the minimum has no negative
            values, places = lax.top_k(x if largest else jnp.invert(x), count)
            values = values if largest else jnp.invert(values)
        return jnp.moveaxis(values, -1, axis), jnp.moveaxis(places, -1, axis).astype("int64")

    def lesser(self, size: Any, other: Any) -> Any:
        return min(size, other)

    def loop(self, condition: Callable[..., Any], body: Callable[..., Any], state: tuple[Any, ...]) -> Any:
        return lax.while_loop(
            lambda state: condition(*state), lambda state: body(*state), tuple(map(jnp.asarray, state))
        )

    def cross_entropy(self, x: Any, label: Any) -> Any:
        return layers.likelihood(jax.nn.log_softmax(x, axis=-1), label)

    def likelihood(self, x: Any, label: Any, checked: bool) -> Any:
        return layers.likelihood(x, label)

    def normal(self, stream: Any, shape: Any, kind: Any, place: Any, mean: float, scale: float) -> Any:
        return (mean + scale * jax.random.normal(stream, shape, jnp.promote_types(kind, "float32"))).astype(kind)

    def uniform(self, stream: Any, shape: Any, kind: Any, place: Any, low: float, high: float) -> Any:
        return jax.random.uniform(stream, shape, jnp.promote_types(kind, "float32"), low, high).astype(kind)

    def coins(self, stream: Any, x: Any) -> Any:
        return jax.random.uniform(stream, x.shape, jnp.promote_types(x.dtype, "float32")) < x

    def draws(self, stream: Any, logits: Any, count: int) -> Any:
        return jax.random.categorical(stream, logits[:, None, :], axis=-1, shape=(logits.shape[0], count))

    def scan(
        self, step: Callable[..., Any], states: tuple[Any, ...], rows: tuple[Any, ...], back: bool
    ) -> tuple[Any, Any]:
        def stacked(held: Any, row: Any) -> tuple[Any, Any]:
            new = step(held, row)
            return new, new[0]

        return lax.scan(stacked, states, rows, reverse=back)  # type: ignore[no-any-return]  # JAX is not type-checked

    recurrent = staticmethod(recurrent)


PRIMITIVES = JaxPrimitives()
