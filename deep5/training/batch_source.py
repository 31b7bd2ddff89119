"""`BatchSource`: what the trainer takes its batches from, whoever makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from deep5.core.errors import UsageError, brief

__all__ = ["Batch", "BatchSource", "batch_size_of", "first_batch"]

Batch = tuple[Any, Mapping[str, Any]]
"""Identities of the samples, int64 of shape (batch_size,), or None where they are unknown; and the samples by name."""


@runtime_checkable
class BatchSource(Protocol):
    """Batches by epoch: a `Sampler`, one that is `Prefetched`, or a framework's own loader behind an adapter."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on: exactly those that follow the first `start` ones."""
        ...

    def steps(self, epoch: int) -> int | None:
        """Number of batches of the epoch, or None where it is known only when the epoch is over."""
        ...

    def order_hash(self, epochs: int) -> str | None:
        """SHA-256 of batch sizes and order of the first epochs, or None where nobody knows it beforehand."""
        ...


def batch_size_of(inputs: Mapping[str, Any]) -> int:
    """Number of samples of a batch, by the first extent of its first array; arrays of any library.

    Raises:
        UsageError: No arrays, or one without extents.

    >>> import numpy as np
    >>> batch_size_of({"input": np.zeros((5, 3)), "label": np.zeros(5)})
    5
    """
    for array in inputs.values():
        shape: Any = getattr(array, "shape", ())
        if len(shape):
            return int(shape[0])
        break
    raise UsageError(
        f"a batch of {brief(dict(inputs))}; allowed: named arrays whose first extent is the number of samples"
    )


def first_batch(start: object, steps: int | None) -> int:
    """The number of the first batch wanted.

    Raises:
        UsageError: It is no whole number from 0 to the number of batches.
    """
    if isinstance(start, bool) or not isinstance(start, int) or start < 0 or (steps is not None and start > steps):
        last = "" if steps is None else f" to {steps} (all of the epoch's batches done)"
        raise UsageError(f"start at batch {brief(start)}; allowed: a whole number from 0{last or ' on'}")
    return start
