"""Normalization: operators with statistics, channels last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.composites import emit_of
from deep5.frameworks.tensorflow.order import channels_last
from deep5.frameworks.tensorflow.table import attribute, number, operator, rank, spare
from deep5.networks.kernels.operators import COMPOSITES
from deep5.networks.kernels.reducing import check_space

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _check_batch_norm(node: ir.Node) -> str | None:
    if rank(node) < 2:
        return "no channels"
    return None if attribute(node, "training_mode", 0) else spare(node)


def _fused(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, training: bool) -> Any:
    """The fused kernel, for float32: it takes images, so other ranks are reshaped."""
    flat = tf.reshape(x, [-1, 1, 1, x.shape[-1]]) if x.shape.rank != 4 else x
    found = tf.raw_ops.FusedBatchNormV3(
        x=flat, scale=scale, offset=bias, mean=mean, variance=variance, epsilon=epsilon, is_training=training
    )
    return (tf.reshape(found.y, tf.shape(x)) if x.shape.rank != 4 else found.y), found.batch_mean, found.batch_variance


def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    if x.dtype == scale.dtype == mean.dtype == tf.float32:
        return _fused(x, scale, bias, mean, variance, epsilon, training=False)[0]
    factor = scale * tf.math.rsqrt(variance + tf.cast(epsilon, variance.dtype))
    return x * factor + (bias - mean * factor)


def _batch_norm_in_training(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    """The output and new running statistics: population variance; momentum is the weight of the old value."""
    if x.dtype == scale.dtype == mean.dtype == tf.float32:
        none = tf.zeros([0], tf.float32)
        y, now, corrected = _fused(x, scale, bias, none, none, epsilon, training=True)
        count = tf.cast(tf.size(x) // x.shape[-1], tf.float32)
        spread = corrected * ((count - 1) / count)  # the kernel returns the sample variance
    else:
        axes = list(range(x.shape.rank - 1))
        now = tf.reduce_mean(x, axes)
        centred = x - now
        spread = tf.reduce_mean(centred * centred, axes)
        y = centred * (scale * tf.math.rsqrt(spread + tf.cast(epsilon, spread.dtype))) + bias
    keep = tf.constant(momentum, mean.dtype)
    share = tf.constant(1 - momentum, mean.dtype)
    return y, mean * keep + now * share, variance * keep + spread * share


@operator("BatchNormalization", _check_batch_norm)
def _batch_normalization(emitter: Emitter, node: ir.Node) -> None:
    order = channels_last(rank(node))
    inputs = ", ".join([emitter.ordered(node.inputs[0], order), *map(emitter.name, node.inputs[1:])])
    momentum, epsilon = number(attribute(node, "momentum", 0.9)), number(attribute(node, "epsilon", 1e-5))
    if attribute(node, "training_mode", 0):
        text = f"{emitter.function(emitter.batch_norm or _batch_norm_in_training)}({inputs}, {momentum}, {epsilon})"
        outputs = [emitter.output(node, 0, order), *(emitter.output(node, at) for at in range(1, len(node.outputs)))]
        emitter.line(f"{', '.join([*outputs, '_', '_'][:3])} = {text}")
    else:
        emitter.assign(node, f"{emitter.function(_batch_norm)}({inputs}, {epsilon})", order)


_LRN = "of 5 channels: 2.5 and 3.2 times at (8, 32, 28, 28)"
_WRITE_LRN = emit_of(COMPOSITES["LRN"])


@operator("LRN", check_space, override=_LRN)
def _lrn(emitter: Emitter, node: ir.Node) -> None:
    size = attribute(node, "size")
    if size % 2 == 0 or rank(node) != 4 or node.outputs[0].dtype != ir.DataType.FLOAT:  # without a kernel
        _WRITE_LRN(emitter, node)
        return
    bias, beta = number(attribute(node, "bias", 1.0)), number(attribute(node, "beta", 0.75))
    x, order = emitter.ordered(node.inputs[0], channels_last(4)), channels_last(4)
    how = f"{x}, {size // 2}, {bias}, {number(attribute(node, 'alpha', 1e-4) / size)}, {beta}"
    emitter.assign(node, f"{emitter.function(tf.nn.local_response_normalization)}({how})", order)
