"""Operators that communicate between ranks: statistics of the shared batch, and sums of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deep5.core.errors import Unsupported
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import Call, Operator, Site, first

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["OPERATORS"]


def _batch_moments(site: Site) -> Call:
    ranks = _ranks(site)

    def moments(x: Array) -> tuple[Array, ...]:
        """Mean, variance and element count per channel over the batch of all ranks, in the dtype of x."""
        axes = (0, *range(2, x.ndim))
        mean = x.mean(axis=axes, keepdims=True)
        variance = np.square(x - mean).mean(axis=axes)
        found = ranks.moments(mean.reshape(-1), variance, x.size // x.shape[1])
        return tuple(np.asarray(value, x.dtype) for value in found)

    return Call(first(moments, site.outputs), (0,))


def _gradient_sums(site: Site) -> Call:
    ranks = _ranks(site)

    def sums(*own: Array) -> tuple[Array, ...]:
        """The sums over all ranks, in the dtypes of the inputs."""
        return tuple(found.astype(given.dtype) for found, given in zip(ranks.sums(*own), own, strict=True))

    return Call(first(sums, site.outputs), (0, 1))


def _ranks(site: Site) -> RankStatistics:
    if site.ranks is None:
        raise Unsupported(
            f"{site.node.op_type} exchanges statistics with other ranks; got none; allowed: a network that a scheme "
            "with synchronise_batch_norm is bound to"
        )
    return site.ranks


OPERATORS: dict[str, Operator] = {
    "BatchMoments": Operator(_batch_moments),
    "GradientSums": Operator(_gradient_sums),
}
