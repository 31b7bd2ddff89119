"""Calibrated loops: how long a call takes, with warm caches and with cold ones, and whether all of its work was timed.

A call is finished, by `synchronize`, before the next begins, all of it on the clock: what is measured is the time until
a result is there, on every framework alike.
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
"""A sample is a loop that takes at least this long: tens of thousands of times the resolution of the clock."""

_SETTLED = 0.05
"""Two times in a row that differ by no more are those of a loop that has warmed up."""


_PAUSE_S, _LONG_S = 0.05, 0.01
# Processors, of one, that work which goes on keeps busy even where others want them too.
_BUSY = 0.4


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is timed.

    Attributes:
        call: Does the work once; may return before it is done.
        arguments: Of the call.
        synchronize: Returns when all work that was started has finished.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    synchronize: Callable[[], object] = field(default=lambda: None)


def clock_resolution_s() -> float:
    """The smallest difference that two readings of the clock show here."""
    least = float("inf")
    for _ in range(200):
        begin = end = perf_counter_ns()
        while end == begin:
            end = perf_counter_ns()
        least = min(least, (end - begin) / 1e9)
    return least


def time_loop(work: Work, calls: int) -> float:
    """Seconds a call, over a loop of calls.

    Args:
        work: What is called, each call followed by its `synchronize`.
        calls: At least 1.
    """
    call, arguments, synchronize = work.call, work.arguments, work.synchronize
    begin = perf_counter_ns()
    for _ in repeat(None, calls):
        call(*arguments)
        synchronize()
    return (perf_counter_ns() - begin) / 1e9 / calls


def loop_overhead_s(arguments: int = 2) -> float:
    """Seconds a call that the loop itself takes: median of loops over a function that does nothing.

    It is stated beside the results and not subtracted from them.

    Args:
        arguments: How many the empty function is called with.
    """
    empty = Work(call=lambda *_: None, arguments=(None,) * arguments)
    return median(time_loop(empty, 2000) for _ in range(11))


def calibrate(work: Work, least_s: float = LEAST_SAMPLE_S) -> tuple[int, list[float]]:
    """How many calls a sample needs, by doubling.

    Args:
        work: What will be timed; it has run before.
        least_s: What a sample is to take at least.

    Returns:
        The number, and the seconds a call of every loop that was tried: they are warm-up.
    """
    calls, tried = 1, []
    while True:
        tried.append(time_loop(work, calls))
        if tried[-1] * calls >= least_s or calls >= 1 << 24:
            return calls, tried
        calls *= 2


def warm_up(work: Work, calls: int, most_s: float) -> tuple[list[float], bool]:
    """Run until the times stand still.

    Args:
        work: What will be timed.
        calls: Calls a loop.
        most_s: Give up after this long.

    Returns:
        Seconds a call of every loop, and whether the medians of the last three and of the three before them differ by
        5 % at most.
    """
    begin, times = perf_counter(), [time_loop(work, calls)]
    while perf_counter() - begin < most_s:
        times.append(time_loop(work, calls))
        if len(times) >= 6 and abs(median(times[-3:]) / median(times[-6:-3]) - 1) <= _SETTLED:
            return times, True
    return times, False


class Evictor:
    """Drives everything out of the caches, by streaming over memory that is twice as large as the largest of them.

    Args:
        threads: As many stream at once, each over a part of its own: caches that belong to one core are emptied too.
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
        """End the threads and give the memory back."""
        if self._pool is not None:
            self._pool.shutdown()
        self._parts = []


def _stream(part: Any) -> None:
    np.add(part, 1.0, out=part)


def last_level_cache_bytes(default: int = 64 << 20) -> int:
    """Size of the largest cache of this machine.

    Args:
        default: Where the machine does not say.
    """
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
        if match is not None:
            sizes.append(int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]])
    return max(sizes, default=default)


@contextmanager
def collector_off() -> Iterator[None]:
    """While inside, Python's garbage is not collected: nobody pays for another's."""
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
    """While inside, Python's collector does not look at what was there before.

    A process that has loaded frameworks holds some hundred thousand objects: looked at before every size, they would
    take a good part of the time that a size may take.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def untimed_work(work: Work, read: Callable[[Any], Sequence[Any]]) -> str | None:
    """Whether a call is still being worked on after its `synchronize` has returned.

    Three signs are looked for, three times in a row before they are believed: outputs that change after the call was
    finished; outputs that are read much sooner a while later than at once, since reading waits for what is not there;
    threads of this process that compute on while nobody asks for anything.

    Args:
        work: What will be timed; it has run before.
        read: Gives the outputs of a call as NumPy arrays, waiting for them where it must.

    Returns:
        What was seen, or None.
    """
    # Another program may have stopped this one at the wrong moment; hardly three times.
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
            if (told := still_busy()) is not None:
                return told
        else:
            sleep(5e-3)
        if call_s < _LONG_S:  # what a library keeps of outputs that were read must not look like a wait
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
            f"reading its outputs waits {wait * 1e3:.3g} ms after the executor said that it had finished, in a call "
            f"of {call_s * 1e3:.3g} ms"
        )
    return None


def still_busy() -> str | None:
    """Whether threads of this process compute on while nobody asks for anything.

    Returns:
        What was seen, or None.
    """
    # Pools of threads look for work for some milliseconds before they sleep: the second half is judged.
    sleep(_PAUSE_S / 2)
    busy = process_time()
    sleep(_PAUSE_S / 2)
    busy = (process_time() - busy) / (_PAUSE_S / 2)
    if busy > _BUSY:
        return f"its threads keep {busy:.2g} processors busy after the executor said that it had finished"
    return None


def _timed_copy(read: Callable[[Any], Sequence[Any]], outputs: Any) -> tuple[float, list[Any]]:
    begin = perf_counter()
    values = read(outputs)
    seconds = perf_counter() - begin
    return seconds, [np.array(value, copy=True) for value in values]


def self_test(busy_s: float = 5e-3) -> None:
    """Time work that goes on after its call has returned; the loop must see all of it.

    Args:
        busy_s: How long the work takes.

    Raises:
        Deep5Error: It does not; no time that is measured here can be believed.
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
            f"self-test of the timer: an asynchronous call of {busy_s * 1e3:g} ms was measured as "
            f"{seen_s * 1e3:.3g} ms; its work went untimed"
        )


def peak_growth_bytes(call: Callable[[], object]) -> int | None:
    """By how much a call raises the largest resident memory of this process above what it was before.

    Memory that the process holds already and uses again does not show.

    Returns:
        Bytes; None where the system does not let the mark be set back.
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
