"""`AllReduce`: synchronous and decentralized: every rank steps with the mean gradient of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deep5.core.communicator import TIMEOUT_S
from deep5.core.events import StepInfo
from deep5.core.tensors import Arrays
from deep5.distributed.schemes.base import DistributedOptimizer
from deep5.distributed.schemes.bucketed import BucketedStep, checked_bucket_mib

if TYPE_CHECKING:
    from deep5.distributed.compression import Compression

__all__ = ["AllReduce"]


class AllReduce(DistributedOptimizer):
    """Every rank computes the gradients of its part of the batch, all are summed, and every rank makes the update.

    Gradients are sent in buckets of some MiB; if the framework exposes them early, a bucket is sent as soon as it is
    full, while the backward pass continues. N ranks compute the same step as one rank with the whole batch.

    This also holds for an optimizer that owns its step (L-BFGS, SAG, a user-defined one): each of its evaluations sums
    the gradients and the loss of all ranks.

    Args:
        bucket_mib: A bucket is sent when it holds this many MiB; the first bucket when it holds one.
        compression: See `DistributedOptimizer`; compressed buckets are sent after the backward pass.
        verify_every: See `DistributedOptimizer`.
        timeout_s: See `DistributedOptimizer`.
        synchronise_batch_norm: See `DistributedOptimizer`.

    References:
        Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB'20, section 3.2, for
        buckets and overlap.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):  # the minimum of a rank is its sample, and the rate steps there at once
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.AllReduce().wrap(d5.SGD(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     info = d5.StepInfo(step=0, batch_size=1, global_batch_size=2)
    ...     scheme.step({"input": np.array([[4.0 * communicator.rank]])}, info)
    ...     return executor.parameters()["w"].tolist()
    >>> run_in_threads(2, train)  # both ranks step to the mean of both samples, 0 and 4
    [[2.0], [2.0]]
    """

    consistent: ClassVar[bool] = True
    compresses: ClassVar[bool] = True
    closures: ClassVar[bool] = True
    accumulates: ClassVar[bool] = True
    synchronises: ClassVar[bool] = True

    def __init__(
        self,
        *,
        bucket_mib: float = 25.0,
        compression: Compression | None = None,
        verify_every: int = 100,
        timeout_s: float = TIMEOUT_S,
        synchronise_batch_norm: bool = False,
    ) -> None:
        super().__init__(
            compression=compression,
            verify_every=verify_every,
            timeout_s=timeout_s,
            synchronise_batch_norm=synchronise_batch_norm,
        )
        self.bucket_mib = checked_bucket_mib("AllReduce", bucket_mib)

    def _bound(self) -> None:
        self._bucketed = BucketedStep(self, self.bucket_mib, self.communicator.all_reduce_start)
        self._buckets = self._bucketed.buckets

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Backward, the mean over all ranks, the update; see `DistributedOptimizer.step`."""
        outputs = self.step_together(inputs, info) if self._shared is not None else self._bucketed.step(inputs, info)
        self.verify_in_turn(info)
        return outputs
