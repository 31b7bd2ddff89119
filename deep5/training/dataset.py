"""`Dataset`: samples by index, as named arrays; `StreamDataset`: a sequence of samples of unknown number."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.notebook import render
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.gathering import gathered

__all__ = ["ArrayDataset", "Dataset", "Splits", "StreamDataset", "check_labels", "fitted", "sample_ids"]

_INT64 = np.dtype(np.int64)


class Dataset(ABC):
    """Indexed samples.

    Attributes:
        specs: Each named part of a sample, without the batch dimension.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Squares(d5.Dataset):
    ...     specs = {"input": d5.TensorSpec(shape=(), dtype="int64")}
    ...     def __len__(self): return 10
    ...     def batch(self, ids): return {"input": np.asarray(ids) ** 2}
    ...     def content_hash(self): return "squares of 0 to 9"
    ...     def cast(self, specs): return self
    >>> [batch["input"].tolist() for ids, batch in d5.OrderedSampler(Squares(), 4).batches(epoch=0)]
    [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
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
            UsageError: `ids` is not one-dimensional integers, or an index is out of range.
        """

    def in_batches(self, order: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Batches of `size` samples in this order, each with its indices; the last may be smaller.

        Args:
            order: int64, shape (samples,).
            size: Samples per batch, at least 1.

        Raises:
            UsageError: As `batch`.
        """
        batch = self.batch
        for first in range(0, len(order), size):
            ids = order[first : first + size]
            yield ids, batch(ids)

    @abstractmethod
    def content_hash(self) -> str:
        """SHA-256 of the samples' content."""

    @abstractmethod
    def cast(self, specs: Mapping[str, TensorSpec]) -> Dataset:
        """This data set with its floating parts converted to the dtypes of a network's inputs.

        Args:
            specs: The network's inputs, including the batch dimension.

        Raises:
            UsageError: A part differs from the network's input in name or shape, or integers would become floats.
        """

    def labels(self, name: str = "label") -> np.ndarray | None:
        """All values of one part in the order of the samples, if available without reading samples.

        Args:
            name: The part.

        Returns:
            An array of shape (samples, …), not to be modified, or None.
        """
        return None


class StreamDataset(ABC):
    """A sequence of samples whose number is known only at its end.

    A sampler groups them into batches (`StreamSampler`). The samples of an epoch depend only on the epoch, so that a
    run that resumes within an epoch continues with the correct sample.

    Attributes:
        specs: Each named part of a sample, without the batch dimension; a variable dimension has a name.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Lengths(d5.StreamDataset):
    ...     specs = {"input": d5.TensorSpec(shape=(), dtype="int64")}
    ...     def samples(self, epoch, start=0):
    ...         for line in ("to", "be", "or not")[start:]:
    ...             yield {"input": np.int64(len(line))}
    ...     def cast(self, specs): return self
    >>> [batch["input"].tolist() for ids, batch in d5.StreamSampler(Lengths(), 2).batches(epoch=0)]
    [[2, 2], [6]]
    """

    specs: dict[str, TensorSpec]

    @abstractmethod
    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The samples of an epoch.

        Args:
            epoch: Counts from 0; epochs may repeat and come in any order.
            start: Number of samples to skip at the beginning of the epoch.

        Returns:
            An iterator of samples: arrays of the shapes and dtypes of `specs`, by name, which the caller may keep.
        """

    @abstractmethod
    def cast(self, specs: Mapping[str, TensorSpec]) -> StreamDataset:
        """This stream with its floating parts converted to the dtypes of a network's inputs; see `Dataset.cast`.

        Args:
            specs: The network's inputs, including the batch dimension.
        """

    def content_hash(self) -> str | None:
        """SHA-256 of the samples' content, or None if it cannot be known without reading them."""
        return None


class ArrayDataset(Dataset):
    """Samples in memory or memory-mapped files.

    Args:
        arrays: Named arrays, all with the same first dimension.
        content_hash: SHA-256 of the arrays' content, if the caller knows it without reading all of them.

    Attributes:
        specs: See `Dataset`.

    Raises:
        UsageError: There are no arrays or no samples, or the numbers of samples differ.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.ArrayDataset({"input": np.zeros((5, 2), np.float32), "label": np.arange(5)})
    >>> len(data), data.batch(np.array([4, 0]))["label"].tolist()
    (5, [4, 0])
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], *, content_hash: str | None = None) -> None:
        lengths = {name: np.shape(array)[:1] for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or {(), (0,)} & set(lengths.values()):
            got = ", ".join(f"{name}: {np.shape(array)}" for name, array in arrays.items()) or "no arrays"
            raise UsageError(f"a data set of {got}; allowed: the same first dimension for all, above zero")
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
        """The samples with these indices, copied; see `Dataset.batch`."""
        if type(ids) is not np.ndarray or ids.dtype is not _INT64 or ids.ndim != 1:
            ids = _indices(ids)
        try:
            return {name: array.take(ids, axis=0) for name, array in self._arrays.items()}
        except IndexError as error:
            raise _no_sample(ids, self._length) from error

    def in_batches(self, order: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """See `Dataset.in_batches`; small batches are gathered in groups unless a subclass overrides `batch`."""
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
        """SHA-256 over names, shapes, dtypes and bytes, or the given hash."""
        if self._content_hash is not None:
            return self._content_hash
        digest = hashlib.sha256()
        for name, array in self._arrays.items():
            digest.update(f"{name} {array.dtype}{array.shape}\n".encode())
            # As bytes: not every element type supports the buffer protocol; bfloat16 does not.
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> ArrayDataset:
        """Converts once; parts that need no conversion are shared."""
        dtypes = fitted(self.specs, specs)
        arrays = {name: array.astype(numpy_dtype(dtypes[name]), copy=False) for name, array in self._arrays.items()}
        same = all(arrays[name] is array for name, array in self._arrays.items())
        # A given hash covers the original bits; that of a converted data set derives from it and the dtypes.
        known = self._content_hash
        if known is not None and not same:
            known = hashlib.sha256(f"{known} {sorted(dtypes.items())}".encode()).hexdigest()
        return ArrayDataset(arrays, content_hash=known)


def fitted(have: Mapping[str, TensorSpec], want: Mapping[str, TensorSpec]) -> dict[str, str]:
    """The dtype that each part of a sample needs for a network.

    Args:
        have: The samples' parts, without the batch dimension.
        want: The network's inputs, including the batch dimension.

    Raises:
        UsageError: A part differs from the network's input in name or shape, integers would become floats, or a
            conversion could change an integer.

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
        if wanted.mismatch((batch, *spec.shape), wanted.dtype):  # type: ignore[arg-type]  # a symbol matches none
            raise UsageError(f"samples {name!r} are {spec} but the network takes {wanted}")
        if not _converts(spec.dtype, wanted.dtype):
            remedy = f"{wanted.dtype} values in the data set, as by array.astype({wanted.dtype!r})"
            if spec.dtype == "uint8":
                remedy = "a transform that normalizes, or pixels='normalised'"
            raise UsageError(
                f"samples {name!r} are {spec.dtype} but the network takes {wanted.dtype}; remedy: {remedy}"
            )
    return {name: want[name].dtype for name in have}


def _converts(given: str, wanted: str) -> bool:
    """Whether a conversion preserves values, except for floating-point rounding."""
    one, other = numpy_dtype(given), numpy_dtype(wanted)
    if given == wanted or (_floating(one) and _floating(other)):
        return True
    return one.kind in "iu" and other.kind in "iu" and np.can_cast(one, other, casting="safe")


def _floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def sample_ids(ids: object, length: int) -> np.ndarray:
    """Indices of samples in the form that `Dataset.batch` requires: int64, 0 to `length` - 1.

    Args:
        ids: Integers, one-dimensional; negative ones count from the end.
        length: The number of samples.

    Raises:
        UsageError: `ids` is not one-dimensional integers, or an index is out of range.
    """
    array = _indices(ids)
    if array.size and not (-length <= array.min() and array.max() < length):
        raise _no_sample(array, length)
    return np.where(array < 0, array + length, array)


def check_labels(
    dataset: Dataset | StreamDataset, classes: int, *, name: str = "label", ignore: int | None = None, what: str = ""
) -> None:
    """Check that every label is one of a network's classes, if labels are available without reading samples.

    Args:
        dataset: The samples.
        classes: The network's number of classes.
        name: The part with the labels.
        ignore: A label that the network's loss ignores.
        what: The name of the samples for the message, for example "training".

    Raises:
        UsageError: A label is below 0 or not below `classes`; the message names the first such sample.
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
    used = labels if ignore is None else labels[labels != ignore]
    least, most = int(used.min()), int(used.max())
    needed = f"{most + 1} classes (labels {least} to {most})" if most >= classes else f"labels {least} to {most}"
    larger = f"a network of {most + 1} outputs, or " if most >= classes else ""
    raise UsageError(
        f"{name!r} of the {what + ' ' if what else ''}sample {place[0]} is {labels[place]}: the network has {classes} "
        f"outputs, the data set {needed}; allowed: 0 to {classes - 1} ({int(wrong.sum())} labels are out of range); "
        f"remedy: {larger}labels that count from 0"
    )


def _no_sample(ids: np.ndarray, length: int) -> UsageError:
    wrong = next(int(index) for index in ids if not -length <= index < length)
    return UsageError(
        f"batch: got the index {wrong} of a sample; allowed: 0 to {length - 1}, or from the end -1 to {-length}"
    )


def _indices(ids: object) -> np.ndarray:
    """Indices of samples converted to int64."""
    if type(ids) is np.ndarray and ids.dtype is _INT64 and ids.ndim == 1:
        return ids
    got = brief(ids)
    try:
        array = np.asarray(ids)
    except ValueError:  # ragged
        array = np.empty(())
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(
            f"batch: got {got} as indices of samples; allowed: a list of integers; remedy: batch(np.array([0, 1])), say"
        )
    return array.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The result of a data set's factory.

    Attributes:
        train: Training samples, a `Dataset` or a `StreamDataset`.
        test: Test samples, likewise.
        split_hash: SHA-256 of the assignment of samples to the parts; if empty, it is computed from both parts'
            contents when a run requests it.
        description: The source of the samples and the method of the split, in JSON types.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.ArrayDataset({"input": np.arange(6.0), "label": np.arange(6) % 2})
    >>> splits = d5.Splits(train=data, test=data, description={"source": "six numbers"})
    >>> len(splits.train), splits.test.labels().tolist(), splits.description["source"]
    (6, [0, 1, 0, 1, 0, 1], 'six numbers')
    """

    # Either kind of data set; with a union, users of indexed samples would have to prove that they are no stream.
    train: Any
    test: Any
    split_hash: str = ""
    description: dict[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)
