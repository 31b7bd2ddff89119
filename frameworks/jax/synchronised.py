"""Batch normalization over the batch parts of all ranks, traced by JAX, with calls to the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from deep5.frameworks.jax.kernels.layers import channel_sums

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["batch_norm_over_ranks"]


def batch_norm_over_ranks(ranks: RankStatistics) -> Callable[..., tuple[Any, Any, Any]]:
    """ONNX's batch normalization in training, channels last, with the statistics of the batch of all ranks.

    Ranks exchange data through the host, in JAX's tracing order, which is the same on all ranks.

    Args:
        ranks: Exchanges statistics and sums of gradients.

    Returns:
        A function of (x, scale, bias, running mean, running variance, epsilon, momentum), which returns the result and
        the new running statistics.
    """

    def forward(x: Any, scale: Any, bias: Any, epsilon: float) -> tuple[Any, Any]:
        count = x.size // x.shape[-1]
        own = channel_sums(x) / count
        spread = channel_sums(jnp.square(x - own)) / count
        mean, variance, total = _on_host(functools.partial(_moments, ranks, count), 3, own, spread)
        inverse = lax.rsqrt(variance + epsilon)
        return ((x - mean) * (scale * inverse) + bias, mean, variance), (x, mean, inverse, scale, total)

    def backward(epsilon: float, kept: Any, grads: Any) -> tuple[Any, Any, Any]:
        x, mean, inverse, scale, total = kept
        dy, normal = grads[0], (x - mean) * inverse
        dbias, dscale = channel_sums(dy), channel_sums(dy * normal)
        whole_bias, whole_scale = _on_host(lambda sums: np.stack(ranks.sums(*sums)), 2, dbias, dscale)
        return (dy - whole_bias / total - normal * (whole_scale / total)) * (scale * inverse), dscale, dbias

    @functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
    def normalized(x: Any, scale: Any, bias: Any, epsilon: float) -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = forward(x, scale, bias, epsilon)[0]
        return found

    normalized.defvjp(forward, backward)

    def synchronised_batch_norm(
        x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, momentum: float
    ) -> tuple[Any, Any, Any]:
        y, batch_mean, batch_variance = normalized(x, scale, bias, epsilon)
        share = 1 - momentum
        return y, mean * momentum + batch_mean * share, variance * momentum + batch_variance * share

    return synchronised_batch_norm


def _moments(ranks: RankStatistics, count: int, own: np.ndarray) -> np.ndarray:
    """Mean, variance and number of elements per channel, each repeated for all channels."""
    mean, variance, total = ranks.moments(own[0], own[1], count)
    return np.stack([mean, variance, np.full_like(mean, total)])


def _on_host(function: Callable[[np.ndarray], np.ndarray], rows: int, *values: Any) -> Any:
    """The float64 rows that a function returns for float64 rows, called on the host; here of one length and dtype."""
    kind, own = values[0].dtype, jnp.stack([value.astype(jnp.float64) for value in values])

    def call(bits: Any) -> np.ndarray:
        given = np.asarray(bits).reshape(len(values), -1).view(np.float64)
        return np.ascontiguousarray(function(given)).view(np.uint32).reshape(rows, -1, 2)

    # Passed as bits: 64-bit types are disabled in JAX's callbacks, which would round float64 values.
    shape = jax.ShapeDtypeStruct((rows, own.shape[1], 2), jnp.uint32)
    found = io_callback(call, shape, lax.bitcast_convert_type(own, jnp.uint32), ordered=True)
    return lax.bitcast_convert_type(found, jnp.float64).astype(kind)
