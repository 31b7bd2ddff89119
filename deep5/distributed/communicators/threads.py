"""Ranks as threads of one process: runs a scheme without a launcher."""

from __future__ import annotations

import atexit
import functools
import platform
import signal
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, TypeVar

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Request
from deep5.core.errors import CommunicationError, OperationTimeout, UsageError
from deep5.core.python_source import parse_in_turn
from deep5.core.worker_threads import begin
from deep5.distributed.communicators.base_communicator import CountedCommunicator

__all__ = ["ThreadCommunicator", "run_in_threads"]

T = TypeVar("T")
# How long the end of the process waits for ranks that are still running.
_LEAVE_S = 20.0
# Ranks that wait notice a failure within half a second; one that hangs does not.
_FAILED_S = 5.0
_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class _Meeting:
    """One collective operation: the last rank to arrive executes it for all."""

    def __init__(self, size: int) -> None:
        self.given: list[tuple[Any, ...] | None] = [None] * size
        self.finished = False
        self.finished_ns: int | None = None
        self.result: Any = None


class _Group:
    """The state shared by the ranks of a communicator."""

    def __init__(
        self, ranks: Sequence[int], lost: threading.Event, reasons: list[str], threads: dict[int, int]
    ) -> None:
        self.ranks, self.size, self.lost, self.reasons, self.threads = ranks, len(ranks), lost, reasons, threads
        self.condition = threading.Condition()
        self.meetings: dict[tuple[str, int], _Meeting] = {}
        self.letters: dict[tuple[int, int, int], deque[bytes]] = defaultdict(deque)

    def check(self) -> None:
        if self.lost.is_set():
            raise CommunicationError(f"another rank is lost: {self.reasons[0]}")

    def absent(self, places: Sequence[int]) -> str:
        """Ranks that have not arrived, and where their threads are, as the part of a message."""
        frames, missing = sys._current_frames(), []
        for rank in (self.ranks[place] for place in places):
            frame = frames.get(self.threads.get(rank, -1))
            at = f", which is at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""
            missing.append(f"rank {rank} on {platform.node()}{at}")
        return f"; not there: {', '.join(missing)}" if missing else ""


class ThreadCommunicator(CountedCommunicator):
    """A rank of `run_in_threads`. Results are combined in rank order, so that they are reproducible bit for bit."""

    tells_ends = True

    def __init__(self, rank: int, group: _Group) -> None:
        super().__init__(rank, group.size)
        self._group = group
        self._counts = {"now": 0, "later": 0}

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        if name in ("send", "receive"):
            self._call_start(name, *given).wait(timeout_s)
        else:
            self._meet("now", name, given).wait(timeout_s)

    def _call_start(self, name: str, *given: Any) -> Request:
        group = self._group
        if name == "send":
            buffer, to, tag = given
            group.check()
            with group.condition:
                group.letters[self.rank, to, tag].append(buffer.tobytes())
                group.condition.notify_all()
            return _Pending(group, lambda: True, "send")
        if name == "receive":
            return _Receipt(group, self.rank, *given)
        return self._meet("later", name, given)

    def _meet(self, queue: str, name: str, given: tuple[Any, ...]) -> Request:
        group, number = self._group, self._counts[queue]
        self._counts[queue] += 1
        group.check()
        with group.condition:
            meeting = group.meetings.setdefault((queue, number), _Meeting(self.size))
            meeting.given[self.rank] = (name, *given)
            if all(entry is not None for entry in meeting.given):
                del group.meetings[queue, number]
                calls: list[Any] = meeting.given
                try:
                    _check_same(calls)
                    meeting.result = _carry_out(calls, group)
                except CommunicationError as error:
                    meeting.result = error
                meeting.finished_ns, meeting.finished = perf_counter_ns(), True
                group.condition.notify_all()
        return _Pending(group, lambda: meeting.finished, name, meeting)

    def split(self, color: int, *, key: int | None = None) -> ThreadCommunicator:
        """The ranks of one color; see `Communicator.split`."""
        if isinstance(color, bool) or not isinstance(color, int) or color < 0:
            raise UsageError(f"split: got color {color!r}; allowed: an integer of at least 0")
        pending = self._meet("now", "split", (color, self.rank if key is None else key))
        pending.wait(TIMEOUT_S)
        groups = pending.result()  # type: ignore[attr-defined]
        place, group = groups[self.rank]
        return ThreadCommunicator(place, group)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class _Pending:
    """An operation at which other ranks must still arrive."""

    def __init__(
        self,
        group: _Group,
        finished: Callable[[], bool],
        name: str,
        meeting: _Meeting | None = None,
        source: int | None = None,
    ) -> None:
        self._group, self._finished, self._name, self._meeting = group, finished, name, meeting
        self._source = source

    def _absent(self) -> list[int]:
        if self._meeting is None:
            return [] if self._source is None else [self._source]
        return [place for place, given in enumerate(self._meeting.given) if given is None]

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        group, deadline = self._group, monotonic() + timeout_s
        with group.condition:
            while not self._finished():
                group.check()
                left_s = deadline - monotonic()
                if left_s <= 0:
                    raise OperationTimeout(
                        f"{self._name} was not finished within {timeout_s:g} s{group.absent(self._absent())}; remedy: "
                        "every rank has to call the same collectives in the same order"
                    )
                group.condition.wait(min(left_s, 0.5))
        if self._meeting is not None and isinstance(self._meeting.result, CommunicationError):
            raise self._meeting.result

    def done(self) -> bool:
        return self._finished()

    @property
    def finished_ns(self) -> int | None:
        return None if self._meeting is None else self._meeting.finished_ns

    def result(self) -> Any:
        return None if self._meeting is None else self._meeting.result


class _Receipt:
    """A message that may not have been sent yet."""

    def __init__(self, group: _Group, rank: int, buffer: np.ndarray, source: int, tag: int) -> None:
        self._group, self._key, self._buffer = group, (source, rank, tag), buffer
        self._taken = False

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        source = self._key[0]
        _Pending(self._group, self._take, f"receive from rank {source}", source=source).wait(timeout_s)

    def done(self) -> bool:
        with self._group.condition:
            return self._take()

    def _take(self) -> bool:
        letters = self._group.letters[self._key]
        if not self._taken and letters:
            content = letters.popleft()
            if len(content) != self._buffer.nbytes:
                raise CommunicationError(
                    f"a message of {len(content)} bytes from rank {self._key[0]}; allowed: {self._buffer.nbytes}, the "
                    "size of the buffer"
                )
            self._buffer.reshape(-1).view(np.uint8)[:] = np.frombuffer(content, np.uint8)
            self._taken = True
        return self._taken


def run_in_threads(size: int, function: Callable[[ThreadCommunicator], T], *, timeout_s: float = TIMEOUT_S) -> list[T]:
    """Call a function once per rank with its communicator: rank 0 in this thread, the others in their own threads.

    Args:
        size: Number of ranks.
        function: Takes the rank's communicator.
        timeout_s: How long the other ranks may take after rank 0 has ended, which is limited by its own waits. After a
            failure it is 5 s at most.

    Returns:
        The function's results in rank order.

    Raises:
        CommunicationError: The ranks do not finish in time.
        Exception: Raised by the first failed rank; the others are notified and end.

    >>> def total(communicator):
    ...     value = np.array([communicator.rank + 1.0])
    ...     communicator.all_reduce(value)
    ...     return float(value[0])
    >>> run_in_threads(3, total)
    [6.0, 6.0, 6.0]
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"run_in_threads: got {size!r} ranks; allowed: an integer of at least 1")
    lost, reasons = threading.Event(), [""]
    group = _Group(range(size), lost, reasons, {})
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []
    alarm = threading.Event()

    def work(rank: int) -> None:
        group.threads[rank] = threading.get_ident()
        begin()
        try:
            results[rank] = function(ThreadCommunicator(rank, group))
        except BaseException as error:
            failed(rank, error)

    def failed(rank: int, error: BaseException) -> None:
        with group.condition:
            errors.append((rank, error))
            if not lost.is_set():
                reasons[0] = f"rank {rank} raised {type(error).__name__}: {error}"
                lost.set()
            group.condition.notify_all()
        if rank and any(isinstance(each, OperationTimeout) for each in (error, error.__cause__)):
            alarm.set()

    parse_in_turn()
    others = range(1, size)
    threads = [threading.Thread(target=work, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in others]
    _at_exit().extend(threads)
    try:
        for thread in threads:
            thread.start()
        with _woken(alarm, group):
            work(0)
        with suppress(RuntimeError):
            # A signal may arrive between the acquisition of the lock and its block: then this thread still holds the
            # lock.
            while errors:
                group.condition.release()
        _join(threads, monotonic() + (min(timeout_s, _FAILED_S) if errors else timeout_s))
    except BaseException as error:
        # A signal outside of rank 0's function.
        failed(0, error)
        raise
    if errors:
        # Only the thread of rank 0 gets signals; the others only report that another rank got one.
        own = (error for rank, error in errors if rank == 0 and isinstance(error, KeyboardInterrupt))
        raise next(own, errors[0][1])
    if any(thread.is_alive() for thread in threads):
        reasons[0] = "the timeout of all ranks expired"
        lost.set()
        raise CommunicationError(f"the ranks did not finish within {timeout_s:g} s")
    return results


@contextmanager
def _woken(alarm: threading.Event, group: _Group) -> Iterator[None]:
    """Raise an error in rank 0, in this context, if it hangs while another rank has waited for it as long as it may.

    Only in the main thread, where a signal interrupts Python's code and its waits.
    """
    main, free = threading.main_thread(), signal.SIG_DFL
    if threading.current_thread() is not main or signal.getsignal(signal.SIGALRM) != free:
        yield
        return
    over = threading.Event()

    def ring() -> None:
        alarm.wait()
        if not over.wait(_FAILED_S) and main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGALRM)

    def raise_there(*_: object) -> None:
        if not over.is_set():
            group.check()

    signal.signal(signal.SIGALRM, raise_there)
    threading.Thread(target=ring, name="deep5-alarm", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        alarm.set()
        signal.signal(signal.SIGALRM, free)


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(deadline - monotonic(), 0.0))


@functools.cache
def _at_exit() -> deque[threading.Thread]:
    """The ranks' threads: the end of the process waits for them. A thread inside a library's code would abort it."""
    threads: deque[threading.Thread] = deque(maxlen=1000)
    atexit.register(lambda: _join(threads, monotonic() + _LEAVE_S))
    return threads


def _check_same(calls: list[tuple[Any, ...]]) -> None:
    """Check that all ranks make the same call, on buffers of the same size and dtype."""

    def described(call: tuple[Any, ...]) -> str:
        name, *given = call
        if name in ("split", "gather", "scatter"):
            rest: list[Any] = given[2:]
        else:
            rest = [f"{each.dtype}[{each.size}]" if isinstance(each, np.ndarray) else each for each in given]
        return " ".join(map(str, (name, *rest)))

    texts = [described(call) for call in calls]
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise CommunicationError(f"rank 0 calls {texts[0]} and rank {rank} {text}; allowed: the same")


def _carry_out(calls: list[tuple[Any, ...]], group: _Group) -> Any:
    name = calls[0][0]
    given = [call[1:] for call in calls]
    size = len(calls)
    if name == "split":
        return _split(given, group)
    if name in ("all_reduce", "reduce"):
        buffers = [entry[0] for entry in given]
        total = _combined(buffers, given[0][-1])
        for buffer in buffers if name == "all_reduce" else [buffers[given[0][1]]]:
            buffer[...] = total
    elif name == "broadcast":
        root = given[0][1]
        for rank, (buffer, _) in enumerate(given):
            if rank != root:
                buffer[...] = given[root][0].reshape(buffer.shape)
    elif name == "reduce_scatter":
        parts = _combined([entry[0] for entry in given], given[0][2]).reshape(size, -1)
        for rank, (_, out, _) in enumerate(given):
            out.reshape(-1)[...] = parts[rank]
    elif name in ("all_gather", "gather"):
        together = np.concatenate([entry[0].reshape(-1) for entry in given])
        for rank, entry in enumerate(given):
            if name == "all_gather" or rank == entry[2]:
                entry[1].reshape(-1)[...] = together
    elif name == "scatter":
        root = given[0][2]
        parts = given[root][0].reshape(size, -1)
        for rank, (_, out, _) in enumerate(given):
            out.reshape(-1)[...] = parts[rank]
    elif name == "all_to_all":
        together = np.stack([buffer.reshape(size, -1) for buffer, _ in given])
        for rank, (_, out) in enumerate(given):
            out.reshape(-1)[...] = together[:, rank].reshape(-1)
    return None


def _combined(buffers: list[np.ndarray], op: str) -> np.ndarray:
    total = buffers[0].copy()
    for buffer in buffers[1:]:
        total = _COMBINE[op](total, buffer.reshape(total.shape), dtype=total.dtype)
    return total


def _split(given: list[tuple[Any, ...]], whole: _Group) -> list[tuple[int, _Group]]:
    """A rank's place and group after a split; a rank lost to one group is lost to all."""
    members: dict[int, list[int]] = defaultdict(list)
    for rank, (color, _) in enumerate(given):
        members[color].append(rank)
    found: dict[int, tuple[int, _Group]] = {}
    for ranks in members.values():
        ranks.sort(key=lambda rank: (given[rank][1], rank))
        group = _Group([whole.ranks[rank] for rank in ranks], whole.lost, whole.reasons, whole.threads)
        for place, rank in enumerate(ranks):
            found[rank] = (place, group)
    return [found[rank] for rank in range(len(given))]
