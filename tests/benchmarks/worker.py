"""A process of one side: it answers each line on standard input, a benchmark's name, with one line of JSON.

An answer holds `sample`, in seconds per unit or bytes, or `error`. The first request for a benchmark sets it up, finds
how many calls a sample needs, and warms up; a request for another one drops it. The arguments are the modules of the
benchmarks.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

from registry import MODULES, Benchmark, benchmarks

_LARGEST = 1 << 20
_LIMIT_S = 300
"""The longest time of an answer; then the process ends."""


@dataclass(kw_only=True)
class Prepared:
    """A benchmark that is set up, and its number of calls per sample."""

    benchmark: Benchmark
    call: Callable[[], object]
    calls: int

    def sample(self) -> float:
        """Seconds per unit, or bytes."""
        gc.collect()
        if self.benchmark.peak:
            return peak(self.call)
        return timed(self.call, self.calls) / (self.calls * self.benchmark.per_call)


def timed(call: Callable[[], object], calls: int) -> float:
    """The seconds of `count` calls."""
    begin = perf_counter()
    for _ in range(calls):
        call()
    return perf_counter() - begin


def peak(call: Callable[[], object]) -> float:
    """The bytes by which a call makes the resident memory of this process grow at most, at least one page."""
    # Threads of a framework free the results of the call before; what is free goes back to the system. Writing 5 sets
    # the highest value to the current one.
    sleep(0.01)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    call()
    return max(_resident("VmHWM") - before, 4096)


def _resident(entry: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


def prepare(benchmark: Benchmark, folder: Path) -> Prepared:
    """Set a benchmark up; unless it is measured once, find the number of calls by doubling, which warms up too."""
    call = benchmark.setup(folder)
    calls = 1
    if not benchmark.once:
        call()
        # The imports are done: collecting their objects before each sample would take longer than a sample.
        gc.freeze()
    if not (benchmark.once or benchmark.peak):
        while timed(call, calls) < benchmark.sample_s and calls < _LARGEST:
            calls *= 2
    return Prepared(benchmark=benchmark, call=call, calls=calls)


def main() -> None:
    """Answer until standard input ends."""
    # Output of frameworks and commands must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    every, prepared = benchmarks(sys.argv[1:] or MODULES), dict[str, Prepared]()
    with tempfile.TemporaryDirectory(prefix="deep5-benchmark-") as scratch:
        for line in sys.stdin:
            name = line.strip()
            faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
            try:
                if name not in prepared:
                    prepared.clear()
                    prepared[name] = prepare(every[name], Path(tempfile.mkdtemp(dir=scratch)))
                answer: dict[str, object] = {"sample": prepared[name].sample()}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
