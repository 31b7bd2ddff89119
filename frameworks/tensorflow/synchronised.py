"""Batch normalization over the batch parts of all ranks, traced by TensorFlow, with calls to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["batch_norm_over_ranks"]


def batch_norm_over_ranks(ranks: RankStatistics) -> Callable[..., tuple[Any, Any, Any]]:
    """ONNX's batch normalization in training, channels last, with the statistics of the batch of all ranks.

    Ranks exchange data through the host. Such calls have side effects, so TensorFlow runs them in tracing order, which
    is the same on all ranks.

    Args:
        ranks: Exchanges statistics and sums of gradients.

    Returns:
        A function of (x, scale, bias, running mean, running variance, momentum, epsilon), which returns the result and
        the new running statistics.
    """

    def moments(rows: np.ndarray, count: np.ndarray) -> np.ndarray:
        mean, variance, total = ranks.moments(rows[0], rows[1], int(count))
        return np.stack([mean, variance, np.full_like(mean, total)])

    def sums(rows: np.ndarray) -> np.ndarray:
        return np.stack(ranks.sums(*rows))

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
    def normalized(x: Any, scale: Any, bias: Any, epsilon: Any) -> Any:
        axes = list(range(x.shape.rank - 1))
        count = tf.size(x, tf.int64) // x.shape[-1]
        own = tf.reduce_mean(x, axes)
        spread = tf.reduce_mean(tf.square(x - own), axes)
        mean, variance, total = _on_host(moments, 3, [own, spread], count)
        inverse = tf.math.rsqrt(variance + epsilon)

        def gradient(dy: Any, *statistics: Any) -> Any:
            # Ioffe and Szegedy, Batch normalization, ICML 2015, section 3; only dx uses sums over all ranks.
            normal = (x - mean) * inverse
            dbias, dscale = tf.reduce_sum(dy, axes), tf.reduce_sum(dy * normal, axes)
            whole_bias, whole_scale = _on_host(sums, 2, [dbias, dscale])
            dx = (dy - whole_bias / total - normal * (whole_scale / total)) * (scale * inverse)
            return dx, dscale, dbias, None

        return ((x - mean) * (scale * inverse) + bias, mean, variance), gradient

    def synchronised_batch_norm(
        x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
    ) -> tuple[Any, Any, Any]:
        y, now, spread = normalized(x, scale, bias, tf.constant(epsilon, scale.dtype))
        keep, share = tf.constant(momentum, mean.dtype), tf.constant(1 - momentum, mean.dtype)
        return y, mean * keep + now * share, variance * keep + spread * share

    return synchronised_batch_norm


def _on_host(function: Callable[..., np.ndarray], count: int, rows: list[Any], *further: Any) -> list[Any]:
    """The float64 rows that a function returns for float64 rows, called on the host; here of one length and dtype."""
    found = tf.numpy_function(function, [tf.cast(tf.stack(rows), tf.float64), *further], tf.float64, stateful=True)
    found = tf.ensure_shape(found, [count, *rows[0].shape])
    unstacked: list[Any] = tf.unstack(tf.cast(found, rows[0].dtype))
    return unstacked
