"""A process of one side: it answers each line on standard input, a benchmark's name, with one line of JSON.

An answer holds `seconds`, one sample per unit, or `error`. The first request for a benchmark sets it up, finds how many
calls a sample needs, and warms up.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from registry import Benchmark, benchmarks

SAMPLE_S = 0.02
"""The least length of a sample."""
_LARGEST = 1 << 20


@dataclass(kw_only=True)
class Prepared:
    """A benchmark that is set up, and its number of calls per sample."""

    benchmark: Benchmark
    call: Callable[[], object]
    calls: int

    def sample(self) -> float:
        """Seconds per unit."""
        gc.collect()
        return timed(self.call, self.calls) / (self.calls * self.benchmark.per_call)


def timed(call: Callable[[], object], calls: int) -> float:
    """The seconds of `count` calls."""
    begin = perf_counter()
    for _ in range(calls):
        call()
    return perf_counter() - begin


def prepare(benchmark: Benchmark, folder: Path) -> Prepared:
    """Set a benchmark up; unless it is measured once, find the number of calls by doubling, which warms up too."""
    call = benchmark.setup(folder)
    calls = 1
    if not benchmark.once:
        call()
        while timed(call, calls) < SAMPLE_S and calls < _LARGEST:
            calls *= 2
    return Prepared(benchmark=benchmark, call=call, calls=calls)


def main() -> None:
    """Answer until standard input ends."""
    # Output of frameworks and commands must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    every, prepared = benchmarks(), dict[str, Prepared]()
    with tempfile.TemporaryDirectory(prefix="deep5-benchmark-") as scratch:
        for line in sys.stdin:
            name = line.strip()
            try:
                if name not in prepared:
                    prepared[name] = prepare(every[name], Path(tempfile.mkdtemp(dir=scratch)))
                answer: dict[str, object] = {"seconds": prepared[name].sample()}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
