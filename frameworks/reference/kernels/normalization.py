"""Normalisation by a mean and a variance."""

from __future__ import annotations

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = [
    "batch_normalization",
    "batch_normalization_in_training",
    "layer_normalization",
    "local_response_normalization",
]


def batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float) -> Array:
    """Evaluation: scale (x - mean) / sqrt(variance + epsilon) + bias, a value a channel (axis 1).

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, algorithm 2.
    """
    slope = scale / np.sqrt(variance + variance.dtype.type(epsilon))
    wide = (-1, *[1] * (x.ndim - 2))
    y: Array = x * slope.reshape(wide).astype(x.dtype, copy=False)
    y += (bias - mean * slope).reshape(wide)
    return y


def batch_normalization_in_training(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float, momentum: float
) -> tuple[Array, Array, Array]:
    """Normalise by the batch's own statistics, a value a channel (axis 1).

    Args:
        x: (N, C, *space).
        scale: (C,).
        bias: (C,).
        mean: The running mean, (C,).
        variance: The running variance, (C,).
        epsilon: Added to the variance.
        momentum: What stays of the running statistics.

    Returns:
        y, and the new running mean and variance, running momentum + batch (1 - momentum); the variance is the
        population's.

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, algorithm 1.
    """
    axes = (0, *range(2, x.ndim))
    own = x.mean(axis=axes, keepdims=True)
    centred = x - own
    spread = np.square(centred).mean(axis=axes)
    slope = scale / np.sqrt(spread + spread.dtype.type(epsilon))
    wide = (-1, *[1] * (x.ndim - 2))
    centred *= slope.reshape(wide).astype(x.dtype, copy=False)
    centred += bias.reshape(wide)
    kept, added = mean.dtype.type(momentum), mean.dtype.type(1.0 - momentum)
    running = [old * kept + new * added for old, new in ((mean, own.reshape(-1)), (variance, spread))]
    return centred, running[0], running[1]


def layer_normalization(
    x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float
) -> tuple[Array, Array, Array]:
    """ONNX LayerNormalization: scale (x - mean) / sqrt(variance + epsilon) + bias, over the axes from `axis` on.

    Args:
        x: Any shape.
        scale: Broadcasts to the normalised axes.
        bias: The same, or None.
        axis: The first normalised axis.
        epsilon: Added to the variance.

    Returns:
        y, the mean and 1 / sqrt(variance + epsilon), computed in the dtype of x; the two statistics in float32, as
        ONNX types them.

    References:
        Ba, Kiros and Hinton, Layer normalization, arXiv:1607.06450, equation 4.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    y = x - mean
    variance = np.square(y).mean(axis=axes, keepdims=True)
    inverse = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(epsilon))
    y *= inverse
    y *= scale
    if bias is not None:
        y += bias
    return y, mean.astype(np.float32, copy=False), inverse.astype(np.float32, copy=False)


def local_response_normalization(x: Array, *, size: int, alpha: float, beta: float, bias: float) -> Array:
    """ONNX LRN: x / (bias + alpha / size sum of x^2 over `size` channels around each) ^ beta.

    Args:
        x: (N, C, *space).
        size: Channels of a sum, (size - 1) // 2 of them before each.
        alpha: Of the mean of the squares.
        beta: The exponent.
        bias: Added to that.

    References:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks, NeurIPS 2012,
        section 3.3.
    """
    before, channels = (size - 1) // 2, x.shape[1]
    squares = np.square(x)
    total = np.zeros_like(x)
    for shift in range(-before, size - before):
        here, there = slice(max(0, -shift), channels - max(0, shift)), slice(max(0, shift), channels + min(0, shift))
        if here.start < here.stop:
            total[:, here] += squares[:, there]
    total *= x.dtype.type(alpha / size)
    total += x.dtype.type(bias)
    y: Array = x * total ** x.dtype.type(-beta)
    return y
