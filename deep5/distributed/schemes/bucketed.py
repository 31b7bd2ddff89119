"""`BucketedStep`: the step of schemes that exchange gradients in buckets, before the backward pass has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.arguments import is_finite
from deep5.core.communicator import Request
from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Arrays
from deep5.distributed.buckets import Buckets

if TYPE_CHECKING:
    from deep5.distributed.schemes.base import DistributedOptimizer

__all__ = ["BucketedStep", "checked_bucket_mib"]

_FIRST_BYTES = 1 << 20


def checked_bucket_mib(scheme: str, bucket_mib: Any) -> float:
    """Check the size of a bucket.

    Args:
        scheme: Name of the scheme in messages.
        bucket_mib: Size in MiB.

    Raises:
        UsageError: It is not a number above 0.
    """
    if not is_finite(bucket_mib) or bucket_mib <= 0:
        raise UsageError(f"{scheme}: got bucket_mib={brief(bucket_mib)}; allowed: a number above 0")
    return float(bucket_mib)


class BucketedStep:
    """Sends a bucket as soon as it is full, if the framework exposes gradients early.

    Args:
        scheme: The bound scheme, which applies the exchanged gradients. Its `sum_buckets` exchanges compressed ones,
            after the backward pass.
        bucket_mib: A bucket is sent when it holds this many MiB; the first bucket when it holds one.
        start: Starts the exchange of a buffer.

    Attributes:
        buckets: The buckets.
    """

    def __init__(self, scheme: DistributedOptimizer, bucket_mib: float, start: Callable[[np.ndarray], Request]) -> None:
        most = round(bucket_mib * 2**20)
        self.buckets = Buckets(scheme.trained, bucket_bytes=most, first_bytes=min(most, _FIRST_BYTES))
        self._scheme, self._send = scheme, start
        self._early = "early_gradients" in scheme.executor.capabilities
        self._requests: list[Request] = []

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Backward, the exchange, and `apply`; returns the outputs."""
        scheme, buckets, requests = self._scheme, self.buckets, self._requests
        requests.clear()
        start = self._start if scheme.compression is None else None
        buckets.begin(scheme.share(info), start)
        if self._early:
            outputs = scheme.backprop(inputs, info, buckets.put)
        else:
            outputs = scheme.backprop(inputs, info)
            gradients = scheme.gradients()
            for name in buckets.views:
                buckets.put(name, gradients[name])
        if start is None:
            scheme.sum_buckets(buckets.buffers, info)
        for request in requests:
            request.wait(scheme.timeout_s)
        scheme.apply(buckets.views, info)
        return outputs

    def _start(self, index: int) -> None:
        self._requests.append(self._send(self.buckets.buffers[index]))
