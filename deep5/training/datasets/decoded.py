"""`DecodedDataset`: samples by index that a function reads and decodes on access."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import Dataset, fitted, sample_ids

__all__ = ["DecodedDataset", "SampleSource", "checked_sample", "decoding_threads"]

_MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """Samples that are read on access.

    Attributes:
        length: Their number.
        specs: Each part of a sample; a variable dimension has a name.
        read: Returns the sample of an index, arrays by name, which the caller may keep.
        name: Names the sample of an index, for messages.
        content: SHA-256 of the content and of the decoding.
    """

    length: int
    specs: Mapping[str, TensorSpec]
    read: Callable[[int], Mapping[str, np.ndarray]]
    name: Callable[[int], str]
    content: Callable[[], str]


def decoding_threads(what: str, workers: int | None) -> int:
    """The number of decoding threads.

    Args:
        what: The data set, for messages.
        workers: The requested number; None: one per processor, up to eight.

    Raises:
        UsageError: Not an integer of at least 1.
    """
    if workers is None:
        return min(os.cpu_count() or 1, _MOST_WORKERS)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise UsageError(f"{what} with workers {brief(workers)}; allowed: None or an integer of at least 1")
    return workers


def checked_sample(
    sample: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec], name: str
) -> dict[str, np.ndarray]:
    """The sample, if its parts are those of the specs and finite.

    Raises:
        UsageError: A part has another shape or dtype, or a value is NaN or infinite; the message names the sample.
    """
    checked, where = {}, name.rstrip(",")
    for part, spec in specs.items():
        array = sample[part]
        if mismatch := spec.mismatch(array.shape, array.dtype.name):
            raise UsageError(f"{where}: {part!r}: {mismatch}; allowed: samples of one shape and dtype")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            place = np.unravel_index(int((~np.isfinite(array)).argmax()), array.shape)
            at = f" at {tuple(map(int, place))}" if place else ""
            raise UsageError(
                f"{where}: {part!r} is {array[place]}{at}; allowed: finite numbers; remedy: correct the sample, or "
                "leave it out"
            )
        checked[part] = array
    return checked


class DecodedDataset(Dataset):
    """Samples of a source by index, decoded by threads; neither order nor values depend on their number.

    Samples with variable dimensions are padded with zeros at their ends, to the largest of their batch.

    Args:
        source: Reads the samples.
        ids: The indices of its samples that belong to the data set, in order, int64.
        labels: Their labels, if known without reading, int64.
        workers: Decoding threads.
        dtypes: The dtype of each part, if it differs from the source's.
    """

    def __init__(
        self,
        source: SampleSource,
        ids: np.ndarray,
        *,
        labels: np.ndarray | None = None,
        workers: int = 1,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self._source, self._ids, self._labels, self._workers = source, ids, labels, workers
        self._dtypes = dict(dtypes or {name: spec.dtype for name, spec in source.specs.items()})
        self.specs = {
            name: TensorSpec(shape=spec.shape, dtype=self._dtypes[name]) for name, spec in source.specs.items()
        }

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._ids)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, read and decoded; see `Dataset.batch`.

        Raises:
            UsageError: Also if a sample cannot be read or differs from the specs; the message names it.
        """
        chosen = self._ids[sample_ids(ids, len(self))].tolist()
        if self._workers > 1 and len(chosen) > 1:
            with ThreadPoolExecutor(min(self._workers, len(chosen)), thread_name_prefix="deep5-decode") as pool:
                samples = list(pool.map(self._one, chosen))
        else:
            samples = [self._one(index) for index in chosen]
        return {
            name: _stacked([sample[name] for sample in samples], spec).astype(
                numpy_dtype(self._dtypes[name]), copy=False
            )
            for name, spec in self._source.specs.items()
        }

    def _one(self, index: int) -> dict[str, np.ndarray]:
        return checked_sample(self._source.read(index), self._source.specs, self._source.name(index))

    def labels(self, name: str = "label") -> np.ndarray | None:
        """The labels, if known; see `Dataset.labels`."""
        return self._labels if name == "label" else None

    def content_hash(self) -> str:
        """SHA-256 of the source's content, the chosen samples and their dtypes.

        Raises:
            UsageError: A file cannot be read.
        """
        digest = hashlib.sha256(f"{self._source.content()} {sorted(self._dtypes.items())}\n".encode())
        digest.update(self._ids.astype(np.int64).tobytes())
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> DecodedDataset:
        """The same samples; floating parts are converted after decoding."""
        return DecodedDataset(
            self._source, self._ids, labels=self._labels, workers=self._workers, dtypes=fitted(self.specs, specs)
        )


def _stacked(arrays: Sequence[np.ndarray], spec: TensorSpec) -> np.ndarray:
    if not arrays:
        return np.empty((0, *(0 if isinstance(n, str) else n for n in spec.shape)), numpy_dtype(spec.dtype))
    if all(isinstance(extent, int) for extent in spec.shape):
        return np.stack(arrays)
    largest = [max(extents) for extents in zip(*(array.shape for array in arrays), strict=True)]
    found = np.zeros((len(arrays), *largest), numpy_dtype(spec.dtype))
    for place, array in enumerate(arrays):
        found[place][tuple(map(slice, array.shape))] = array
    return found
