"""The losses: cross entropy of logits, and negative log-likelihood; and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS"]


def _total(
    xp: Primitives, losses: Array, label: Array, known: Array, weight: Array | None, ignored: int | None, reduction: str
) -> Array:
    """Weighted losses, reduced; the mean is over the weights of the labels that count. `known` is from `_known`."""
    if weight is None and ignored is None:
        return losses if reduction == "none" else (xp.mean if reduction == "mean" else xp.sum)(losses)
    factors = xp.ones_like(losses)
    if weight is not None:
        factors = xp.reshape(xp.take(weight, xp.reshape(known, (-1,)), axis=0), label.shape)
    if ignored is not None:
        factors = xp.where(label == ignored, xp.zeros_like(factors), factors)
        losses = xp.where(label == ignored, xp.zeros_like(losses), losses)
    losses = losses * factors
    if reduction == "mean":
        return xp.sum(losses) / xp.sum(factors)
    return losses if reduction == "none" else xp.sum(losses)


def _known(xp: Primitives, label: Array, ignored: int | None) -> Array:
    """The labels, 0 for those to ignore."""
    return label if ignored is None else xp.where(label == ignored, xp.zeros_like(label), label)


def _negative_log_likelihood_loss(
    xp: Primitives,
    x: Array,
    label: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    channels: int,
    checked: bool,
) -> Array:
    x = x if channels == -1 else xp.moveaxis(x, 1, -1)
    known = _known(xp, label, ignore_index)
    return _total(xp, xp.likelihood(x, known, checked), label, known, weight, ignore_index, reduction)


def _softmax_cross_entropy_loss(
    xp: Primitives,
    x: Array,
    label: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    channels: int,
    outputs: int,
) -> tuple[Array, ...]:
    """The loss, and the log of the softmax."""
    last = x if channels == -1 else xp.moveaxis(x, 1, -1)
    known = _known(xp, label, ignore_index)
    loss = _total(xp, xp.cross_entropy(last, known), label, known, weight, ignore_index, reduction)
    return (loss,) if outputs == 1 else (loss, xp.log_softmax(x, axis=channels))


def _along(name: str) -> Composite:
    """A function along one axis that keeps the shape."""

    def run(xp: Primitives, x: Array, *, axis: int = -1) -> Array:
        return getattr(xp, name)(x, axis=axis)

    return Composite(function=run, layout="axis", written=True)


def _loss(function: Callable[..., Any]) -> Composite:
    return Composite(function=function, layout="image")


OPERATORS = {
    "LogSoftmax": _along("log_softmax"),
    "NegativeLogLikelihoodLoss": _loss(_negative_log_likelihood_loss),
    "Softmax": _along("softmax"),
    "SoftmaxCrossEntropyLoss": _loss(_softmax_cross_entropy_loss),
}
