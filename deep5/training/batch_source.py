"""`BatchSource`: the interface through which the trainer obtains batches."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import Arrays

__all__ = ["Batch", "BatchSource", "batch_size_of", "first_batch", "joined_batches", "sample_count"]

Batch = tuple[Any, Mapping[str, Any]]
"""Sample ids, int64 of shape (batch_size,), or None if unknown; and the arrays by name."""


@runtime_checkable
class BatchSource(Protocol):
    """Batches by epoch: a `Sampler`, a `Prefetched` one, or an adapter of a framework's loader.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Noise:
    ...     def batches(self, epoch, start=0):
    ...         for step in range(start, 3):
    ...             draw = d5.generator(0, "noise", epoch, step)
    ...             yield None, {"input": draw.standard_normal((8, 4)), "label": np.zeros(8, np.int64)}
    ...     def steps(self, epoch): return 3
    ...     def order_hash(self, epochs): return None
    >>> isinstance(Noise(), d5.BatchSource), [batch["input"].shape for ids, batch in Noise().batches(0, start=1)]
    (True, [(8, 4), (8, 4)])
    """

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on: exactly those after the first `start` batches.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning of the epoch.

        Returns:
            Pairs of sample ids (None if unknown) and arrays by name.
        """
        ...

    @abstractmethod
    def steps(self, epoch: int) -> int | None:
        """Number of batches of the epoch, or None if it is unknown before the epoch ends.

        Args:
            epoch: Counted from 0.
        """
        ...

    @abstractmethod
    def order_hash(self, epochs: int) -> str | None:
        """SHA-256 of batch sizes and order of the first epochs, or None if the order is unknown in advance.

        Args:
            epochs: Number of epochs, from the first.
        """
        ...


def batch_size_of(inputs: Mapping[str, Any]) -> int:
    """Number of samples of a batch: the first dimension of its first array; accepts arrays of any library.

    Raises:
        UsageError: There are no arrays, or the first has rank 0.

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
        f"a batch of {brief(dict(inputs))}; allowed: named arrays whose first dimension is the number of samples"
    )


def first_batch(start: object, steps: int | None) -> int:
    """The number of the first requested batch.

    Raises:
        UsageError: It is not an integer from 0 to the number of batches.
    """
    if isinstance(start, bool) or not isinstance(start, int) or start < 0 or (steps is not None and start > steps):
        last = "" if steps is None else f" to {steps} (all of the epoch's batches done)"
        raise UsageError(f"start at batch {brief(start)}; allowed: an integer from 0{last or ' on'}")
    return start


def joined_batches(batches: Iterable[tuple[Any, Arrays]], count: int) -> Iterator[tuple[Any, list[Any]]]:
    """Groups of `count` batches, with the indices of all their samples; the last group may be smaller.

    A batch in which this rank has no sample is None, unless there are no others.
    """
    for ids, inputs in (source := iter(batches)):
        both = [(ids, inputs), *itertools.islice(source, count - 1)]
        gathered: list[Any] = [None if ids is not None and not len(ids) else inputs for ids, inputs in both]
        if all(inputs is None for inputs in gathered):
            gathered[0] = both[0][1]
        known = all(ids is not None for ids, _ in both)
        yield np.concatenate([ids for ids, _ in both]) if known else None, gathered


def sample_count(inputs: Arrays | list[Arrays]) -> int:
    """Samples in one or several batches with unknown indices."""
    return sum(map(batch_size_of, inputs)) if isinstance(inputs, list) else batch_size_of(inputs)
