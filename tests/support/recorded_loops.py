"""Recorded loops for the tests: small, without a framework unless one is named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import deep5 as d5
from deep5.results.result import Result

GOALS = {
    "wall_clock_time": None,
    "throughput": ">= 1",
    "step_latency": None,
    "training_loss": "< 5",
    "test_loss": None,
    "test_accuracy": 50,
    "peak_memory": None,
}


def busy(seconds: float) -> None:
    """Compute for so long: the system's sleep is longer than what it is given."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def loop(
    out: Path, goals: Any = GOALS, *, sizes: tuple[int, ...] = (8, 8, 8, 5), number: Callable[[float], Any] = float
) -> Result:
    """A loop of three epochs with regions, evaluations and a smaller last batch; the loss of step n is 1 / (n + 1).

    Args:
        out: Parent of the result folder.
        goals: Metrics and goals.
        sizes: Batch sizes of an epoch.
        number: Makes the array of a loss.
    """
    with d5.record("loop", goals, out=out, quiet=True) as run:
        step = 0
        for epoch in range(3):
            with run.epoch():
                for size in sizes:
                    with run.region("data"):
                        busy(2e-4)
                    with run.step(batch_size=size):
                        with run.region("forward"):
                            busy(3e-4)
                        with run.region("backward"):
                            busy(5e-4)
                        run.log(loss=number(1 / (step + 1)))
                    step += 1
                with run.evaluation():
                    with run.region("forward"):
                        busy(2e-4)
                    run.log(loss=0.5, accuracy=60.0 + epoch)
    return run.result


def broken(out: Path, body: Callable[[Any], None], goals: Any = None) -> Result:
    """The result of a loop whose body may raise; the error is dropped."""
    run = d5.record("broken", goals, out=out, quiet=True)
    with suppress(Exception), run:
        body(run)
    return run.result
