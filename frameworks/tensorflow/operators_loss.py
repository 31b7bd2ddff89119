"""The losses: cross entropy of logits, and negative log-likelihood."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.order import channels_last, onnx_order
from deep5.frameworks.tensorflow.table import attribute, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _reduced(losses: Any, label: Any, classes: Any, weight: Any, ignore: int | None, reduction: str) -> Any:
    """Weighted losses, reduced; the mean is over the weights of the labels that count."""
    if weight is None and ignore is None:
        return tf.reduce_mean(losses) if reduction == "mean" else _all(losses, reduction)
    factors = tf.ones_like(losses) if weight is None else tf.gather(weight, classes)
    if ignore is not None:
        factors = tf.where(tf.equal(label, ignore), tf.zeros((), factors.dtype), factors)
    losses = losses * factors
    return tf.reduce_sum(losses) / tf.reduce_sum(factors) if reduction == "mean" else _all(losses, reduction)


def _all(losses: Any, reduction: str) -> Any:
    return losses if reduction == "none" else tf.reduce_sum(losses)


def _classes(label: Any, ignore: int | None) -> Any:
    """The labels; ignored ones, which may be out of range, are replaced by a valid class."""
    return label if ignore is None else tf.where(tf.equal(label, ignore), tf.zeros((), label.dtype), label)


def _cross_entropy(logits: Any, label: Any, weight: Any, ignore: int | None, reduction: str) -> Any:
    """Cross entropy of logits (N, …, C) with labels (N, …)."""
    classes = _classes(label, ignore)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)
    return _reduced(losses, label, classes, weight, ignore, reduction)


def _negative_log_likelihood(x: Any, label: Any, weight: Any, ignore: int | None, reduction: str) -> Any:
    """The negative of the entry at each label; x (N, …, C), labels (N, …)."""
    classes = _classes(label, ignore)
    losses = -tf.gather(x, classes, axis=-1, batch_dims=classes.shape.rank)
    return _reduced(losses, label, classes, weight, ignore, reduction)


def _poisoned_likelihood(x: Any, label: Any, weight: Any, ignore: int | None, reduction: str) -> Any:
    """Same as `_negative_log_likelihood`, for kernels that do not reject invalid labels: the sample becomes NaN.

    So the gradient is NaN as well, and no update uses it.
    """
    classes = _classes(label, ignore)
    inside = (classes >= 0) & (classes < tf.cast(tf.shape(x)[-1], classes.dtype))
    poison = tf.where(inside, tf.ones((), x.dtype), tf.constant(math.nan, x.dtype))
    kept = tf.where(inside, label, tf.zeros((), label.dtype))
    return _negative_log_likelihood(x * poison[..., tf.newaxis], kept, weight, ignore, reduction)


def _log_probability(logits: Any) -> Any:
    return tf.nn.log_softmax(logits, -1)


_REDUCTIONS = {"mean": "'mean'", "none": "'none'", "sum": "'sum'"}


def _emit(emitter: Emitter, node: ir.Node, function: Any) -> None:
    axes = rank(node)
    order = channels_last(axes) if axes > 2 else onnx_order(axes)
    x = emitter.ordered(node.inputs[0], order)
    label, weight = (emitter.name(value) for value in (*node.inputs[1:], None)[:2])
    how = f"{attribute(node, 'ignore_index', None)}, {_REDUCTIONS[attribute(node, 'reduction', 'mean')]}"
    emitter.assign(node, f"{emitter.function(function)}({x}, {label}, {weight}, {how})")
    if len(node.outputs) > 1 and node.outputs[1].name:
        emitter.line(f"{emitter.output(node, 1, order)} = {emitter.function(_log_probability)}({x})")


@operator("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy_loss(emitter: Emitter, node: ir.Node) -> None:
    _emit(emitter, node, _cross_entropy)


@operator("NegativeLogLikelihoodLoss")
def _negative_log_likelihood_loss(emitter: Emitter, node: ir.Node) -> None:
    refuses = not emitter.xla and emitter.device.startswith("/CPU")
    _emit(emitter, node, _negative_log_likelihood if refuses else _poisoned_likelihood)
