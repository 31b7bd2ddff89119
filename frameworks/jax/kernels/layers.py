"""Layers as functions of JAX arrays that generated code calls. Images have their channels last."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deep5.networks.window import Window

__all__ = [
    "around",
    "average_pool",
    "batch_normalization",
    "batch_normalization_in_training",
    "channel_sums",
    "channels_first",
    "channels_last",
    "convolution",
    "cross_entropy",
    "gemm",
    "layer_normalization",
    "max_pool",
    "negative_log_likelihood",
    "places",
    "with_bias",
]

Array = Any


def channels_last(x: Array, axes: int) -> Array:
    """Converts from ONNX's axis order to channels last, after adding the leading axes that broadcasting adds."""
    return jnp.moveaxis(jnp.reshape(x, (1,) * (axes - jnp.ndim(x)) + jnp.shape(x)), 1, -1)


def channels_first(x: Array) -> Array:
    """Converts from channels last to ONNX's axis order."""
    return jnp.moveaxis(x, -1, 1)


def convolution(x: Array, weight: Array, bias: Array | None, window: Window, groups: int, stored: bool) -> Array:
    """ONNX's Conv.

    Args:
        x: Shape (N, space …, C).
        weight: Shape (kernel …, C / groups, M) where `stored`, else (M, C / groups, kernel …).
        bias: Shape (M,), or None.
        window: Strides, dilations and padding.
        groups: Number of channel groups.
        stored: Whether the weight is in storage order.
    """
    axes = "DHW"[-(x.ndim - 2) :]
    kernel = weight.shape[:-2] if stored else weight.shape[2:]
    _, begins, ends = window.fit(x.shape[1:-1], kernel)
    y = lax.conv_general_dilated(
        x,
        weight,
        window.strides,
        tuple(zip(begins, ends, strict=True)),
        rhs_dilation=window.dilations,
        dimension_numbers=(f"N{axes}C", f"{axes}IO" if stored else f"OI{axes}", f"N{axes}C"),
        feature_group_count=groups,
    )
    return y if bias is None else with_bias(y, bias)


def with_bias(y: Array, bias: Array) -> Array:
    """y + bias; short types are added in float32 and rounded once.

    The gradient of a bias is a sum over the batch, which XLA computes in bfloat16 on the CPU: the sum of equal terms
    stops growing at 256 terms.
    """
    if jnp.finfo(y.dtype).bits >= 32:
        return y + bias
    return (y.astype(jnp.float32) + bias.astype(jnp.float32)).astype(y.dtype)


def around(x: Array, window: Window, fill: Any) -> tuple[Array, tuple[int, ...]]:
    """The input with padding added, or cropped to what windows reach; and the number of windows per axis."""
    counts, begins, _ = window.fit(x.shape[1:-1], window.kernel)
    pads = [(0, 0, 0)]
    for extent, count, stride, span, begin in zip(
        x.shape[1:-1], counts, window.strides, window.spans(window.kernel), begins, strict=True
    ):
        pads.append((begin, (count - 1) * stride + span - extent - begin, 0))
    pads.append((0, 0, 0))
    return x if not any(map(any, pads)) else lax.pad(x, jnp.asarray(fill, x.dtype), pads), counts


def places(x: Array, window: Window, axis: int, count: int) -> list[Array]:
    """The elements at each position within the window, along one axis."""
    kernel, stride, step = window.kernel[axis - 1], window.strides[axis - 1], window.dilations[axis - 1]
    if kernel == stride and step == 1:
        # Windows that do not overlap are rows of a matrix.
        x = x.reshape(*x.shape[:axis], count, kernel, *x.shape[axis + 1 :])
        return [lax.index_in_dim(x, place, axis + 1, keepdims=False) for place in range(kernel)]
    last = (count - 1) * stride + 1
    return [lax.slice_in_dim(x, place * step, place * step + last, stride, axis) for place in range(kernel)]


def _larger(x: Array, y: Array) -> Array:
    """The maximum; of equal values the first, which also gets the gradient. A NaN on either side propagates."""
    return jnp.where((x >= y) | jnp.isnan(x), x, y)


def max_pool(x: Array, window: Window) -> Array:
    """ONNX's MaxPool, one axis after another, rows last: among equal values the first gets the gradient.

    XLA's own implementation (`reduce_window`) has a gradient ten to twenty times as slow on the CPU.
    """
    low = -math.inf if jnp.issubdtype(x.dtype, jnp.inexact) else int(jnp.iinfo(x.dtype).min)
    x, counts = around(x, window, low)
    for axis in reversed(range(1, x.ndim - 1)):
        x = functools.reduce(_larger, places(x, window, axis, counts[axis - 1]))
    return x


def average_pool(x: Array, window: Window, counted: bool) -> Array:
    """ONNX's AveragePool; padding counts as zeros if `counted`, else not at all."""
    share = np.ones((1, 1))
    for axis, extent in enumerate(x.shape[1:-1]):
        share = share[..., None, :] * _shares(window, axis, x.shape[1:-1], extent, counted)
    x, counts = around(x, window, 0)
    if window.kernel == window.strides and set(window.dilations) == {1}:
        parts = [extent for pair in zip(counts, window.kernel, strict=True) for extent in pair]
        x = x.reshape(x.shape[0], *parts, x.shape[-1]).sum(tuple(range(2, 2 + len(parts), 2)))
    else:
        for axis in reversed(range(1, x.ndim - 1)):
            x = functools.reduce(lax.add, places(x, window, axis, counts[axis - 1]))
    uniform = share.flat[0] if (share == share.flat[0]).all() else share
    return x * jnp.asarray(uniform, x.dtype)


def _shares(window: Window, axis: int, extents: tuple[int, ...], extent: int, counted: bool) -> np.ndarray:
    """One divided by the number of elements in each window along an axis; shape (windows, 1)."""
    counts, begins, ends = (part[axis] for part in window.fit(extents, window.kernel))
    places = np.arange(counts)[:, None] * window.strides[axis] - begins
    under = places + np.arange(window.kernel[axis]) * window.dilations[axis]
    low, high = (-begins, extent + ends) if counted else (0, extent)
    shares: np.ndarray = 1.0 / np.sum((low <= under) & (under < high), axis=1)[:, None]
    return shares


def batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    """ONNX's BatchNormalization in evaluation."""
    factor = scale * lax.rsqrt(variance + epsilon)
    return x * factor + (bias - mean * factor)


def batch_normalization_in_training(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float, momentum: float
) -> tuple[Array, Array, Array]:
    """ONNX's BatchNormalization in training: the result, new running mean and new running (population) variance."""
    y, batch_mean, batch_variance = _normalized(x, scale, bias, epsilon)
    return (
        y,
        mean * momentum + batch_mean * (1 - momentum),
        variance * momentum + batch_variance * (1 - momentum),
    )


def channel_sums(x: Array) -> Array:
    """Sums over all axes but the last, as a matrix product, which is faster in XLA than a reduction."""
    flat = x.reshape(-1, x.shape[-1])
    return jnp.matmul(jnp.ones(flat.shape[:1], x.dtype), flat, precision=lax.Precision.HIGHEST)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalized(x: Array, scale: Array, bias: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """(x - m) / sqrt(v + epsilon) * scale + bias, and the mean m and variance v of each channel.

    Gradient (Ioffe and Szegedy, section 3), with n elements per channel and h = (x - m) / sqrt(v + epsilon):
    dbias = sum dy;  dscale = sum dy h;  dx = scale / sqrt(v + epsilon) (dy - dbias / n - h dscale / n).

    References:
        Ioffe and Szegedy, Batch normalization: accelerating deep network training, ICML 2015.
    """
    results: tuple[Array, Array, Array] = _normalized_forward(x, scale, bias, epsilon)[0]
    return results


def _normalized_forward(x: Array, scale: Array, bias: Array, epsilon: float) -> tuple[Any, Any]:
    count = x.size // x.shape[-1]
    mean = channel_sums(x) / count
    centred = x - mean
    variance = channel_sums(centred * centred) / count
    inverse = lax.rsqrt(variance + epsilon)
    return (centred * (scale * inverse) + bias, mean, variance), (x, mean, inverse, scale)


def _normalized_backward(epsilon: float, kept: Any, grads: Any) -> tuple[Array, Array, Array]:
    x, mean, inverse, scale = kept
    dy, count = grads[0], x.size // x.shape[-1]
    normal = (x - mean) * inverse
    dbias, dscale = channel_sums(dy), channel_sums(dy * normal)
    return (dy - dbias / count - normal * (dscale / count)) * (scale * inverse), dscale, dbias


_normalized.defvjp(_normalized_forward, _normalized_backward)


def layer_normalization(x: Array, scale: Array, bias: Array | None, first: int, epsilon: float) -> Array:
    """ONNX's LayerNormalization over the axes starting at `first`."""
    axes = tuple(range(first % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    variance = jnp.square(centred).mean(axes, keepdims=True)
    y = centred * lax.rsqrt(variance + epsilon) * scale
    return y if bias is None else y + bias


def local_response_normalization(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """ONNX's LRN, channels last: x / (bias + alpha / size sum of x^2 over `size` channels around each) ^ beta."""
    around = [(0, 0)] * (x.ndim - 1) + [((size - 1) // 2, size // 2)]
    window = (*(1,) * (x.ndim - 1), size)
    # A number that JAX knows to be zero: only then does JAX recognize a sum, which it can differentiate.
    total = lax.reduce_window(jnp.square(x), np.zeros((), x.dtype), lax.add, window, (1,) * x.ndim, around)
    return x * jnp.power(total * (alpha / size) + bias, -beta)


def gemm(a: Array, b: Array, c: Array | None, alpha: float, beta: float, turn_a: bool, turn_b: bool) -> Array:
    """ONNX's Gemm: alpha A B + beta C."""
    y = jnp.matmul(a.T if turn_a else a, b.T if turn_b else b)
    y = y if alpha == 1.0 else y * alpha
    return y if c is None else with_bias(y, c if beta == 1.0 else c * beta)


def cross_entropy(
    x: Array, label: Array, weight: Array | None, ignored: int | None, reduction: str
) -> tuple[Array, Array]:
    """ONNX's SoftmaxCrossEntropyLoss: the loss, and log softmax(x) along axis 1."""
    log_prob = jax.nn.log_softmax(x, axis=1)
    return negative_log_likelihood(log_prob, label, weight, ignored, reduction), log_prob


def _hot(label: Array, x: Array) -> Array:
    classes = x.shape[1]
    found: Array = label[:, None] == jnp.arange(classes, dtype=label.dtype).reshape(classes, *(1,) * (x.ndim - 2))
    return found


@jax.custom_jvp  # type: ignore[untyped-decorator]  # JAX is not type-checked
def _of_label(x: Array, label: Array, wrong: Array) -> Array:
    """The element of each label's class; any element for a label that is `wrong`."""
    found: Array = jnp.take_along_axis(x, label[:, None], axis=1, mode="clip")[:, 0]
    return found


@_of_label.defjvp  # type: ignore[untyped-decorator]
def _change_of_label(primals: tuple[Array, ...], changes: tuple[Array, ...]) -> tuple[Array, Array]:
    """The derivative by comparison with all classes, because the gradient of indexing would scatter element by element.

    A wrong label selects every class: its gradient times NaN is NaN, where selecting one class would leave zeros.
    """
    x, label, wrong = primals
    return _of_label(*primals), jnp.sum(jnp.where(_hot(label, x) | wrong[:, None], changes[0], 0), axis=1)


def negative_log_likelihood(x: Array, label: Array, weight: Array | None, ignored: int | None, reduction: str) -> Array:
    """ONNX's NegativeLogLikelihoodLoss. Loss and gradient of an invalid label are NaN."""
    classes = x.shape[1]
    out = jnp.zeros(label.shape, bool) if ignored is None else label == ignored
    wrong = ~out & ((label < 0) | (label >= classes))
    share = jnp.ones(label.shape, x.dtype)
    if weight is not None:
        table = weight.astype(x.dtype).reshape(classes, *(1,) * (x.ndim - 2))
        share = jnp.sum(jnp.where(_hot(label, x), table, 0), axis=1)
    share = jnp.where(out, 0, share)
    poison = jnp.where(wrong, x.dtype.type(jnp.nan), x.dtype.type(1))
    loss = jnp.where(out, 0, share * -(_of_label(x, label, wrong) * poison))
    if reduction == "none":
        return loss
    if reduction == "sum":
        return jnp.sum(loss)
    plain = weight is None and ignored is None
    return jnp.sum(loss) / (label.size if plain else jnp.sum(share))
