"""`AllReduce`: synchronous and decentralized: every rank steps with the mean gradient of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from deep5.core.arguments import is_finite
from deep5.core.communicator import TIMEOUT_S, Request
from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Arrays
from deep5.distributed.buckets import Buckets
from deep5.distributed.schemes.base import DistributedOptimizer

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
        if not is_finite(bucket_mib) or bucket_mib <= 0:
            raise UsageError(f"AllReduce: got bucket_mib={brief(bucket_mib)}; allowed: a number above 0")
        self.bucket_mib = float(bucket_mib)

    def _bound(self) -> None:
        most = round(self.bucket_mib * 2**20)
        self._buckets: Any = Buckets(self.trained, bucket_bytes=most, first_bytes=min(most, 1 << 20))
        self._early = "early_gradients" in self.executor.capabilities
        self._requests: list[Request] = []

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Backward, the mean over all ranks, the update; see `DistributedOptimizer.step`."""
        if self._shared is not None:
            outputs = self.step_together(inputs, info)
            self.verify_in_turn(info)
            return outputs
        buckets, requests = self._buckets, self._requests
        requests.clear()
        start = self._start if self.compression is None else None
        buckets.begin(self.share(info), start)
        if self._early:
            outputs = self.backprop(inputs, info, buckets.put)
        else:
            outputs = self.backprop(inputs, info)
            gradients = self.gradients()
            for name in buckets.views:
                buckets.put(name, gradients[name])
        if start is None:
            self.sum_buckets(buckets.buffers, info)
        for request in requests:
            request.wait(self.timeout_s)
        self.apply(buckets.views, info)
        self.verify_in_turn(info)
        return outputs

    def _start(self, index: int) -> None:
        self._requests.append(self.communicator.all_reduce_start(self._buckets.buffers[index]))
