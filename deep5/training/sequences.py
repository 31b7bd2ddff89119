"""`SequenceDataset`: samples of different lengths, each batch padded to its longest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import Dataset, fitted, sample_ids

__all__ = ["SequenceDataset"]


class SequenceDataset(Dataset):
    """Sequences in memory, with further arrays per sample.

    A batch has each sequence's elements followed by padding, up to the longest sample of the batch or to the next
    multiple. An additional part marks the padding: the lengths, or a mask.

    Args:
        sequences: By name, one array per sample; its first dimension is the sample's length, the same for all names,
            and the other dimensions and the dtype are the same for all samples.
        arrays: By name, further data with one entry per sample, such as labels. The first dimension counts the samples.
        multiple: A batch's length is a multiple of it: fewer shapes to compile for.
        fill: The padding value; another type than the sequences' is rejected.
        length: Name of the part with the lengths, int64, shape (batch,); None: omit it.
        mask: Name of the part that is True for elements and False for padding, bool, shape (batch, longest); None: omit
            it.

    Attributes:
        lengths: The length of each sample, int64, shape (samples,).
        specs: See `Dataset`; the dimension of the elements has a name.

    Raises:
        UsageError: There are no sequences, or the parts are inconsistent.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.SequenceDataset({"input": [np.array([1, 2, 3]), np.array([4])]}, multiple=2, mask="mask")
    >>> batch = data.batch(np.array([1, 0]))
    >>> batch["input"].tolist(), batch["length"].tolist(), batch["mask"][0].tolist()
    ([[4, 0, 0, 0], [1, 2, 3, 0]], [1, 3], [True, False, False, False])
    >>> str(data.specs["input"])
    'int64[length]'
    """

    def __init__(
        self,
        sequences: Mapping[str, Sequence[np.ndarray]],
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        multiple: int = 1,
        fill: float = 0,
        length: str | None = "length",
        mask: str | None = None,
    ) -> None:
        if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
            raise UsageError(f"multiple: got {multiple!r}; allowed: an integer of at least 1")
        self._multiple, self._length, self._mask = multiple, length, mask
        self._arrays = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        listed = {name: [np.asarray(item) for item in items] for name, items in sequences.items()}
        self.lengths = _common_lengths(listed, self._arrays)
        self._begins = np.concatenate([[0], self.lengths.cumsum()[:-1]])
        self._values = {name: _joined(name, items) for name, items in listed.items()}
        self._fill = {name: _filling(name, values.dtype, fill) for name, values in self._values.items()}
        own = [name for name in (length, mask) if name is not None]
        names = [*self._values, *self._arrays, *own]
        if len(set(names)) < len(names):
            raise UsageError(f"a data set with the parts {', '.join(names)}; allowed: each name once")
        self.specs = {
            **{
                name: TensorSpec(shape=("length", *values.shape[1:]), dtype=str(values.dtype))
                for name, values in self._values.items()
            },
            **{name: TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)) for name, array in self._arrays.items()},
            **({} if length is None else {length: TensorSpec(shape=(), dtype="int64")}),
            **({} if mask is None else {mask: TensorSpec(shape=("length",), dtype="bool")}),
        }

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, padded to the longest of them; see `Dataset.batch`."""
        ids = sample_ids(ids, len(self))
        lengths = self.lengths[ids]
        longest = -(-int(lengths.max(initial=0)) // self._multiple) * self._multiple
        column = np.arange(longest)
        there = column < lengths[:, None]
        places = self._begins[ids][:, None] + column
        batch = {}
        for name, values in self._values.items():
            if values.size:
                # After the last element, indices are clipped; those values are overwritten by padding.
                filled = values.take(places, axis=0, mode="clip")
                filled[~there] = self._fill[name]
            else:
                filled = np.full((len(ids), longest, *values.shape[1:]), self._fill[name], values.dtype)
            batch[name] = filled
        batch |= {name: array.take(ids, axis=0) for name, array in self._arrays.items()}
        if self._length is not None:
            batch[self._length] = lengths
        if self._mask is not None:
            batch[self._mask] = there
        return batch

    def labels(self, name: str = "label") -> np.ndarray | None:
        """One of the arrays, or the lengths; see `Dataset.labels`."""
        return self.lengths if name == self._length else self._arrays.get(name)

    def content_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes, lengths, bytes and the padding options."""
        digest = hashlib.sha256(f"{self._multiple} {self._length} {self._mask} {self._fill}\n".encode())
        digest.update(self.lengths.data)
        for name, array in {**self._values, **self._arrays}.items():
            digest.update(f"{name} {array.dtype}{array.shape}\n".encode())
            digest.update(array.data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> SequenceDataset:
        """Converts once; parts that need no conversion are shared."""
        dtypes = fitted(self.specs, specs)
        for name in (self._length, self._mask):
            if name is not None and dtypes[name] != self.specs[name].dtype:
                raise UsageError(f"samples {name!r} are {self.specs[name].dtype} but the network takes {dtypes[name]}")
        other = object.__new__(SequenceDataset)
        other.__dict__.update(self.__dict__)
        other._values, other._arrays = (
            {name: array.astype(numpy_dtype(dtypes[name]), copy=False) for name, array in held.items()}
            for held in (self._values, self._arrays)
        )
        other.specs = {name: TensorSpec(shape=spec.shape, dtype=dtypes[name]) for name, spec in self.specs.items()}
        return other


def _common_lengths(listed: Mapping[str, list[np.ndarray]], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The samples' lengths, checked to be the same for all names."""
    counts = {name: len(items) for name, items in listed.items()} | {
        name: len(array) if array.ndim else -1 for name, array in arrays.items()
    }
    if not listed or len(set(counts.values())) != 1 or 0 in counts.values():
        got = ", ".join(f"{name}: {count} samples" for name, count in counts.items()) or "nothing"
        raise UsageError(f"sequences of {got}; allowed: at least one sequence, and one of each name for each sample")
    lengths = {}
    for name, items in listed.items():
        flat = next((number for number, item in enumerate(items) if item.ndim == 0), None)
        if flat is not None:
            raise UsageError(f"sample {flat} of {name!r} is {brief(items[flat])}; allowed: an array with a length")
        lengths[name] = np.array([len(item) for item in items], dtype=np.int64)
    first, *others = lengths
    for name in others:
        if (odd := np.flatnonzero(lengths[name] != lengths[first])).size:
            raise UsageError(
                f"sample {odd[0]} has {lengths[first][odd[0]]} elements of {first!r} and {lengths[name][odd[0]]} of "
                f"{name!r}; allowed: the same length"
            )
    return lengths[first]


def _joined(name: str, items: list[np.ndarray]) -> np.ndarray:
    """All samples of one name, concatenated."""
    for number, item in enumerate(items):
        if item.shape[1:] != items[0].shape[1:] or item.dtype != items[0].dtype:
            raise UsageError(
                f"sample {number} of {name!r} has elements {item.dtype}{list(item.shape[1:])} where sample 0 has "
                f"{items[0].dtype}{list(items[0].shape[1:])}; allowed: the same for all samples"
            )
    return np.ascontiguousarray(np.concatenate(items))


def _filling(name: str, dtype: np.dtype, fill: float) -> np.ndarray:
    """The padding value in the type of the sequences."""
    try:
        with np.errstate(invalid="ignore"):
            filling = np.asarray(fill).astype(dtype)
    except (TypeError, ValueError, OverflowError):
        filling = np.empty(0)
    if filling.shape != () or (dtype.kind in "iub" and filling != fill):
        raise UsageError(f"fill: got {brief(fill)}; allowed: a value of the type of {name!r}, {dtype}")
    return filling
