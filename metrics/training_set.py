"""The training set of a source of batches: its samples and labels, for metrics of the whole set."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.training.dataset import Dataset

__all__ = ["dataset_of", "first_batch", "labels_of"]

# The number of samples read at a time to collect labels.
_CHUNK = 256


def dataset_of(source: Any) -> Dataset | None:
    """The data set of a source of batches, also through prefetching wrappers; None if it has none with indices.

    Args:
        source: A trainer's sampler.
    """
    while source is not None:
        found = getattr(source, "dataset", None)
        if isinstance(found, Dataset):
            return found
        source = getattr(source, "source", getattr(source, "sampler", None))
    return None


def first_batch(source: Any) -> tuple[Any, Any]:
    """Indices and samples of the first epoch's first batch; prefetching is stopped afterwards."""
    batches = iter(source.batches(0))
    try:
        ids, inputs = next(batches)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    return ids, inputs


def labels_of(dataset: Dataset, name: str, *, read: bool = True) -> np.ndarray | None:
    """The labels of all samples.

    Args:
        dataset: The samples.
        name: The part that holds the labels.
        read: Whether to read them from the samples if the data set does not keep them.

    Returns:
        Integers of shape (samples, …), or None if there is no such part, it is not of an integer dtype, or it is not
        read.
    """
    spec = dataset.specs.get(name)
    if spec is None or np.dtype(spec.dtype).kind not in "iu":
        return None
    found = dataset.labels(name)
    if found is not None or not read:
        return found
    begins = range(0, len(dataset), _CHUNK)
    parts = [dataset.batch(np.arange(begin, min(begin + _CHUNK, len(dataset))))[name] for begin in begins]
    return np.concatenate(parts)
