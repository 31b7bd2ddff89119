"""What other programs took of the processors during a training, and the warnings that follow from it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from deep5.core.metric import Goal, Metric
from deep5.core.quantities import counts_time, percent
from deep5.measuring.machine_load import CROWDED, machine_state, share_of_others

__all__ = ["MachineLoad", "load_warnings", "timed_goals", "timed_metrics"]

# The system counts in ticks of 10 ms: less than a second says too little.
_LEAST_S = 1.1


class MachineLoad:
    """The machine's load from the creation of this object on.

    Attributes:
        processors: Number of processors that this process may use.
    """

    def __init__(self) -> None:
        self._before = _state()
        self.processors: int = self._before["processors"]

    def others_share(self, *, wait: bool) -> float | None:
        """Share of the processors' time that other programs used, 0 to 1; None if that was too short.

        Args:
            wait: Whether to observe the machine for the rest of a second, if less has passed.
        """
        if wait:
            time.sleep(max(0.0, _LEAST_S - (time.perf_counter() - self._before["at_s"])))
        return share_of_others([(self._before, _state())])


def timed_goals(metrics: Iterable[tuple[Metric, Goal | None]]) -> list[str]:
    """Names of the metrics of time, or of amounts per second, that have a goal."""
    return timed_metrics((metric, goal) for metric, goal in metrics if goal is not None)


def timed_metrics(metrics: Iterable[tuple[Metric, Goal | None]]) -> list[str]:
    """Names of the metrics of time, or of amounts per second, with a goal or without."""
    return [metric.name for metric, _ in metrics if counts_time(str(metric.unit))]


def load_warnings(
    goals: Iterable[str], share: float | None, processors: int, threads: int | None, reported: Iterable[str] = ()
) -> list[str]:
    """The warnings on a busy machine.

    Args:
        goals: Names of the metrics of time that have a goal.
        share: What other programs used of the processors, 0 to 1, or None.
        processors: Processors that the run may use.
        threads: Threads within an operator, or None if the framework decides.
        reported: Names of all metrics of time, with a goal or without; none: those with a goal.

    >>> load_warnings(["wall_clock_time"], 0.5, 2, 1)
    ['other programs took 50 % of the processors, so wall_clock_time is not that of a quiet machine; remedy: run it \
again on a quiet machine']
    >>> load_warnings(["throughput"], 0.5, 2, 2)[1:]
    ['the run had 2 threads on 1 free processor of 2, where threads wait for each other; remedy: --threads 1']
    """
    taken = 0.0 if share is None else share
    said = []
    due = list(goals)
    names = ", ".join(reported) or ", ".join(due)
    if names and taken >= CROWDED:
        are = "are not those" if ", " in names else "is not that"
        said.append(
            f"other programs took {percent(taken)} of the processors, so {names} {are} of a quiet machine; remedy: "
            "run it again on a quiet machine"
        )
    # Without such a goal, threads that wait do no harm to a verdict, and come and go with the load.
    free = max(1, processors - (round(taken * processors) if due else 0))
    if threads is not None and threads > free:
        what = (
            f"{free} free processor{'s' * (free != 1)} of {processors}"
            if free < processors
            else (f"{processors} processor{'s' * (processors != 1)}")
        )
        said.append(
            f"the run had {threads} threads on {what}, where threads wait for each other; remedy: --threads {free}"
        )
    return said


def _state() -> dict[str, Any]:
    """The machine's state; processes that this one started, such as loaders of data, are not others."""
    import psutil

    state = machine_state()
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it has just ended, and is counted as this process' finished child
            continue
        state["own_s"] += used.user + used.system
    return state
