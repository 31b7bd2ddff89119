"""Batch normalization over the parts of all ranks, as a function that torch differentiates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["batch_norm_over_ranks"]


def batch_norm_over_ranks(ranks: RankStatistics) -> Callable[..., tuple[Any, Any, Any]]:
    """ONNX's batch normalization in training, with the statistics of the batch of all ranks.

    Args:
        ranks: Exchanges statistics and sums of gradients.

    Returns:
        A function of (x, scale, bias, running mean, running variance, momentum, epsilon), which returns the result and
        the values for `RunningStatistics`: mean and reciprocal standard deviation. The running ones do not change.
    """

    def synchronised_batch_norm(
        x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
    ) -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = _OverRanks.apply(x, scale, bias, mean.dtype, epsilon, ranks)
        return found

    return synchronised_batch_norm


class _OverRanks(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """y = scale h + bias, h = (x − m) / sqrt(v + epsilon), with m and v over all ranks' elements, n per channel.

    dbias = Σ dy and dscale = Σ dy h are over this rank's part, like every parameter's gradient; with both summed over
    all ranks, dx = scale / sqrt(v + epsilon) (dy − Σ dbias / n − h Σ dscale / n).

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, section 3.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, bias: Any, kept: Any, epsilon: float, ranks: RankStatistics) -> Any:
        own_mean, own_variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        count = x.numel() // x.shape[1]
        whole, spread, total = ranks.moments(_on_host(own_mean), _on_host(own_variance), count)
        wide = _wide(scale)
        mean, variance = (torch.from_numpy(value).to(wide) for value in (whole, spread))
        ctx.epsilon, ctx.ranks, ctx.total = epsilon, ranks, total
        ctx.save_for_backward(x, scale, mean, variance)
        inverse = (variance + epsilon).rsqrt()
        statistics = mean.to(kept), inverse.to(kept)
        ctx.mark_non_differentiable(*statistics)
        return F.batch_norm(x, mean, variance, wide, bias.to(wide), False, 0.0, epsilon), *statistics

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # torch's own
    def backward(ctx: Any, dy: Any, *statistics: Any) -> Any:
        x, given, mean, variance = ctx.saved_tensors
        scale = _wide(given)
        wants_x, wants_scale, wants_bias = ctx.needs_input_grad[:3]
        inverse = (variance + ctx.epsilon).rsqrt()
        # As with given statistics: the sums over this rank's part depend on nothing else.
        _, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
            dy, x, scale, mean, variance, None, None, False, ctx.epsilon, (False, True, True)
        )
        dx = None
        if wants_x:
            sums = ctx.ranks.sums(_on_host(dbias), _on_host(dscale))
            whole_bias, whole_scale = (torch.from_numpy(value).to(scale) for value in sums)
            slope = scale * inverse
            factor = slope / -ctx.total
            # −slope (h Σ dscale + Σ dbias) / n is a batch normalization of x, too.
            dx = F.batch_norm(x, mean, variance, factor * whole_scale, factor * whole_bias, False, 0.0, ctx.epsilon)
            dx.addcmul_(dy, slope.to(dy).view(1, -1, *[1] * (x.ndim - 2)))
        dscale, dbias = dscale.to(given.dtype), dbias.to(given.dtype)
        return dx, dscale if wants_scale else None, dbias if wants_bias else None, None, None, None


def _wide(scale: Any) -> Any:
    """The scale in the type of the statistics, which is never a short one."""
    return scale if scale.itemsize > 2 else scale.float()


def _on_host(value: Any) -> Any:
    return value.double().cpu().numpy()
