"""`Dataset`: samples by index, as named arrays; `StreamDataset`: samples one after the other, their number unknown."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.gathering import gathered

__all__ = ["ArrayDataset", "Dataset", "Splits", "StreamDataset", "check_labels", "fitted", "sample_ids"]

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

    def in_batches(self, order: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The samples in this order, so many a batch, each batch with its indices; the last may be smaller.

        Args:
            order: int64, shape (samples,).
            size: Samples a batch, at least 1.

        Raises:
            UsageError: As `batch`.
        """
        batch = self.batch
        for first in range(0, len(order), size):
            ids = order[first : first + size]
            yield ids, batch(ids)

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

    def labels(self, name: str = "label") -> np.ndarray | None:
        """All values of one part in the order of the samples, where they are at hand without reading samples.

        Args:
            name: The part.

        Returns:
            An array of shape (samples, …) that is not to be changed, or None.
        """
        return None


class StreamDataset(ABC):
    """Samples that come one after the other; how many is known when they have ended.

    A sampler gathers them into batches (`StreamSampler`). The samples of an epoch are a function of the epoch alone, so
    that a run that is resumed in the middle of one goes on with the sample that it would have had.

    Attributes:
        specs: Each named part of a sample, without the batch's axis; an extent that varies has a name.
    """

    specs: dict[str, TensorSpec]

    @abstractmethod
    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The samples of an epoch.

        Args:
            epoch: Counts from 0; may be asked for again, and in any order.
            start: How many of the epoch's samples to leave out at its beginning.

        Returns:
            An iterator of samples: arrays of the shapes and dtypes of `specs`, by name, which the caller may keep.
        """

    @abstractmethod
    def cast(self, specs: Mapping[str, TensorSpec]) -> StreamDataset:
        """This stream with the floating parts in the dtypes that a network's inputs have; see `Dataset.cast`."""

    def content_hash(self) -> str | None:
        """SHA-256 of what the samples are, or None where nobody can know that without reading them."""
        return None


class ArrayDataset(Dataset):
    """Samples in memory, or in files that are mapped into it.

    Args:
        arrays: Named arrays, all with the same first extent.
        content_hash: SHA-256 of what the arrays hold, where the caller knows it better than by reading all of them.

    Raises:
        UsageError: No array, no sample, or different numbers of samples.

    >>> data = ArrayDataset({"input": np.zeros((5, 2), np.float32), "label": np.arange(5)})
    >>> len(data), data.batch(np.array([4, 0]))["label"].tolist()
    (5, [4, 0])
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], *, content_hash: str | None = None) -> None:
        lengths = {name: np.shape(array)[:1] for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or {(), (0,)} & set(lengths.values()):
            got = ", ".join(f"{name}: {np.shape(array)}" for name, array in arrays.items()) or "no arrays"
            raise UsageError(f"a data set of {got}; allowed: the same first extent for all, above zero")
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        self.specs = {
            name: TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)) for name, array in self._arrays.items()
        }
        self._length: int = next(iter(lengths.values()))[0]
        self._content_hash = content_hash

    def __len__(self) -> int:
        """Number of samples."""
        return self._length

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, gathered; see `Dataset.batch`."""
        if type(ids) is not np.ndarray or ids.dtype is not _INT64 or ids.ndim != 1:
            ids = _indices(ids)
        try:
            return {name: array.take(ids, axis=0) for name, array in self._arrays.items()}
        except IndexError as error:
            raise _no_sample(ids, self._length) from error

    def in_batches(self, order: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """See `Dataset.in_batches`; small ones are gathered many at a time, where `batch` is not a subclass's own."""
        if type(self).batch is not ArrayDataset.batch:
            yield from super().in_batches(order, size)
            return
        try:
            yield from gathered(self._arrays, _indices(order), size)
        except IndexError as error:
            raise _no_sample(order, self._length) from error

    def labels(self, name: str = "label") -> np.ndarray | None:
        """One of the arrays; see `Dataset.labels`."""
        return self._arrays.get(name)

    def content_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes, or what the caller gave in its place."""
        if self._content_hash is not None:
            return self._content_hash
        digest = hashlib.sha256()
        for name, array in self._arrays.items():
            digest.update(f"{name} {array.dtype}{array.shape}\n".encode())
            # As bytes: not every element type gives its memory out as itself, bfloat16 does not.
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> ArrayDataset:
        """Converted once; what needs no conversion is shared."""
        dtypes = fitted(self.specs, specs)
        arrays = {name: array.astype(numpy_dtype(dtypes[name]), copy=False) for name, array in self._arrays.items()}
        same = all(arrays[name] is array for name, array in self._arrays.items())
        # A hash that was given is of these bits; of others it is made anew, from it and from their dtypes.
        known = self._content_hash
        if known is not None and not same:
            known = hashlib.sha256(f"{known} {sorted(dtypes.items())}".encode()).hexdigest()
        return ArrayDataset(arrays, content_hash=known)


def fitted(have: Mapping[str, TensorSpec], want: Mapping[str, TensorSpec]) -> dict[str, str]:
    """The dtype that each part of a sample is to have for a network.

    Args:
        have: The samples' parts, without the batch's axis.
        want: The network's inputs, the batch's axis included.

    Raises:
        UsageError: A part has another name or shape than the network's input, integers would become floats, or a
            conversion could change a whole number.

    >>> fitted({"x": TensorSpec(shape=(3,))}, {"x": TensorSpec(shape=("N", 3), dtype="float64")})
    {'x': 'float64'}
    """
    if want.keys() != have.keys():
        raise UsageError(
            f"the data set has {sorted(have)} but the network takes {sorted(want)}; "
            "remedy: a data set whose parts are named as the network's inputs"
        )
    for name, spec in have.items():
        wanted = want[name]
        batch = next((extent for extent in wanted.shape[:1] if isinstance(extent, int)), 1)
        if wanted.mismatch((batch, *spec.shape), wanted.dtype):  # type: ignore[arg-type]  # an extent's name fits none
            raise UsageError(f"samples {name!r} are {spec} but the network takes {wanted}")
        if not _converts(spec.dtype, wanted.dtype):
            remedy = "; remedy: a transform that normalises, or pixels='normalised'" if spec.dtype == "uint8" else ""
            raise UsageError(f"samples {name!r} are {spec.dtype} but the network takes {wanted.dtype}{remedy}")
    return {name: want[name].dtype for name in have}


def _converts(given: str, wanted: str) -> bool:
    """Whether values become no others by a conversion, rounding of floating ones left aside."""
    one, other = numpy_dtype(given), numpy_dtype(wanted)
    if given == wanted or (_floating(one) and _floating(other)):
        return True
    return one.kind in "iu" and other.kind in "iu" and np.can_cast(one, other, casting="safe")


def _floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def sample_ids(ids: object, length: int) -> np.ndarray:
    """Indices of samples as `Dataset.batch` takes them: int64, 0 to `length` - 1.

    Args:
        ids: Whole numbers in one row; those below zero count from the end.
        length: How many samples there are.

    Raises:
        UsageError: `ids` are no whole numbers in one row, or one is of no sample.
    """
    array = _indices(ids)
    if array.size and not (-length <= array.min() and array.max() < length):
        raise _no_sample(array, length)
    return np.where(array < 0, array + length, array)


def check_labels(
    dataset: Dataset | StreamDataset, classes: int, *, name: str = "label", ignore: int | None = None, what: str = ""
) -> None:
    """Check that every label is one of a network's classes, where the labels are at hand without reading samples.

    Args:
        dataset: The samples.
        classes: The network's number of classes.
        name: The part that holds the labels.
        ignore: A label that the network's loss leaves out.
        what: Which samples they are, for the message: "training", say.

    Raises:
        UsageError: A label is below 0 or not below `classes`; the message names the first sample that has one.
    """
    labels = dataset.labels(name) if isinstance(dataset, Dataset) else None
    if labels is None or labels.dtype.kind not in "iu":
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignore is not None:
        wrong &= labels != ignore
    if not wrong.any():
        return
    place = np.unravel_index(int(wrong.argmax()), labels.shape)
    raise UsageError(
        f"{name!r} of the {what + ' ' if what else ''}sample {place[0]} is {labels[place]}; allowed: 0 to "
        f"{classes - 1}, the network's {classes} classes ({int(wrong.sum())} labels are out of range); remedy: a "
        f"network of {int(labels.max()) + 1} classes, or labels that count from 0"
    )


def _no_sample(ids: np.ndarray, length: int) -> UsageError:
    wrong = next(int(index) for index in ids if not -length <= index < length)
    return UsageError(
        f"batch: got the index {wrong} of a sample; allowed: 0 to {length - 1}, or from the end -1 to {-length}"
    )


def _indices(ids: object) -> np.ndarray:
    """Indices of samples that are no int64 array yet."""
    if type(ids) is np.ndarray and ids.dtype is _INT64 and ids.ndim == 1:
        return ids
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
        train: Samples to learn from, a `Dataset` or a `StreamDataset`.
        test: Samples to judge by, likewise.
        split_hash: SHA-256 of which sample went where; where it is empty, that of both parts' contents, computed when a
            run asks for it.
        description: Where the samples come from and how the split was made, in JSON's types.
    """

    # Either kind of data set; a union would make everybody who has samples by index prove that they are no stream.
    train: Any
    test: Any
    split_hash: str = ""
    description: dict[str, Any] = field(default_factory=dict)
