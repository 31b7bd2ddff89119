"""Calibrated loops: time per call with warm and with cold caches, and whether all of the work was timed.

`synchronize` finishes each call before the next begins, and is timed too: on every framework, the measured time is the
time until a result is available.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, perf_counter_ns, process_time, sleep
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.core.quantities import seconds

__all__ = [
    "LEAST_SAMPLE_S",
    "Evictor",
    "Work",
    "calibrate",
    "clock_resolution_s",
    "collector_off",
    "collector_spared",
    "last_level_cache_bytes",
    "loop_overhead_s",
    "peak_growth_bytes",
    "self_test",
    "still_busy",
    "time_loop",
    "untimed_work",
    "warm_up",
]

LEAST_SAMPLE_S = 2e-3
"""Minimum duration of a sample loop, in seconds: tens of thousands of times the resolution of the clock."""

_SETTLED = 0.05
"""Maximum relative difference between consecutive times of a warmed-up loop."""


# Loops in a row that have to be long enough.
_LOOPS = 3

_PAUSE_S, _LONG_S = 0.05, 0.01
# Number of processors that unfinished work keeps busy, even if other processes compete for them.
_BUSY = 0.4


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work to time.

    Attributes:
        call: Does the work once; may return before it is done.
        arguments: Arguments of the call.
        synchronize: Returns when all started work has finished.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    synchronize: Callable[[], object] = field(default=lambda: None)


def clock_resolution_s() -> float:
    """Smallest measured difference between two readings of the clock."""
    least = float("inf")
    for _ in range(200):
        begin = end = perf_counter_ns()
        while end == begin:
            end = perf_counter_ns()
        least = min(least, (end - begin) / 1e9)
    return least


def time_loop(work: Work, calls: int) -> float:
    """Seconds per call, measured over a loop of calls.

    Args:
        work: The work to time; each call is followed by its `synchronize`.
        calls: At least 1.
    """
    call, arguments, synchronize = work.call, work.arguments, work.synchronize
    begin = perf_counter_ns()
    for _ in repeat(None, calls):
        call(*arguments)
        synchronize()
    return (perf_counter_ns() - begin) / 1e9 / calls


def loop_overhead_s(arguments: int = 2) -> float:
    """Seconds per call of the loop itself: median over loops that call an empty function.

    It is reported with the results and not subtracted from them.

    Args:
        arguments: Number of arguments of the empty function.
    """
    empty = Work(call=lambda *_: None, arguments=(None,) * arguments)
    return median(time_loop(empty, 2000) for _ in range(11))


def calibrate(work: Work, least_s: float = LEAST_SAMPLE_S) -> tuple[int, list[float]]:
    """Find the number of calls per sample by doubling.

    A loop may be long because another program delayed it, so a number counts if several loops in a row are long enough.

    Args:
        work: The work to time; it has run before.
        least_s: Minimum duration of a sample.

    Returns:
        The number of calls, and the seconds per call of every loop tried, which count as warm-up.
    """
    calls, tried, long_enough = 1, list[float](), 0
    while long_enough < _LOOPS:
        tried.append(time_loop(work, calls))
        if tried[-1] * calls >= least_s or calls >= 1 << 24:
            long_enough += 1
        else:
            calls, long_enough = calls * 2, 0
    return calls, tried


def warm_up(work: Work, calls: int, most_s: float) -> tuple[list[float], bool]:
    """Run until the times are steady.

    Args:
        work: The work to time.
        calls: Calls per loop.
        most_s: Time limit in seconds.

    Returns:
        Seconds per call of every loop, and whether the medians of the last three and of the preceding three loops
        differ by at most 5 %.
    """
    begin, times = perf_counter(), [time_loop(work, calls)]
    while perf_counter() - begin < most_s:
        times.append(time_loop(work, calls))
        if len(times) >= 6 and abs(median(times[-3:]) / median(times[-6:-3]) - 1) <= _SETTLED:
            return times, True
    return times, False


class Evictor:
    """Evicts all data from the caches by streaming over a buffer twice the size of the largest cache.

    Args:
        threads: Number of threads that stream concurrently, each over its own part, to evict per-core caches too.
    """

    def __init__(self, threads: int = 1) -> None:
        self.buffer_bytes = 2 * last_level_cache_bytes()
        each = max(self.buffer_bytes // 8 // threads, 1)
        self._parts = [np.zeros(each) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __call__(self) -> None:
        """Read and write the whole buffer."""
        if self._pool is None:
            _stream(self._parts[0])
        else:
            list(self._pool.map(_stream, self._parts))

    def time(self, work: Work) -> float:
        """Seconds of one call after an eviction."""
        self()
        return time_loop(work, 1)

    def close(self) -> None:
        """Stop the threads and free the memory."""
        if self._pool is not None:
            self._pool.shutdown()
        self._parts = []


def _stream(part: Any) -> None:
    np.add(part, 1.0, out=part)


def last_level_cache_bytes(default: int = 64 << 20) -> int:
    """Size of the largest cache of this machine.

    Args:
        default: Returned if the machine does not report it.
    """
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
        if match is not None:
            sizes.append(int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]])
    return max(sizes, default=default)


@contextmanager
def collector_off() -> Iterator[None]:
    """Disable Python's garbage collector in this context, so that no call is timed with the collection of other
    garbage."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def collector_spared() -> Iterator[None]:
    """Exclude existing objects from garbage collection in this context.

    A process that has loaded frameworks holds several hundred thousand objects; scanning them before every size would
    take a large part of the time available per size.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def untimed_work(work: Work, read: Callable[[Any], Sequence[Any]]) -> str | None:
    """Detect whether work of a call is still running after its `synchronize` has returned.

    A sign must appear three times in a row. There are three signs: the outputs change after the call has finished;
    reading the outputs takes much longer immediately than later, since an immediate read waits for unfinished work;
    threads of this process compute while no work is requested.

    Args:
        work: The work to time; it has run before.
        read: Returns the outputs of a call as NumPy arrays, waiting for them if necessary.

    Returns:
        A description of the sign, or None.
    """
    # Another program may preempt this process at a critical moment once, but hardly three times.
    found = None
    for _ in range(3):
        found = _signs(work, read)
        if found is None:
            break
    return found


def _signs(work: Work, read: Callable[[Any], Sequence[Any]]) -> str | None:
    waits: list[float] = []
    while len(waits) < 3:
        begin = perf_counter()
        outputs = work.call(*work.arguments)
        work.synchronize()
        call_s = perf_counter() - begin
        at_once_s, before = _timed_copy(read, outputs)
        if not waits:
            if (reported := still_busy()) is not None:
                return reported
        else:
            sleep(5e-3)
        if call_s < _LONG_S:  # data that a library caches after a read must not look like a wait
            again = work.call(*work.arguments)
            work.synchronize()
            sleep(5e-3)
            later_s, _ = _timed_copy(read, again)
            _, after = _timed_copy(read, outputs)
        else:
            later_s, after = _timed_copy(read, outputs)
        if any(not np.array_equal(x, y, equal_nan=x.dtype.kind in "fc") for x, y in zip(before, after, strict=True)):
            return "its outputs change after the executor said that it had finished"
        waits.append(at_once_s - later_s)
        if call_s > _LONG_S:
            break
    wait = median(waits)
    if wait > max(0.5 * call_s, 1e-3):
        return (
            f"reading its outputs waits {seconds(wait)} after the executor said that it had finished, in a call "
            f"of {seconds(call_s)}"
        )
    return None


def still_busy() -> str | None:
    """Detect whether threads of this process compute while no work is requested.

    Returns:
        A description of the sign, or None.
    """
    # Thread pools spin for some milliseconds before they sleep, so only the second half is evaluated.
    sleep(_PAUSE_S / 2)
    busy = process_time()
    sleep(_PAUSE_S / 2)
    busy = (process_time() - busy) / (_PAUSE_S / 2)
    if busy > _BUSY:
        return f"its threads keep {busy:.2g} processors busy after the executor reported that it had finished"
    return None


def _timed_copy(read: Callable[[Any], Sequence[Any]], outputs: Any) -> tuple[float, list[Any]]:
    begin = perf_counter()
    values = read(outputs)
    seconds = perf_counter() - begin
    return seconds, [np.array(value, copy=True) for value in values]


def self_test(busy_s: float = 5e-3) -> None:
    """Time work that continues after its call has returned; the loop must include all of it.

    Args:
        busy_s: Duration of the work in seconds.

    Raises:
        Deep5Error: It does not; measurements in this process are invalid.
    """
    running: list[Thread] = []

    def start() -> None:
        running.append(Thread(target=sleep, args=(busy_s,)))
        running[-1].start()

    def wait() -> None:
        while running:
            running.pop().join()

    seen_s = time_loop(Work(call=start, synchronize=wait), 2)
    if seen_s < busy_s:
        raise Deep5Error(
            f"self-test of the timer: an asynchronous call of {seconds(busy_s)} was measured as "
            f"{seconds(seen_s)}; its work was not timed"
        )


def peak_growth_bytes(call: Callable[[], object]) -> int | None:
    """Increase of this process' peak resident memory during a call, relative to the memory used before it.

    Memory that the process already holds and reuses is not counted.

    Returns:
        Bytes; None if the system cannot reset the peak.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_kib("VmRSS")
    except OSError:
        call()
        return None
    call()
    return max(_status_kib("VmHWM") - before, 0) * 1024


def _status_kib(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1])
    return 0
