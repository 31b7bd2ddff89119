"""Measure both sides: fresh processes each round, one of each side, which take turns sample by sample."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import TracebackType

from registry import MODULES, Benchmark
from sides import Side

from deep5.results.round_samples import order_of_round

TURNS = 5
"""Samples of each side per round; a benchmark that is measured once has one."""


PEAKS = 3
"""At most as many of a benchmark of memory, which varies less."""


@dataclass(kw_only=True)
class Samples:
    """The measurements of one benchmark.

    Attributes:
        base: Seconds per unit, or bytes: a list per round, of its samples in order.
        head: The same of the other side.
        first: Whether the head began, by round: the toss that the verdict's test is about.
        error: Why a side has none.
    """

    base: list[list[float]] = field(default_factory=list)
    head: list[list[float]] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    error: str = ""


class Worker:
    """A process of one side, for a group of benchmarks; if it ends, the next sample starts another."""

    def __init__(self, side: Side, modules: Sequence[str] = MODULES) -> None:
        self.label = side.label
        self._side, self._modules = side, modules
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), *self._modules],
            env=self._side.environment(),
            cwd=self._side.layout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def sample(self, name: str) -> float | str:
        """Seconds per unit, or bytes, or why there is no sample."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = process.wait()
            self._close()
            self._process = self._started()
            return f"its process ended with status {status}"
        answer = json.loads(line)
        return float(answer["sample"]) if "sample" in answer else str(answer["error"])


def measure(
    sides: Sequence[Side],
    chosen: Sequence[Benchmark],
    *,
    rounds: int,
    turns: int = TURNS,
    modules: Sequence[str] = MODULES,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Samples]:
    """Samples of each benchmark, by its name.

    Every round starts new processes of both sides, so that rounds are independent; within a round the sides take turns
    sample by sample, in alternating order, so that other load on the machine affects both. Which side begins is drawn
    for each round.
    """
    seed = secrets.randbits(31)
    found = {each.name: Samples() for each in chosen}
    ordered = sorted(chosen, key=lambda each: each.group)
    for number in range(rounds):
        for group, members in groupby(ordered, key=lambda each: each.group):
            report(f"round {number + 1} of {rounds}: {group}")
            order = order_of_round(seed, number, len(sides), reverses=False)
            workers = [Worker(sides[place], modules) for place in order]
            _round(workers, list(members), found, turns)
    return found


def _round(workers: list[Worker], members: list[Benchmark], found: dict[str, Samples], turns: int) -> None:
    try:
        for benchmark in members:
            samples = found[benchmark.name]
            if samples.error:
                continue
            taken: dict[str, list[float]] = {worker.label: [] for worker in workers}
            for turn in range(1 if benchmark.once else min(turns, PEAKS) if benchmark.peak else turns):
                order = workers if turn % 2 == 0 else workers[::-1]
                for worker in order:
                    answer = worker.sample(benchmark.name)
                    if isinstance(answer, str):
                        samples.error = f"{worker.label}: {answer}"
                        break
                    taken[worker.label].append(answer)
                if samples.error:
                    break
            if not samples.error:
                samples.base.append(taken.get("base", []))
                samples.head.append(taken["head"])
                samples.first.append(workers[0].label == "head")
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)
