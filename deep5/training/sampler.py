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
from deep5.training.dataset import Dataset

__all__ = ["OrderedSampler", "Sampler", "ShuffleSampler", "seeded"]


class Sampler(ABC):
    """Batches of a data set. The last batch of an epoch may be smaller; it is never dropped.

    Args:
        dataset: The samples.
        batch_size: Samples a batch; or a function of the epoch that gives them, such as `GrowingBatches`, of which
            more than all samples are never taken.
        seed: The order is a function of (seed, epoch), and what transforms draw one of (seed, epoch, sample).
        transforms: Applied to each batch, one after the other: `transform(inputs, ids, epoch) -> inputs`.

    Raises:
        UsageError: No data set, a batch size that is not a whole number between 1 and the size of the data set, or
            something that is no transform.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | Callable[[int], int],
        *,
        seed: int = 0,
        transforms: Sequence[Callable[..., Any]] = (),
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise UsageError(
                f"got a {type(dataset).__name__} as a data set; allowed: a d5.Dataset, such as the part 'train' of "
                "what a data set's function returns"
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.transforms = seeded(transforms, seed)
        _check_batch_size(batch_size(0) if callable(batch_size) else batch_size, len(dataset))

    @abstractmethod
    def order(self, epoch: int) -> np.ndarray:
        """Indices of the samples in this epoch's order, int64, each exactly once."""

    def samples(self, epoch: int) -> int:
        """Number of samples that the epoch takes: the length of its order."""
        return len(self.dataset)

    def epoch_batch_size(self, epoch: int) -> int:
        """Samples in the epoch's batches, the last one left aside.

        Raises:
            UsageError: A function of the epoch gives no whole number of at least 1.
        """
        if not callable(self.batch_size):
            return self.batch_size
        size = self.batch_size(epoch)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"batch size {size!r} of epoch {epoch}; allowed: a whole number of at least 1")
        return min(size, len(self.dataset))

    def __len__(self) -> int:
        """Batches of the first epoch."""
        return self.steps(0)

    def steps(self, epoch: int) -> int:
        """Batches of the epoch."""
        return -(-self.samples(epoch) // self.epoch_batch_size(epoch))

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The epoch's batches: indices, shape (batch,), and the samples by name.

        Args:
            epoch: Counted from 0.
            start: Batches to leave out at the beginning: nothing is gathered for them.

        Raises:
            UsageError: `start` is no number of batches of this epoch.
        """
        if self.transforms or type(self).make is not Sampler.make or type(self).ids is not Sampler.ids:
            ids, make = self.ids(epoch, start), self.make
            return (make(part, epoch) for part in ids)
        return self.dataset.in_batches(*self._rest(epoch, start))

    def ids(self, epoch: int, start: int = 0) -> Iterator[np.ndarray]:
        """The indices of the epoch's batches; see `batches`."""
        order, size = self._rest(epoch, start)
        return (order[first : first + size] for first in range(0, len(order), size))

    def _rest(self, epoch: int, start: int) -> tuple[np.ndarray, int]:
        """What is left of the epoch's order, and its batch size."""
        size = self.epoch_batch_size(epoch)
        begin = first_batch(start, self.steps(epoch)) * size if start else 0
        return self.order(epoch)[begin:], size

    def make(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The batch of these samples in this epoch: their indices, and the samples by name."""
        inputs = self.dataset.batch(ids)
        for transform in self.transforms:
            inputs = transform(inputs, ids, epoch)
        return ids, inputs

    def order_hash(self, epochs: int) -> str:
        """SHA-256 over batch size and order of the first epochs."""
        if callable(self.batch_size):
            sizes = ",".join(str(self.epoch_batch_size(epoch)) for epoch in range(epochs))
        else:
            sizes = f"{self.batch_size}"
        digest = hashlib.sha256(sizes.encode())
        for epoch in range(epochs):
            digest.update(self.order(epoch).tobytes())
        return digest.hexdigest()


class OrderedSampler(Sampler):
    """The samples as they stand."""

    def order(self, epoch: int) -> np.ndarray:
        """0, 1, …"""
        return np.arange(len(self.dataset), dtype=np.int64)


class ShuffleSampler(Sampler):
    """A new uniformly random order each epoch, drawn without replacement."""

    def order(self, epoch: int) -> np.ndarray:
        """A permutation that is a function of (seed, epoch)."""
        order: np.ndarray = generator(self.seed, "order", epoch).permutation(len(self.dataset)).astype(np.int64)
        return order


def seeded(transforms: object, seed: int) -> tuple[Callable[..., Any], ...]:
    """Transforms with a seed each, a function of the sampler's and of the place; what has a seed of its own keeps it.

    Args:
        transforms: Functions of (inputs, ids, epoch); those that draw have `seeded(seed)`, which gives a copy.
        seed: The sampler's.

    Raises:
        UsageError: No list, or something in it cannot be called with a batch.
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
        raise UsageError(f"batch size {size!r}; allowed: a whole number from 1 to {samples} (all samples)")
