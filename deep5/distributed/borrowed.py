"""A rank without samples takes part in a step with another rank's sample, which has weight zero."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.distributed.packed import Packed

__all__ = ["kept_statistics", "without_samples"]


def without_samples(info: StepInfo) -> bool:
    """Whether all samples of the step are borrowed; False if samples are not counted."""
    return info.global_batch_size > 0 == info.batch_size


@contextmanager
def kept_statistics(executor: GraphExecutor) -> Iterator[None]:
    """Restore the running statistics on exit: a borrowed sample does not update this rank's statistics."""
    parts = [(packed, packed.read()) for packed in Packed.of(executor, buffers=True)]
    try:
        yield
    finally:
        for packed, before in parts:
            packed.write(before)
