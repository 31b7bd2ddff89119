"""Losses over classes."""

from __future__ import annotations

import numpy as np

from deep5.core.errors import NetworkError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["negative_log_likelihood", "softmax_cross_entropy"]


def softmax_cross_entropy(
    x: Array, label: Array, weights: Array | None = None, *, reduction: str, ignore_index: int | None = None
) -> tuple[Array, Array]:
    """ONNX SoftmaxCrossEntropyLoss: the negative log likelihood of log softmax(x), with classes along axis 1.

    Returns:
        The loss, and log softmax(x), both of the dtype of x.

    Raises:
        NetworkError: A label is not a class.
    """
    log_prob = x - x.max(axis=1, keepdims=True)
    log_prob -= np.log(np.exp(log_prob).sum(axis=1, keepdims=True))
    return negative_log_likelihood(log_prob, label, weights, reduction=reduction, ignore_index=ignore_index), log_prob


def negative_log_likelihood(
    x: Array, label: Array, weights: Array | None = None, *, reduction: str, ignore_index: int | None = None
) -> Array:
    """ONNX NegativeLogLikelihoodLoss: -weights[label] x[label], with classes along axis 1.

    Args:
        x: (N, C, *space), log probabilities.
        label: (N, *space), integers from 0 to C - 1, or `ignore_index`.
        weights: (C,), or None.
        reduction: `"none"`, `"sum"`, or `"mean"`: the sum divided by the sum of the used weights.
        ignore_index: A label to ignore.

    Returns:
        The loss, a scalar or (N, *space), of the dtype of x.

    Raises:
        NetworkError: A label is not a class.
    """
    classes = x.shape[1]
    index = label.astype(np.int64, copy=False)
    ignored = None if ignore_index is None else index == ignore_index
    if ignored is not None:
        index = np.where(ignored, 0, index)
    if index.size and not (index.min() >= 0 and index.max() < classes):
        raise NetworkError(f"labels from {index.min()} to {index.max()}; allowed: 0 to {classes - 1}")
    if x.ndim == 2:
        loss: Array = -x[np.arange(len(index)), index]
    else:
        loss = -np.take_along_axis(x, index[:, None], axis=1)[:, 0]
    share = None
    if weights is not None or ignored is not None:
        share = np.ones_like(loss) if weights is None else weights[index]
        if ignored is not None:
            share = np.where(ignored, share.dtype.type(0), share)
        loss = loss * share
    if reduction == "none":
        return loss
    total = loss.sum()
    if reduction == "mean":
        total = total / (x.dtype.type(loss.size) if share is None else share.sum())
    return np.asarray(total, dtype=x.dtype)
