"""`MappedDataset`: samples in memory-mapped files that are larger than a copy should be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import Dataset, fitted, sample_ids

__all__ = ["MappedDataset", "not_finite"]


class MappedDataset(Dataset):
    """Samples of memory-mapped arrays: only those of a batch are read, converted and checked.

    Args:
        arrays: Named arrays, all with the same first dimension.
        ids: The indices of the samples that belong to the data set, in order, int64.
        content_hash: SHA-256 of the arrays' content.
        dtypes: The dtype of each part, if it differs from the array's.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        ids: np.ndarray,
        *,
        content_hash: str,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self._arrays, self._ids, self._hash = dict(arrays), ids, content_hash
        self._dtypes = dict(dtypes or {name: str(array.dtype) for name, array in arrays.items()})
        self.specs = {
            name: TensorSpec(shape=array.shape[1:], dtype=self._dtypes[name]) for name, array in arrays.items()
        }

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._ids)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, read from the files; see `Dataset.batch`.

        Raises:
            UsageError: Also if a value is NaN or infinite; the message names the sample.
        """
        rows = self._ids[sample_ids(ids, len(self))]
        batch = {}
        for name, array in self._arrays.items():
            values = np.asarray(array[rows])
            if (place := not_finite(values)) is not None:
                row, *inner = place
                raise UsageError(_message(name, values[place], (int(rows[row]), *inner)))
            batch[name] = values.astype(numpy_dtype(self._dtypes[name]), copy=False)
        return batch

    def labels(self, name: str = "label") -> np.ndarray | None:
        """The labels, read from their file; see `Dataset.labels`."""
        array = self._arrays.get(name)
        return None if array is None or array.ndim != 1 else np.asarray(array[self._ids])

    def content_hash(self) -> str:
        """SHA-256 of the arrays, the chosen samples and their dtypes."""
        digest = hashlib.sha256(f"{self._hash} {sorted(self._dtypes.items())}\n".encode())
        digest.update(self._ids.astype(np.int64).tobytes())
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> MappedDataset:
        """The same files; floating parts are converted batch by batch."""
        return MappedDataset(self._arrays, self._ids, content_hash=self._hash, dtypes=fitted(self.specs, specs))


def not_finite(values: np.ndarray) -> tuple[int, ...] | None:
    """The place of the first value that is NaN or infinite, or None."""
    if values.dtype.kind != "f":
        return None
    finite = np.isfinite(values)
    if finite.all():
        return None
    return tuple(int(index) for index in np.unravel_index(int((~finite).argmax()), values.shape))


def _message(name: str, value: object, place: tuple[int, ...]) -> str:
    return (
        f"the array {name!r} is {value} at {place}; allowed: finite numbers; remedy: correct the file, or leave the "
        "sample out"
    )
