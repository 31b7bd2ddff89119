"""Normalization by a mean and a variance."""

from __future__ import annotations

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = [
    "batch_normalization",
    "batch_normalization_in_training",
    "group_normalization",
    "layer_normalization",
    "local_response_normalization",
    "lp_normalization",
    "mean_variance_normalization",
    "rms_normalization",
]


def batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float) -> Array:
    """Evaluation mode: scale (x - mean) / sqrt(variance + epsilon) + bias, per channel (axis 1).

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
    """Normalize by the statistics of the batch, per channel (axis 1).

    Args:
        x: (N, C, *space).
        scale: (C,).
        bias: (C,).
        mean: The running mean, (C,).
        variance: The running variance, (C,).
        epsilon: Added to the variance.
        momentum: Weight of the previous running statistics.

    Returns:
        y, and the new running mean and variance, running momentum + batch (1 - momentum); the variance is that of the
        population.

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
        scale: Broadcasts to the normalized axes.
        bias: The same, or None.
        axis: The first normalized axis.
        epsilon: Added to the variance.

    Returns:
        y, the mean and 1 / sqrt(variance + epsilon), computed in the dtype of x; the two statistics are float32, as in
        ONNX.

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
        size: Channels per sum, (size - 1) // 2 of them before the center.
        alpha: Factor of the mean of the squares.
        beta: The exponent.
        bias: Added to the scaled mean.

    References:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks, NeurIPS 2012,
        section 3.3.
    """
    before, channels = (size - 1) // 2, x.shape[1]
    squares = np.square(x)
    total = np.zeros_like(x)
    # Shifts beyond all channels add nothing.
    for shift in range(max(-before, -x.shape[1]), min(size - before, x.shape[1] + 1)):
        here, there = slice(max(0, -shift), channels - max(0, shift)), slice(max(0, shift), channels + min(0, shift))
        if here.start < here.stop:
            total[:, here] += squares[:, there]
    total *= x.dtype.type(alpha / size)
    total += x.dtype.type(bias)
    y: Array = x * total ** x.dtype.type(-beta)
    return y


def group_normalization(x: Array, scale: Array, bias: Array, *, groups: int, epsilon: float) -> Array:
    """ONNX GroupNormalization: scale (x - mean) / sqrt(variance + epsilon) + bias, by sample and group.

    With as many groups as channels this is ONNX InstanceNormalization.

    Args:
        x: (N, C, *space).
        scale: One value per channel, or per group as before opset 21.
        bias: The same shape.
        groups: Groups of adjacent channels; 0: as many as channels.
        epsilon: Added to the variance.

    Raises:
        ShapeError: The channels are not divisible into the groups, or the number of scales differs.

    References:
        Wu and He, Group normalization, ECCV 2018, section 3.1.
    """
    channels = x.shape[1]
    groups = groups or channels
    if channels % max(groups, 1) or not {scale.size, bias.size} <= {channels, groups}:
        raise ShapeError(f"got {channels} channels in {groups} groups, {scale.size} scales and {bias.size} biases")
    parts = x.reshape(x.shape[0], groups, -1)
    y: Array = parts - parts.mean(axis=2, keepdims=True)
    variance = np.square(y).mean(axis=2, keepdims=True)
    y /= np.sqrt(variance + x.dtype.type(epsilon))
    result: Array = y.reshape(x.shape)
    wide = (-1, *[1] * (x.ndim - 2))
    result *= np.repeat(scale, channels // scale.size).reshape(wide)
    result += np.repeat(bias, channels // bias.size).reshape(wide)
    return result


def rms_normalization(x: Array, scale: Array, *, axis: int, epsilon: float) -> Array:
    """ONNX RMSNormalization: scale x / sqrt(mean of x^2 + epsilon), over the axes from `axis` on.

    References:
        Zhang and Sennrich, Root mean square layer normalization, NeurIPS 2019, equation 4.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    square = np.square(x).mean(axis=axes, keepdims=True)
    y: Array = x / np.sqrt(square + x.dtype.type(epsilon)) * scale
    return y


def lp_normalization(x: Array, *, axis: int, order: int) -> Array:
    """ONNX LpNormalization: x over its norm along an axis, sum |x| or sqrt(sum x^2); 0 over 0 is 0."""
    if order == 1:
        norm = np.abs(x).sum(axis=axis, keepdims=True, dtype=x.dtype)
    else:
        norm = np.sqrt(np.square(x).sum(axis=axis, keepdims=True, dtype=x.dtype))
    y: Array = x / np.where(norm == 0, 1, norm).astype(x.dtype)
    return y


def mean_variance_normalization(x: Array, *, axes: tuple[int, ...]) -> Array:
    """ONNX MeanVarianceNormalization: (x - mean) / (deviation + 1e-9), along some axes.

    ONNX's function body has the mean of squares minus the square of the mean, which rounding may make negative.
    """
    centered = x - x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    deviation = np.sqrt(np.square(centered).mean(axis=axes, keepdims=True, dtype=x.dtype))
    y: Array = centered / (deviation + x.dtype.type(1e-9))
    return y
