"""`Prefetched`: makes the next batches in the background while the trainer processes the current one."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from typing import Any

from deep5.core.errors import Deep5Error, UsageError, brief
from deep5.training.batch_source import Batch, BatchSource, first_batch
from deep5.training.sampler import Sampler

__all__ = ["Prefetched"]

# Maximum sleep of a thread before it checks again whether to stop.
_LOOK_S = 0.5
# How long the end of an epoch waits for threads in the middle of a batch; later they end by themselves.
_END_S = 5.0


class Prefetched:
    """The batches of a sampler, in the same order and with the same content, prefetched by threads.

    Prefetching helps if making a batch is slow and releases the GIL, like reading files, decoding images and NumPy's
    work on large arrays. The threads end with the epoch, when the iterator is closed or abandoned, and when making a
    batch fails: the error is then raised when that batch is requested.

    Args:
        sampler: The source of the batches.
        depth: Maximum number of prefetched batches, including those in progress.
        workers: Number of threads. More than one requires a sampler over a data set, with independent batches.
        timeout_s: Maximum time to wait for one batch.

    Attributes:
        stall_ns: Nanoseconds that the consumer has waited for batches, over all epochs.
        stalls: Batches that were not ready when requested, including the first of each epoch.
        taken: Batches delivered.

    Raises:
        UsageError: No sampler, a `depth` or `workers` that is not an integer of at least 1, more workers than `depth`,
            several workers for a sequential source, or a PyTorch `DataLoader`, which prefetches itself.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> sampler = d5.ShuffleSampler(d5.ArrayDataset({"input": np.arange(10)}), 4)
    >>> ahead = d5.Prefetched(sampler, depth=3)
    >>> [ids.tolist() for ids, _ in ahead.batches(0)] == [ids.tolist() for ids, _ in sampler.batches(0)]
    True
    >>> ahead.taken, ahead.stall_ns > 0
    (3, True)
    """

    def __init__(self, sampler: BatchSource, depth: int = 2, workers: int = 1, *, timeout_s: float = 600.0) -> None:
        if not isinstance(sampler, BatchSource):
            raise UsageError(f"Prefetched: got {brief(sampler)}; allowed: a d5.Sampler, or another source of batches")
        if reason := _no_prefetch(sampler):
            raise UsageError(f"Prefetched: got {reason}")
        for name, value in (("depth", depth), ("workers", workers)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"Prefetched: got {name}={value!r}; allowed: an integer of at least 1")
        if workers > depth:
            raise UsageError(
                f"Prefetched: got {workers} workers for a depth of {depth}; allowed: as many as the depth; remedy: "
                f"depth={workers}"
            )
        if workers > 1 and not _apart(sampler):
            raise UsageError(
                f"Prefetched: got workers={workers} for a {type(sampler).__name__}, which gives its batches in "
                "sequence; allowed: workers=1, or the framework's loader with its own workers"
            )
        number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
        if not number or not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise UsageError(f"Prefetched: got timeout_s={timeout_s!r}; allowed: seconds above 0")
        self.sampler, self.depth, self.workers, self.timeout_s = sampler, depth, workers, float(timeout_s)
        self.stall_ns = self.stalls = self.taken = 0

    def __getattr__(self, name: str) -> Any:
        # Further attributes of the sampler: its data set, batch size, seed.
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        """Batches of the first epoch."""
        return len(self.sampler)  # type: ignore[arg-type]

    def steps(self, epoch: int) -> int | None:
        """The sampler's number of batches.

        Args:
            epoch: Counted from 0.
        """
        return self.sampler.steps(epoch)

    def order_hash(self, epochs: int) -> str | None:
        """The sampler's hash.

        Args:
            epochs: Number of epochs, from the first.
        """
        return self.sampler.order_hash(epochs)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The sampler's batches; the threads start when the first one is requested.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning of the epoch.

        Raises:
            UsageError: `start` is not a batch number of this epoch.
            Deep5Error: A batch was not there in time.
        """
        start = first_batch(start, self.sampler.steps(epoch))
        return self._batches(epoch, start)

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        shelf = _Shelf(self.depth, *self._makers(epoch, start))
        threads = [
            threading.Thread(target=shelf.work, name=f"deep5-prefetch-{number}", daemon=True)
            for number in range(self.workers)
        ]
        # Stops the threads if the process exits in the middle of an epoch.
        end = weakref.finalize(self, _end, shelf, threads)
        try:
            for thread in threads:
                thread.start()
            for number in itertools.count():
                outcome, waited_ns = shelf.take(number, self.timeout_s, threads)
                self.stall_ns += waited_ns
                self.stalls += waited_ns > 0
                if outcome is None:
                    return
                if isinstance(outcome, _Failure):
                    raise outcome.error
                self.taken += 1
                # Drop the reference, so that the consumer's batch can be freed.
                given = [outcome]
                del outcome
                yield given.pop()
        finally:
            end()

    def _makers(self, epoch: int, start: int) -> tuple[Iterator[Callable[[], Any]], Callable[[], None]]:
        """The functions that make the batches, in order, and a function to call when no more are needed."""
        if self.workers > 1:
            sampler: Any = self.sampler
            if not isinstance(sampler, Sampler):
                return sampler.makers(epoch, start), _nothing
            return (functools.partial(sampler.make, ids, epoch) for ids in sampler.ids(epoch, start)), _nothing
        source = self.sampler.batches(epoch, start)
        return itertools.repeat(functools.partial(next, source, None)), getattr(source, "close", _nothing)


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """An exception raised while making a batch."""

    error: BaseException


class _Shelf:
    """Batches that are ready or in progress, by number.

    The consumer and the threads share only this object, so that an unreferenced iterator is collected and stops the
    threads.
    """

    def __init__(self, depth: int, makers: Iterator[Callable[[], Any]], close: Callable[[], None]) -> None:
        self._depth, self._makers, self._close = depth, makers, close
        self._condition = threading.Condition()
        self._ready: dict[int, Any] = {}
        self._begun = self._taken = 0
        self._over = False

    def work(self) -> None:
        """A thread's main loop: makes batches while there is room for them."""
        try:
            while (task := self._next()) is not None:
                number, make = task
                try:
                    outcome = make()
                except BaseException as error:
                    outcome = _Failure(error=error)
                with self._condition:
                    self._over |= outcome is None or isinstance(outcome, _Failure)
                    self._ready[number] = outcome
                    self._condition.notify_all()
                # Keep no reference to a batch while this thread waits for room.
                del outcome, make, task
        finally:
            self._close()

    def _next(self) -> tuple[int, Callable[[], Any]] | None:
        """The number of the next batch and the function that makes it; None when no more are needed."""
        with self._condition:
            while not self._over and self._begun - self._taken >= self._depth:
                self._condition.wait(_LOOK_S)
            if self._over:
                return None
            number = self._begun
            self._begun += 1
            try:
                return number, next(self._makers, _nothing)
            except Exception as error:
                return number, functools.partial(_raise, error)

    def take(self, number: int, timeout_s: float, threads: list[threading.Thread]) -> tuple[Any, int]:
        """The batch of this number, a failure, or None at the end; and nanoseconds waited, 0 if it was ready."""
        waited_ns = 0
        with self._condition:
            if number not in self._ready:
                begin = perf_counter_ns()
                self._wait(number, begin + round(timeout_s * 1e9), timeout_s, threads)
                waited_ns = perf_counter_ns() - begin
            outcome = self._ready.pop(number)
            self._taken = number + 1
            self._condition.notify_all()
        return outcome, waited_ns

    def _wait(self, number: int, deadline_ns: int, timeout_s: float, threads: list[threading.Thread]) -> None:
        while number not in self._ready:
            left_s = (deadline_ns - perf_counter_ns()) / 1e9
            if left_s <= 0:
                raise Deep5Error(
                    f"Prefetched: batch {number} after the start was not ready within {timeout_s:g} s; remedy: check "
                    "what the data set reads, or increase timeout_s"
                )
            if not any(thread.is_alive() for thread in threads):
                raise Deep5Error(
                    f"Prefetched: the threads ended before batch {number} after the start was made; remedy: take "
                    "batches before the process ends"
                )
            self._condition.wait(min(left_s, _LOOK_S))

    def end(self) -> None:
        """Request no more batches, and release those that are there."""
        with self._condition:
            self._over = True
            self._ready.clear()
            self._condition.notify_all()


def _end(shelf: _Shelf, threads: list[threading.Thread]) -> None:
    shelf.end()
    deadline = monotonic() + _END_S
    for thread in threads:
        # A thread may collect an abandoned iterator itself; one that never started cannot be joined.
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - monotonic()))


def _apart(source: Any) -> bool:
    """Whether a source's batches are independent: those of a sampler, or of a source that declares so with `makers`."""
    if isinstance(source, Sampler):
        return type(source).batches is Sampler.batches
    return getattr(source, "apart", False) is True and hasattr(type(source), "makers")


def _no_prefetch(source: Any) -> str:
    """Why a thread cannot make a source's batches, as the source declares; empty: it can."""
    reason = getattr(source, "no_prefetch", "")
    return reason if isinstance(reason, str) else ""


def _nothing() -> None:
    return None


def _raise(error: Exception) -> None:
    raise error
