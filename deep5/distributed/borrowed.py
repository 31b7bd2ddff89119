"""A rank without samples: it takes part in a step on a sample of another's, which counts for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.distributed.packed import Packed

__all__ = ["kept_statistics", "without_samples"]


def without_samples(info: StepInfo) -> bool:
    """Whether all samples of the step are others'; where nobody counts them, there are some."""
    return info.global_batch_size > 0 == info.batch_size


@contextmanager
def kept_statistics(executor: GraphExecutor) -> Iterator[None]:
    """What is inside leaves the running statistics as they were: a borrowed sample is no statistic of this rank's."""
    parts = [(packed, packed.read()) for packed in Packed.of(executor, buffers=True)]
    try:
        yield
    finally:
        for packed, before in parts:
            packed.write(before)
