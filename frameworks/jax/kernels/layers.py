"""Layers as functions of JAX arrays that generated code calls. Images have their channels last."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deep5.networks.window import Window

__all__ = [
    "batch_normalization",
    "batch_normalization_in_training",
    "channel_sums",
    "channels_first",
    "channels_last",
    "columns_to_image",
    "convolution",
    "gemm",
    "likelihood",
    "local_response_normalization",
    "with_bias",
]

Array = Any

# The most blocks of rows, and the most rows of a block, that a sum over rows adds by a matrix product.
_BLOCKS = 1024

# Multiplications per sample up to which a gradient is kept as written: a training step of `dlrm` (200) takes 0.7 times
# as long, and one of `vision_transformer` (4,600) 1.1 times.
_SMALL = 1024


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
    if not jnp.issubdtype(y.dtype, jnp.floating) or jnp.finfo(y.dtype).bits >= 32:
        return y + bias
    return (y.astype(jnp.float32) + bias.astype(jnp.float32)).astype(y.dtype)


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
    """Sums over all axes but the last, as a matrix product, which is faster in XLA than a reduction.

    XLA adds the rows of a product one after the other: of 121,600 rows, the error was 7e-6 of the sum. The product adds
    blocks of rows here (1e-7, as a reduction).
    """
    count = x.size // x.shape[-1]
    blocks = next(number for number in range(min(count, _BLOCKS), 0, -1) if count % number == 0) if count else 1
    if count // blocks > _BLOCKS:
        return jnp.sum(x, tuple(range(x.ndim - 1)))
    rows = x.reshape(count // blocks, blocks * x.shape[-1])
    sums = jnp.matmul(jnp.ones(rows.shape[:1], x.dtype), rows, precision=lax.Precision.HIGHEST)
    return jnp.sum(sums.reshape(blocks, x.shape[-1]), 0)


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


def local_response_normalization(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """ONNX's LRN, channels last."""
    around = [(0, 0)] * (x.ndim - 1) + [((size - 1) // 2, size // 2)]
    window = (*(1,) * (x.ndim - 1), size)
    # A number that JAX knows to be zero: only then does JAX recognize a sum, which it can differentiate.
    total = lax.reduce_window(jnp.square(x), np.zeros((), x.dtype), lax.add, window, (1,) * x.ndim, around)
    return x * jnp.power(total * (alpha / size) + bias, -beta)


def columns_to_image(x: Array, image: tuple[int, ...], window: Window) -> Array:
    """ONNX's Col2Im: (N, C block, windows) to (N, C, image …)."""
    counts, begins, _ = window.fit(image, window.kernel)
    columns = jnp.reshape(x, (x.shape[0], -1, math.prod(window.kernel), *counts))
    parts = []
    for number, place in enumerate(itertools.product(*map(range, window.kernel))):
        sides = [(0, 0, 0)] * 2
        for axis, at in enumerate(place):
            low, stride = at * window.dilations[axis] - begins[axis], window.strides[axis]
            sides.append((low, image[axis] - low - (counts[axis] - 1) * stride - 1, stride - 1))
        parts.append(lax.pad(columns[:, :, number], jnp.zeros((), x.dtype), sides))
    return functools.reduce(lax.add, parts)


def product(a: Array, b: Array, precision: Any = None) -> Array:
    """ONNX's MatMul. Rows along several axes become one axis, for which XLA's product on the CPU is faster."""
    if a.ndim >= 3 and b.ndim == 2:
        rows = jnp.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        return jnp.reshape(jnp.matmul(rows, b, precision=precision), (*a.shape[:-1], b.shape[-1]))
    if a.ndim >= 3 and a.shape[:-2] == b.shape[:-2] and jnp.issubdtype(jnp.result_type(a, b), jnp.floating):
        return _products(a, b, precision)
    return jnp.matmul(a, b, precision=precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _products(a: Array, b: Array, precision: Any) -> Array:
    """One product per sample. JAX's gradient for b contracts the rows of both operands, which XLA computes slower."""
    return jnp.matmul(a, b, precision=precision)


def _products_forward(a: Array, b: Array, precision: Any) -> tuple[Array, tuple[Array, Array]]:
    return jnp.matmul(a, b, precision=precision), (a, b)


def _products_backward(precision: Any, kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    a, b = kept
    # XLA would turn small samples' product into JAX's gradient, with this transpose or one that follows.
    own = lax.optimization_barrier if a.shape[-2] * a.shape[-1] * b.shape[-1] <= _SMALL else lambda array: array
    da = _products(dy, b.swapaxes(-1, -2), precision)
    db = own(_products(own(a.swapaxes(-1, -2)), dy, precision))
    return da.astype(a.dtype), db.astype(b.dtype)


_products.defvjp(_products_forward, _products_backward)


def gemm(a: Array, b: Array, c: Array | None, alpha: float, beta: float, turn_a: bool, turn_b: bool) -> Array:
    """ONNX's Gemm: alpha A B + beta C."""
    y = jnp.matmul(a.T if turn_a else a, b.T if turn_b else b)
    y = y if alpha == 1.0 else y * jnp.asarray(alpha, y.dtype)  # of integers, an integer
    return y if c is None else with_bias(y, c if beta == 1.0 else c * jnp.asarray(beta, c.dtype))


@jax.custom_jvp  # type: ignore[untyped-decorator]  # JAX is not type-checked
def _of_label(x: Array, label: Array, wrong: Array) -> Array:
    """The element of each label's class; any element for a label that is `wrong`."""
    found: Array = jnp.take_along_axis(x, label[..., None], axis=-1, mode="clip")[..., 0]
    return found


@_of_label.defjvp  # type: ignore[untyped-decorator]
def _change_of_label(primals: tuple[Array, ...], changes: tuple[Array, ...]) -> tuple[Array, Array]:
    """The derivative by comparison with all classes, because the gradient of indexing would scatter element by element.

    A wrong label selects every class: its gradient times NaN is NaN, where selecting one class would leave zeros.
    """
    x, label, wrong = primals
    hot = (label[..., None] == jnp.arange(x.shape[-1], dtype=label.dtype)) | wrong[..., None]
    return _of_label(*primals), jnp.sum(jnp.where(hot, changes[0], 0), axis=-1)


def likelihood(x: Array, label: Array) -> Array:
    """Minus the element of each label along the last axis. The loss and gradient of an invalid label are NaN."""
    wrong = (label < 0) | (label >= x.shape[-1])
    return -(_of_label(x, label, wrong) * jnp.where(wrong, x.dtype.type(jnp.nan), x.dtype.type(1)))
