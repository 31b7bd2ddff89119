"""`held_out`: a validation part of the training samples, which choices are made by instead of by test samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Dataset, Splits, sample_ids
from deep5.training.datasets.splitting import drawn, split_hash, stratified

__all__ = ["Subset", "held_out"]

# Always the same split: runs with other seeds and settings are compared on the same validation samples.
_SEED = 0
# What data sets have besides samples: for all samples together, and one value per sample.
_SHARED, _PER_SAMPLE = ("token_bytes", "vocabulary"), ("lengths",)


class Subset(Dataset):
    """Some of the samples of a data set, in a separate order.

    Args:
        dataset: The samples.
        ids: Indices of those that belong to the subset, int64, shape (samples,).

    Attributes:
        specs: As those of the data set.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.ArrayDataset({"input": np.arange(6.0), "label": np.arange(6) % 2})
    >>> odd = Subset(data, np.array([5, 3, 1]))
    >>> len(odd), odd.batch(np.array([0, 2]))["input"].tolist(), odd.labels().tolist()
    (3, [5.0, 1.0], [1, 1, 1])
    """

    def __init__(self, dataset: Dataset, ids: np.ndarray) -> None:
        self._dataset, self._ids, self.specs = dataset, ids, dataset.specs
        for name in _SHARED:
            if hasattr(dataset, name):
                setattr(self, name, getattr(dataset, name))
        for name in _PER_SAMPLE:
            if (values := getattr(dataset, name, None)) is not None:
                setattr(self, name, values[ids])

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._ids)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices; see `Dataset.batch`."""
        return self._dataset.batch(self._ids[sample_ids(ids, len(self))])

    def in_batches(self, order: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """See `Dataset.in_batches`; as fast as the data set's own."""
        places = np.arange(0, len(order), size)
        batches = self._dataset.in_batches(self._ids[sample_ids(order, len(self))], size)
        for first, (_, batch) in zip(places, batches, strict=True):
            yield order[first : first + size], batch

    def content_hash(self) -> str:
        """SHA-256 of the whole data set's content and of the indices."""
        return hashlib.sha256(f"{self._dataset.content_hash()} {split_hash(self._ids)}".encode()).hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> Subset:
        """See `Dataset.cast`."""
        return Subset(self._dataset.cast(specs), self._ids)

    def labels(self, name: str = "label") -> np.ndarray | None:
        """See `Dataset.labels`."""
        labels = self._dataset.labels(name)
        return None if labels is None else labels[self._ids]


def _has_several_of_each(labels: np.ndarray) -> bool:
    """Whether labels are classes with at least two samples each."""
    return labels.ndim == 1 and labels.dtype.kind in "iu" and int(np.unique(labels, return_counts=True)[1].min()) > 1


def held_out(splits: Splits, share: float) -> Splits:
    """A data set whose test part is held out of the training samples; the test samples are not in it.

    The split is always the same, and stratified by class if the samples have integer labels.

    Args:
        splits: The data set.
        share: Fraction of the training samples to hold out, above 0 and below 1.

    Raises:
        UsageError: The training samples cannot be counted, or there is only one.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=60, test=6)
    >>> splits = held_out(data, 0.1)
    >>> len(splits.train), len(splits.test), splits.description["validation"]
    (54, 6, '0.1 of the training samples, stratified by class; the test samples are not used')
    """
    data: Any = splits.train
    if not isinstance(data, Dataset):
        raise UsageError(
            f"a {type(data).__name__} cannot be split into training and validation samples; allowed: a data set whose "
            "samples have indices; remedy: validation=None, which evaluates the test samples"
        )
    labels = data.labels()
    if labels is not None and _has_several_of_each(labels):
        train, test = stratified(labels, share, _SEED)
        how = ", stratified by class"
    else:
        (train, test), how = drawn("a data set", len(data), share, _SEED), ""
    train = np.sort(train)
    return Splits(
        train=Subset(data, train),
        test=Subset(data, test),
        split_hash=hashlib.sha256(f"{splits.split_hash} {split_hash(train, test)}".encode()).hexdigest(),
        description={
            **splits.description,
            "samples": {"train": len(train), "test": len(test)},
            "validation": f"{share:g} of the training samples{how}; the test samples are not used",
        },
    )
