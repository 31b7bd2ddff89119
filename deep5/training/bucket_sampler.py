"""`BucketSampler`: batches of samples of similar length, to minimize padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.dataset import Dataset
from deep5.training.part_values import part_values
from deep5.training.sampler import Sampler

__all__ = ["BucketSampler"]


class BucketSampler(Sampler):
    """Batches of samples of similar length, in random order, each sample exactly once per epoch.

    The samples are shuffled and divided into pools of `pool` batches; each pool is sorted by length and cut into
    batches, and the epoch's batches are shuffled. A pool of one batch is a plain shuffle; a pool of all samples has the
    least padding and the least mixing. A smaller batch, if there is one, is the last; its lengths are random, too.

    The data set does the padding: `SequenceDataset` pads a batch to its longest sample.

    Args:
        dataset: The samples.
        batch_size: Samples per batch, or a function of the epoch.
        seed: The order is a function of (seed, epoch).
        transforms: See `Sampler`.
        length: The samples' lengths: one number per sample, the name of the part that holds it, or a function that maps
            samples by name to one number per sample. None: the data set's own `lengths`.
        pool: Batches per pool.

    Attributes:
        lengths: The length of each sample, shape (samples,).

    Raises:
        UsageError: The lengths are not valid, or `pool` is not an integer of at least 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.ArrayDataset({"length": np.array([9, 1, 8, 2, 9, 1])})
    >>> [inputs["length"].tolist() for _, inputs in d5.BucketSampler(data, 2, length="length").batches(0)]
    [[9, 9], [1, 1], [2, 8]]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | Callable[[int], int],
        *,
        seed: int = 0,
        transforms: Sequence[Callable[..., Any]] = (),
        length: str | np.ndarray | Callable[[Mapping[str, np.ndarray]], Any] | None = None,
        pool: int = 100,
    ) -> None:
        super().__init__(dataset, batch_size, seed=seed, transforms=transforms)
        if isinstance(pool, bool) or not isinstance(pool, int) or pool < 1:
            raise UsageError(f"pool: got {pool!r}; allowed: an integer of at least 1")
        if length is None and getattr(dataset, "lengths", None) is None:
            raise UsageError(
                f"bucket: the lengths of a {type(dataset).__name__}'s samples are not known; allowed: length= one "
                f"number for each sample, a function, or the name of a part: {', '.join(dataset.specs)}"
            )
        self.lengths = part_values(dataset, dataset.lengths if length is None else length, "length")  # type: ignore[attr-defined]
        self.pool = pool

    def order(self, epoch: int) -> np.ndarray:
        """Indices batch by batch, a function of (seed, epoch); a smaller batch comes last."""
        draw = generator(self.seed, "buckets", epoch)
        size = self.epoch_batch_size(epoch)
        order: np.ndarray = draw.permutation(self._length).astype(np.int64)
        stride, rest = self.pool * size, len(order) % size
        cut, smaller = [], order[:0]
        for begin in range(0, len(order), stride):
            pool = order[begin : begin + stride]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            if len(pool) % size:  # the last one
                at = int(draw.integers(len(pool) // size + 1)) * size
                pool, smaller = np.delete(pool, slice(at, at + rest)), pool[at : at + rest]
            cut.append(pool)
        batches = np.concatenate(cut).reshape(-1, size)
        return np.concatenate([batches[draw.permutation(len(batches))].reshape(-1), smaller])
