"""`ShardedSampler`: each rank's part of every batch, so that all ranks together read the batches of one rank."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.terminal import counted
from deep5.training.batch_source import Batch, BatchSource, batch_size_of, first_batch
from deep5.training.sampler import Sampler

__all__ = ["ShardedSampler", "part_of"]

# Number of batch sizes remembered: far more than are prefetched, because each prefetched batch is held in memory.
_KEPT = 4096

K = TypeVar("K")


def part_of(samples: int, rank: int, size: int) -> tuple[int, int]:
    """Begin and end of a rank's part of a batch: contiguous; the first ranks have one sample more if needed.

    Args:
        samples: Samples in the batch, on all ranks.
        rank: From 0 to `size` - 1.
        size: Number of ranks.

    >>> [part_of(10, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    share, more = divmod(samples, size)
    begin = rank * share + min(rank, more)
    return begin, begin + share + (rank < more)


class ShardedSampler:
    """A rank's part of each batch of a sampler. The concatenated batches of all ranks are the sampler's own.

    The sampler's batch size is that of all ranks together. Each of its batches is cut by `part_of`, so that every
    sample occurs exactly once for any number of ranks; order and transforms are functions of (seed, epoch) and (seed,
    epoch, sample), which every rank computes without communication.

    A last batch with fewer samples than ranks leaves some ranks without one. A step needs all ranks, so such a rank
    gets one borrowed sample, the batch's first, and ids of length 0, which mark it as not counted.

    Of a `Sampler`, only this rank's samples are read and transformed. Operations on a whole batch see only this rank's
    part: a `SequenceDataset` pads to the longest sample of the part, and a transform that mixes samples gives other
    results than on one rank. A source that yields batches sequentially, such as a stream or a framework's loader,
    **makes the whole batch on every rank**, which then takes its rows along the first dimension of each array: reading
    and decoding cost each rank as much as a single rank. NumPy's rows are views, which keep the whole batch in memory.

    Wrap it for prefetching: `Prefetched(ShardedSampler(sampler, rank, size), depth=2)`.

    Args:
        sampler: Source of the batches of all ranks; the same on each rank.
        rank: This rank.
        size: Number of ranks.
        borrow: Whether a batch without a sample of this rank comes with a borrowed one; otherwise it is skipped, which
            suits an evaluation, in which ranks need not step together. `start` counts the sampler's batches in either
            case.

    Attributes:
        sampler: As given; its other attributes are also available on this object.
        rank: As given.
        size: As given.
        borrow: As given.
        apart: Whether the batches can be made independently of each other, by `makers`.

    Raises:
        UsageError: The source is invalid or already sharded, the rank is invalid, or, with `borrow`, a batch has fewer
            samples than there are ranks.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> sampler = d5.OrderedSampler(d5.ArrayDataset({"input": np.arange(9)}), 4)
    >>> for rank in range(3):
    ...     [inputs["input"].tolist() for _, inputs in d5.ShardedSampler(sampler, rank, 3).batches(0)]
    [[0, 1], [4, 5], [8]]
    [[2], [6], [8]]
    [[3], [7], [8]]
    >>> d5.ShardedSampler(sampler, 2, 3).tail(0), [len(ids) for ids, _ in d5.ShardedSampler(sampler, 2, 3).batches(0)]
    ([1, 0, 0], [1, 1, 0])
    """

    def __init__(self, sampler: BatchSource, rank: int, size: int, *, borrow: bool = True) -> None:
        if isinstance(sampler, type) or not isinstance(sampler, BatchSource):
            raise UsageError(
                f"ShardedSampler: got {brief(sampler)}; allowed: a d5.Sampler, or another source of batches"
            )
        if hasattr(sampler, "global_batch_size"):
            raise UsageError(
                f"ShardedSampler: got a {type(sampler).__name__} that is already sharded; allowed: the sampler of "
                "all ranks; remedy: its attribute sampler"
            )
        if not is_whole(size) or size < 1:
            raise UsageError(f"ShardedSampler: got {brief(size)} ranks; allowed: an integer of at least 1")
        if not is_whole(rank) or not 0 <= rank < size:
            raise UsageError(f"ShardedSampler: got rank {brief(rank)}; allowed: from 0 to {size - 1}")
        self.sampler, self.rank, self.size, self.borrow = sampler, int(rank), int(size), bool(borrow)
        self.apart = isinstance(sampler, Sampler) and type(sampler).batches is Sampler.batches
        # Whether batches have a fixed number of samples, so that all sizes are known in advance.
        own: Any = type(sampler)
        self._even = self.apart and own.ids is Sampler.ids
        self._sizes: _Latest[tuple[int, int]] = _Latest()
        self._tails: _Latest[int] = _Latest()
        self._check_batch_size(0)

    def __getattr__(self, name: str) -> Any:
        # Other attributes of the sampler: its data set, batch size, seed.
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        """Batches of the first epoch.

        Raises:
            TypeError: The number is only known after the epoch.
        """
        steps = self.steps(0)
        if steps is None:
            raise TypeError(f"the batches of a sharded {type(self.sampler).__name__} are known only after its epoch")
        return steps

    def steps(self, epoch: int) -> int | None:
        """Batches of the epoch: those of the sampler without skipped ones; None while the number is unknown.

        Args:
            epoch: Counted from 0.
        """
        if self.borrow:
            return self.sampler.steps(epoch)
        if not self._even:
            return None
        (total, size), (share, rest) = self._extents(epoch), self._shares(epoch)
        return total // size * (share > 0) + (rest > 0)

    def order_hash(self, epochs: int) -> str | None:
        """The sampler's hash of the order of all ranks: the same on each.

        Args:
            epochs: Number of epochs, from the first.
        """
        return self.sampler.order_hash(epochs)

    def samples(self, epoch: int) -> int | None:
        """This rank's samples in the epoch, excluding borrowed ones; None while the number is unknown.

        Args:
            epoch: Counted from 0.
        """
        if not self._even:
            return None
        (total, size), (share, rest) = self._extents(epoch), self._shares(epoch)
        return total // size * share + rest

    def global_batch_size(self, epoch: int, batch: int) -> int | None:
        """Samples that all ranks have in one batch of an epoch.

        Args:
            epoch: From 0.
            batch: Its number in the sampler's epoch, from 0.

        Returns:
            The number; None: there is no such batch, or the source yields batches sequentially and this one is not
            among the last thousands that were read.
        """
        if not self._even:
            return self._sizes.get((epoch, batch))
        total, size = self._extents(epoch)
        left = total - batch * size
        return min(left, size) if left > 0 and batch >= 0 else None

    def tail(self, epoch: int) -> list[int] | None:
        """Each rank's number of samples in the epoch's last batch; None if it has not been read yet.

        Args:
            epoch: Counted from 0.
        """
        if self._even:
            total, size = self._extents(epoch)
            last: int | None = (total - 1) % size + 1
        else:
            last = self._tails.get(epoch)
        return None if last is None else self._cut(last)

    def describe(self, epoch: int = 0) -> dict[str, Any]:
        """How the epoch's batches are split, in JSON types: samples per rank of a batch and of the last one.

        Args:
            epoch: Counted from 0.
        """
        size = self._batch_size(epoch)
        return {
            "ranks": self.size,
            "batch": None if size is None else self._cut(size),
            "tail": self.tail(epoch),
            "reads": "own" if self.apart else "all",
        }

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's part of the epoch's batches from number `start` on: ids, and the samples by name.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning of the epoch.

        Raises:
            UsageError: `start` is not a batch number of this epoch, the epoch's batches have fewer samples than there
                are ranks, or an array's first dimension is not the number of samples.
        """
        self._check_batch_size(epoch)
        sampler = self.sampler
        if not self.apart:
            # A source that never resumes need not support `start`.
            return self._sliced(epoch, start, sampler.batches(epoch, start) if start else sampler.batches(epoch))
        own: Any = type(sampler)
        if self._even and own.make is Sampler.make and not sampler.transforms:  # type: ignore[attr-defined]
            return self._gathered(epoch, first_batch(start, sampler.steps(epoch)))
        return (make() for make in self.makers(epoch, start))

    def makers(self, epoch: int, start: int = 0) -> Iterator[Callable[[], Batch]]:
        """Functions that make the `batches`, callable in any order and in any thread.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning of the epoch.

        Returns:
            One function per batch, in the order of the epoch.

        Raises:
            UsageError: As for `batches`; or the source yields batches sequentially.
        """
        if not self.apart:
            raise UsageError(
                f"makers: a {type(self.sampler).__name__} gives one batch after the other; allowed: a d5.Sampler whose "
                "batches are made from ids; remedy: batches(epoch)"
            )
        self._check_batch_size(epoch)
        return self._makers(epoch, start, self.sampler.ids(epoch, start))  # type: ignore[attr-defined]

    def _makers(self, epoch: int, start: int, batches: Iterator[np.ndarray]) -> Iterator[Callable[[], Batch]]:
        make, known = self.sampler.make, None  # type: ignore[attr-defined]
        begin = end = 0
        for number, whole in enumerate(batches, start):
            if len(whole) != known:
                known = len(whole)
                begin, end = part_of(known, self.rank, self.size)
            if not self._even:
                self._sizes.put((epoch, number), known)
            if begin < end:
                yield functools.partial(make, whole[begin:end], epoch)
            elif self.borrow:
                yield functools.partial(_borrowed, make, whole[:1], epoch)
        if known and not self._even:
            self._tails.put(epoch, known)

    def _gathered(self, epoch: int, start: int) -> Iterator[Batch]:
        """`batches` if the data set's samples need no processing: it may gather many at a time."""
        sampler: Any = self.sampler
        size = sampler.epoch_batch_size(epoch)
        order = sampler.order(epoch)[start * size :]
        full, (begin, end) = len(order) // size * size, part_of(size, self.rank, self.size)
        own, rest = order[:full].reshape(-1, size)[:, begin:end].reshape(-1), order[full:]
        first, last = part_of(len(rest), self.rank, self.size)
        if first < last:
            own = np.concatenate([own, rest[first:last]])
        if len(own):
            yield from sampler.dataset.in_batches(own, end - begin)
        if self.borrow and first == last and len(rest):
            yield rest[:0], sampler.dataset.batch(rest[:1])

    def _sliced(self, epoch: int, start: int, batches: Iterator[Batch]) -> Iterator[Batch]:
        """`batches` if each batch is made as a whole."""
        total = 0
        for number, (ids, inputs) in enumerate(batches, start):
            total = batch_size_of(inputs) if ids is None else len(ids)
            self._sizes.put((epoch, number), total)
            begin, end = part_of(total, self.rank, self.size)
            if begin < end:
                yield None if ids is None else ids[begin:end], _rows(inputs, total, begin, end)
            elif self.borrow:
                # This rank has no sample, even if the ids of the other ranks' samples are unknown.
                yield np.empty(0, np.int64) if ids is None else ids[:0], _rows(inputs, total, 0, 1)
        if total:
            self._tails.put(epoch, total)

    def _cut(self, samples: int) -> list[int]:
        return [end - begin for begin, end in (part_of(samples, rank, self.size) for rank in range(self.size))]

    def _extents(self, epoch: int) -> tuple[int, int]:
        """Samples of the epoch and of a batch, on all ranks."""
        sampler: Any = self.sampler
        return sampler.samples(epoch), sampler.epoch_batch_size(epoch)

    def _shares(self, epoch: int) -> tuple[int, int]:
        """This rank's samples in a full batch and in the smaller one after them."""
        total, size = self._extents(epoch)
        (begin, end), (first, last) = (part_of(count, self.rank, self.size) for count in (size, total % size))
        return end - begin, last - first

    def _batch_size(self, epoch: int) -> int | None:
        """Samples per batch of the epoch on all ranks, if the source provides it."""
        of_epoch = getattr(self.sampler, "epoch_batch_size", None)
        found = of_epoch(epoch) if callable(of_epoch) else getattr(self.sampler, "batch_size", None)
        return int(found) if is_whole(found) else None

    def _check_batch_size(self, epoch: int) -> None:
        # Without borrowing, a rank without samples does nothing.
        size = self._batch_size(epoch) if self.borrow else None
        if size is not None and size < self.size:
            raise UsageError(
                f"ShardedSampler: got a global batch size of {size} (epoch {epoch}) for {self.size} ranks; allowed: at "
                f"least one sample for each rank; remedy: a batch_size of at least {self.size}, or at most "
                f"{counted(size, 'rank')}"
            )


class _Latest(Generic[K]):
    """Integers by key, the latest ones; written by the thread that reads batches, read by the trainer's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[K, int] = {}

    def put(self, key: K, value: int) -> None:
        with self._lock:
            # Move the key to the end, also if the batch was read before.
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > _KEPT:
                del self._values[next(iter(self._values))]

    def get(self, key: K) -> int | None:
        return self._values.get(key)


def _borrowed(make: Callable[..., Batch], first: np.ndarray, epoch: int) -> Batch:
    """One borrowed sample for a rank without samples."""
    ids, inputs = make(first, epoch)
    return ids[:0], inputs


def _rows(inputs: Mapping[str, Any], total: int, begin: int, end: int) -> dict[str, Any]:
    """A range of a batch's samples, in arrays of any library."""
    rows = {}
    for name, array in inputs.items():
        shape: Any = getattr(array, "shape", ())
        if not len(shape) or shape[0] != total:
            raise UsageError(
                f"a batch of {total} samples has {name!r} of shape {tuple(shape)}; allowed: arrays whose first "
                "dimension counts the samples, which the ranks share; remedy: a source that gives each sample its "
                "own row"
            )
        rows[name] = array[begin:end]
    return rows
