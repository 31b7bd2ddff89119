"""`Series`: one candidate on one workload: first call, warm-up, and timing in alternation with the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from deep5.bench.candidates import Candidate, Prepared
from deep5.bench.plan import Plan, Workload
from deep5.measuring import loops as timing
from deep5.measuring.kept_results import reuses_results

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Series", "call_first", "sample", "sample_cold", "warm_up"]

# Seconds for one size on one framework in one process: checks, warm-up, and samples. Preparation and compilation, up to
# the end of the first call, are reported separately.
_BUDGET_S = {"quick": 0.75, "rigorous": 0.95}
_WARM_UP_S = 0.1
# A call this long loads its data into the caches by itself; before shorter ones, which follow another candidate's, one
# call is made that does not count.
_LONG_S = 0.02
_FEWEST, _LEAST_S = 7, 0.2
_COLD = 15


@dataclass(kw_only=True)
class Series:
    """Measurements of one candidate on one workload. Times are pairs: seconds since the process began, seconds of a
    call."""

    work: Workload
    candidate: Candidate
    prepared: Prepared
    calls: int = 1
    first_call_s: float = 0.0
    memory_bytes: int | None = None
    settled: bool = True
    spent_s: float = 0.0  # checks, warm-up, and samples; the first call, which may compile, is reported separately
    warm_ups: list[tuple[float, float]] = field(default_factory=list)
    samples: list[tuple[float, float]] = field(default_factory=list)
    cold: list[tuple[float, float]] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)  # processors kept busy while a sample was taken

    def reported(self) -> dict[str, Any]:
        """The series in JSON types."""
        return {
            **self.work.key,
            "candidate": self.candidate.label,
            "framework": self.candidate.framework,
            "bare": self.candidate.bare,
            "flops": self.work.flops,
            "bytes": self.work.moved_bytes,
            "calls": self.calls,
            "first_call_s": self.first_call_s,
            "memory_bytes": self.memory_bytes,
            "settled": self.settled,
            "spent_s": self.spent_s,
            "warm_ups": self.warm_ups,
            "samples": self.samples,
            "cold": self.cold,
            "processors": median(self.processors) if self.processors else None,
        }


def call_first(series: Series) -> list[NDArray[Any]]:
    """The results of the first call as NumPy arrays; records its time and memory growth in the series."""
    kept: list[Any] = []
    loop = series.prepared.work

    def first() -> None:
        begin = perf_counter()
        kept.append(loop.call(*loop.arguments))
        loop.synchronize()
        series.first_call_s = perf_counter() - begin

    series.memory_bytes = timing.peak_growth_bytes(first)
    return [value.copy() for value in series.prepared.read(kept[0])]


def warm_up(series: Series, begin: float, plan: Plan) -> str | None:
    """Check that all work is timed, calibrate, and warm up; why the candidate is left out, or None."""
    loop, start = series.prepared.work, perf_counter()
    fault = timing.untimed_work(loop, series.prepared.read)
    if fault is not None:
        return f"invalid: {fault}; its work is not on the clock"
    if series.prepared.renewed is not None and (fault := reuses_results(series.prepared.renewed)) is not None:
        return f"invalid: {fault}: its results are kept from earlier calls"
    budget = _BUDGET_S[plan.mode]
    # A call that another program delayed is short at the second attempt.
    for _ in range(2):
        each = timing.time_loop(loop, 1)
        series.warm_ups.append((perf_counter() - begin, each))
        if each > budget:
            return f"one call takes {each:.2g} s; allowed: {budget:g} s per size"
        if each < _LONG_S:
            break
    if each < _LONG_S:
        series.calls, tried = timing.calibrate(loop)
        times, series.settled = timing.warm_up(loop, series.calls, _WARM_UP_S)
        series.warm_ups += [(perf_counter() - begin, value) for value in (*tried, *times)]
    series.spent_s += perf_counter() - start
    return None


def sample(plan: Plan, made: list[Series], order: Any, begin: float) -> None:
    """Take one sample of each per round, in a new random order; candidates drop out when their time is used up."""
    budget_s = _BUDGET_S[plan.mode] * (0.65 if plan.cold else 1.0)
    costs = [_sample_s(series) for series in made]
    # If warm-up took most of the time, short calls still get the samples that an interval requires.
    least = [_FEWEST if _FEWEST * cost < _LEAST_S else 1 for cost in costs]
    with timing.collector_off():
        for number in range(plan.rounds):
            for which in order.permutation(len(made)):
                series, turn = made[which], perf_counter()
                # A candidate that skips one round skips all following ones, so that sample i belongs to round i.
                if number > len(series.samples) or (
                    number >= least[which] and series.spent_s + costs[which] > budget_s
                ):
                    continue
                if series.warm_ups[-1][1] < _LONG_S:
                    timing.time_loop(series.prepared.work, 1)
                busy = process_time()
                seconds = timing.time_loop(series.prepared.work, series.calls)
                series.processors.append((process_time() - busy) / (seconds * series.calls))
                series.samples.append((perf_counter() - begin, seconds))
                series.spent_s += perf_counter() - turn


def _sample_s(series: Series) -> float:
    return median(value for _, value in series.warm_ups[-3:]) * (series.calls + 1)


def sample_cold(plan: Plan, made: list[Series], evictor: timing.Evictor, order: Any, begin: float) -> None:
    """Time single calls, with the caches evicted before each."""
    budget_s, cost_s = _BUDGET_S[plan.mode], 0.0
    with timing.collector_off():
        for number in range(_COLD):
            for which in order.permutation(len(made)):
                series, turn = made[which], perf_counter()
                if number > len(series.cold) or (number and series.spent_s + cost_s > budget_s):
                    continue
                seconds = evictor.time(series.prepared.work)
                series.cold.append((perf_counter() - begin, seconds))
                cost_s = perf_counter() - turn
                series.spent_s += cost_s
