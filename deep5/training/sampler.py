"""`Sampler`: the order and the batches of an epoch, every sample exactly once."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import derive_seed, generator
from deep5.training.batch_source import first_batch
from deep5.training.dataset import Dataset, StreamDataset

__all__ = ["OrderedSampler", "Sampler", "ShuffleSampler", "seeded"]


class Sampler(ABC):
    """Batches of a data set. The last batch of an epoch may be smaller; it is never dropped.

    Args:
        dataset: The samples.
        batch_size: Samples per batch; or a function of the epoch that returns them, such as `GrowingBatches`; its
            result is limited to the number of samples.
        seed: The order is a function of (seed, epoch), and random transforms depend on (seed, epoch, sample).
        transforms: Applied to each batch in order: `transform(inputs, ids, epoch) -> inputs`.

    Raises:
        UsageError: `dataset` is not a data set, the batch size is not an integer between 1 and the size of the data
            set, or a transform is invalid.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Backwards(d5.Sampler):
    ...     def order(self, epoch): return np.arange(len(self.dataset))[::-1]
    >>> data = d5.ArrayDataset({"input": np.arange(5) * 10})
    >>> [(ids.tolist(), batch["input"].tolist()) for ids, batch in Backwards(data, 2).batches(epoch=0)]
    [([4, 3], [40, 30]), ([2, 1], [20, 10]), ([0], [0])]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | Callable[[int], int],
        *,
        seed: int = 0,
        transforms: Sequence[Callable[..., Any]] = (),
    ) -> None:
        given: object = dataset
        if not isinstance(given, Dataset):
            from deep5.training.reinforcement.environment import Environment

            remedy = "; remedy: the sampler 'stream'" if isinstance(given, StreamDataset) else ""
            if isinstance(given, Environment):
                remedy = "; remedy: the samplers 'episodes' and 'replay', and 'validation_sampler': None"
            raise UsageError(
                f"got {type(given).__name__} as a data set; allowed: a d5.Dataset, such as the part 'train' of what a "
                f"data set's function returns{remedy}"
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.transforms = seeded(transforms, seed)
        self._length = len(dataset)
        _check_batch_size(batch_size(0) if callable(batch_size) else batch_size, self._length)

    @abstractmethod
    def order(self, epoch: int) -> np.ndarray:
        """Indices of the samples in this epoch's order, int64, each exactly once.

        Args:
            epoch: Counted from 0.
        """

    def samples(self, epoch: int) -> int:
        """Number of samples in the epoch: the length of its order.

        Args:
            epoch: Counted from 0.
        """
        return self._length

    def epoch_batch_size(self, epoch: int) -> int:
        """Samples per batch in the epoch, except for the last batch.

        Args:
            epoch: Counted from 0.

        Raises:
            UsageError: A function of the epoch does not return an integer of at least 1.
        """
        if not callable(self.batch_size):
            return self.batch_size
        size = self.batch_size(epoch)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"batch size {size!r} of epoch {epoch}; allowed: an integer of at least 1")
        return min(size, self._length)

    def __len__(self) -> int:
        """Batches of the first epoch."""
        return self.steps(0)

    def steps(self, epoch: int) -> int:
        """Batches of the epoch.

        Args:
            epoch: Counted from 0.
        """
        return -(-self.samples(epoch) // self.epoch_batch_size(epoch))

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The epoch's batches: indices, shape (batch,), and the samples by name.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning, without gathering them.

        Raises:
            UsageError: `start` is not a batch number of this epoch.
        """
        if self.transforms or type(self).make is not Sampler.make or type(self).ids is not Sampler.ids:
            ids, make = self.ids(epoch, start), self.make
            return (make(part, epoch) for part in ids)
        return self.dataset.in_batches(*self._rest(epoch, start))

    def ids(self, epoch: int, start: int = 0) -> Iterator[np.ndarray]:
        """The indices of the epoch's batches; see `batches`.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning of the epoch.
        """
        order, size = self._rest(epoch, start)
        return (order[first : first + size] for first in range(0, len(order), size))

    def _rest(self, epoch: int, start: int) -> tuple[np.ndarray, int]:
        """The remaining part of the epoch's order, and its batch size."""
        size = self.epoch_batch_size(epoch)
        begin = first_batch(start, self.steps(epoch)) * size if start else 0
        return self.order(epoch)[begin:], size

    def make(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Make the batch of these samples in this epoch: their indices, and the samples by name.

        Args:
            ids: Indices of samples, int64, shape (batch,).
            epoch: Counted from 0; random transforms depend on it.
        """
        inputs = self.dataset.batch(ids)
        for transform in self.transforms:
            inputs = transform(inputs, ids, epoch)
        return ids, inputs

    def order_hash(self, epochs: int) -> str:
        """SHA-256 over batch size and order of the first epochs.

        Args:
            epochs: Number of epochs, from the first.
        """
        if callable(self.batch_size):
            sizes = ",".join(str(self.epoch_batch_size(epoch)) for epoch in range(epochs))
        else:
            sizes = f"{self.batch_size}"
        digest = hashlib.sha256(sizes.encode())
        for epoch in range(epochs):
            digest.update(self.order(epoch).tobytes())
        return digest.hexdigest()


class OrderedSampler(Sampler):
    """The samples in their original order.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> sampler = d5.OrderedSampler(d5.ArrayDataset({"input": np.zeros((5, 3))}), batch_size=2)
    >>> [batch["input"].shape for ids, batch in sampler.batches(epoch=0)]  # the last batch is smaller
    [(2, 3), (2, 3), (1, 3)]
    >>> [ids.tolist() for ids, batch in sampler.batches(epoch=0, start=1)]  # as a resumed run continues
    [[2, 3], [4]]
    """

    def order(self, epoch: int) -> np.ndarray:
        """0, 1, …"""
        return np.arange(self._length, dtype=np.int64)


class ShuffleSampler(Sampler):
    """A new uniformly random order each epoch, drawn without replacement.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> sampler = d5.ShuffleSampler(d5.ArrayDataset({"input": np.zeros((6, 3))}), batch_size=4, seed=0)
    >>> for epoch in (0, 1, 0):
    ...     print([ids.tolist() for ids, batch in sampler.batches(epoch)])
    [[2, 1, 4, 5], [0, 3]]
    [[1, 0, 4, 3], [5, 2]]
    [[2, 1, 4, 5], [0, 3]]
    """

    def order(self, epoch: int) -> np.ndarray:
        """A permutation that is a function of (seed, epoch)."""
        order: np.ndarray = generator(self.seed, "order", epoch).permutation(self._length).astype(np.int64)
        return order


def seeded(transforms: object, seed: int) -> tuple[Callable[..., Any], ...]:
    """Transforms with a seed each, a function of the sampler's seed and the position; existing seeds are kept.

    Args:
        transforms: Functions of (inputs, ids, epoch); random ones have `seeded(seed)`, which returns a copy.
        seed: The sampler's.

    Raises:
        UsageError: Not a list, or an item cannot be called with a batch.
    """
    listed = transforms if isinstance(transforms, (list, tuple)) else None
    wrong = next((item for item in listed if isinstance(item, type) or not callable(item)), None) if listed else None
    if listed is None or wrong is not None:
        got = transforms if listed is None else wrong
        raise UsageError(
            f"got {brief(got)} as {'transforms' if listed is None else 'a transform'}; allowed: a list of transforms, "
            "or of functions of (inputs, ids, epoch); remedy: transforms=[d5.RandomCrop(32, padding=4)], say"
        )
    return tuple(
        item.seeded(derive_seed(seed, "transform", place)) if hasattr(item, "seeded") else item
        for place, item in enumerate(listed)
    )


def _check_batch_size(size: object, samples: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= samples:
        raise UsageError(f"batch size {size!r}; allowed: an integer from 1 to {samples} (all samples)")
