"""`Dataset`: samples by index, as named arrays."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.errors import UsageError, brief
from deep5.tensors import TensorSpec

__all__ = ["ArrayDataset", "Dataset", "Splits"]

_INT64 = np.dtype(np.int64)


class Dataset(ABC):
    """Indexed samples.

    Attributes:
        specs: Each named part of a sample, without the batch's axis.
    """

    specs: dict[str, TensorSpec]

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices.

        Args:
            ids: int64, shape (batch_size,).

        Returns:
            Arrays of shape (batch_size, *spec.shape), which the caller may keep.

        Raises:
            UsageError: `ids` are no whole numbers in one row, or one is of no sample.
        """

    @abstractmethod
    def content_hash(self) -> str:
        """SHA-256 of what the samples are."""

    @abstractmethod
    def cast(self, specs: Mapping[str, TensorSpec]) -> Dataset:
        """This data set with the floating parts in the dtypes that a network's inputs have.

        Args:
            specs: The network's inputs, the batch's axis included.

        Raises:
            UsageError: A part has another name or shape than the network's input, or integers would become floats.
        """


class ArrayDataset(Dataset):
    """Samples in memory.

    Args:
        arrays: Named arrays, all with the same first extent.

    Raises:
        UsageError: No array, no sample, or different numbers of samples.

    >>> data = ArrayDataset({"input": np.zeros((5, 2), np.float32), "label": np.arange(5)})
    >>> len(data), data.batch(np.array([4, 0]))["label"].tolist()
    (5, [4, 0])
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        lengths = {name: np.shape(array)[:1] for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or {(), (0,)} & set(lengths.values()):
            got = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items()) or "no arrays"
            raise UsageError(f"a data set of {got}; allowed: the same first extent for all, above zero")
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        self.specs = {
            name: TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)) for name, array in self._arrays.items()
        }
        self._length: int = next(iter(lengths.values()))[0]

    def __len__(self) -> int:
        """Number of samples."""
        return self._length

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, gathered; see `Dataset.batch`."""
        if type(ids) is not np.ndarray or ids.dtype is not _INT64 or ids.ndim != 1:
            ids = _indices(ids)
        # take is the fastest gather that NumPy has; fancy indexing costs half as much again on a small batch.
        try:
            return {name: array.take(ids, axis=0) for name, array in self._arrays.items()}
        except IndexError as error:
            wrong = next(int(index) for index in ids if not -self._length <= index < self._length)
            raise UsageError(
                f"batch: got the index {wrong} of a sample; allowed: 0 to {self._length - 1}, or from the end -1 to "
                f"{-self._length}"
            ) from error

    def content_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes."""
        digest = hashlib.sha256()
        for name, array in self._arrays.items():
            digest.update(f"{name} {array.dtype}{array.shape}\n".encode())
            digest.update(array.data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> ArrayDataset:
        """Converted once; what needs no conversion is shared."""
        if specs.keys() != self.specs.keys():
            raise UsageError(
                f"the data set has {sorted(self.specs)} but the network takes {sorted(specs)}; "
                "remedy: a data set whose parts are named as the network's inputs"
            )
        arrays = {}
        for name, array in self._arrays.items():
            want = specs[name]
            batch = next((extent for extent in want.shape[:1] if isinstance(extent, int)), 1)
            if want.mismatch((batch, *array.shape[1:]), want.dtype):
                raise UsageError(f"samples {name!r} are {self.specs[name]} but the network takes {want}")
            if array.dtype != want.dtype and not (array.dtype.kind == "f" and np.dtype(want.dtype).kind == "f"):
                raise UsageError(f"samples {name!r} are {array.dtype} but the network takes {want.dtype}")
            arrays[name] = array.astype(want.dtype, copy=False)
        return ArrayDataset(arrays)


def _indices(ids: object) -> np.ndarray:
    """Indices of samples that are no int64 array yet."""
    told = brief(ids)
    try:
        array = np.asarray(ids)
    except ValueError:  # ragged
        array = np.empty(())
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(
            f"batch: got {told} as indices of samples; allowed: whole numbers in one row; remedy: "
            "batch(np.array([0, 1])), say"
        )
    return array.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """What a data set's factory returns.

    Attributes:
        train: Samples to learn from.
        test: Samples to judge by.
        split_hash: SHA-256 of which sample went where.
        description: Where the samples come from and how the split was made, in JSON's types.
    """

    train: Dataset
    test: Dataset
    split_hash: str
    description: dict[str, Any]
