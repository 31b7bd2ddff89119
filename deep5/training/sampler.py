"""`Sampler`: the order and the batches of an epoch, every sample exactly once."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from deep5.errors import UsageError
from deep5.seeds import generator
from deep5.training.dataset import Dataset

__all__ = ["OrderedSampler", "Sampler", "ShuffleSampler"]


class Sampler(ABC):
    """Batches of a data set. The last batch of an epoch may be smaller; it is never dropped.

    Args:
        dataset: The samples.
        batch_size: Samples a batch.
        seed: The order is a function of (seed, epoch).

    Raises:
        UsageError: A batch size that is not a whole number between 1 and the size of the data set.
    """

    def __init__(self, dataset: Dataset, batch_size: int, *, seed: int = 0) -> None:
        if not isinstance(dataset, Dataset):
            raise UsageError(
                f"got a {type(dataset).__name__} as a data set; allowed: a d5.Dataset, such as the part 'train' of "
                "what a data set's function returns"
            )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= len(dataset):
            raise UsageError(
                f"batch size {batch_size!r}; allowed: a whole number from 1 to {len(dataset)} (all samples)"
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed

    @abstractmethod
    def order(self, epoch: int) -> np.ndarray:
        """Indices of the samples in this epoch's order, int64, each exactly once."""

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self.dataset) / self.batch_size)

    def batches(self, epoch: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The epoch's batches: indices, shape (batch,), and the samples by name."""
        order, size, batch = self.order(epoch), self.batch_size, self.dataset.batch
        for begin in range(0, len(order), size):
            ids = order[begin : begin + size]
            yield ids, batch(ids)

    def order_hash(self, epochs: int) -> str:
        """SHA-256 over batch size and order of the first epochs."""
        digest = hashlib.sha256(f"{self.batch_size}".encode())
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
