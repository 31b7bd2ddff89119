"""Operators timed on every framework: in turn, in a new random order each round, every raw time kept.

`python -m deep5.bench.measure PLAN.json OUT.json` measures one plan in a fresh process: so the rigorous mode does, and
so threads can be set that a framework fixes when it starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from deep5.bench.agreement import Results, difference, standard_of
from deep5.bench.candidates import Candidate, Prepared, candidates, prepare, random_values, reason_of
from deep5.bench.peaks import peaks
from deep5.bench.plan import Plan, Workload, remarks, workloads
from deep5.errors import MissingDependency, RunFailed, UsageError
from deep5.operators import timing
from deep5.plugins import framework, uninterrupted
from deep5.seeds import derive_seed, generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SCOPE", "measure", "measure_here"]

SCOPE = (
    "whole calls with inputs in the framework's memory, each finished by synchronize before the next begins; a "
    "direction with gradients holds the forward pass too; the loop's own time is stated, not subtracted"
)

# Seconds that one size may take on one framework in one process: checks, warm-up and samples. What prepares and
# compiles, up to the end of the first call, is told apart.
_BUDGET_S = {"quick": 0.75, "rigorous": 0.95}
_WARM_UP_S = 0.1
# A call this long brings its data into the caches by itself; before shorter ones, which follow another candidate's, one
# call is made that does not count.
_LONG_S = 0.02
_FEWEST, _LEAST_S = 7, 0.2
_COLD = 15
# Processors, beyond as many as there are threads, that a candidate may keep busy: what the interpreter does beside it.
_BESIDE = 0.3
_TIMEOUT_S = 3600


@dataclass(kw_only=True)
class _Series:
    """One candidate on one workload, as it is measured. Times are pairs: seconds since the process began, a call's."""

    work: Workload
    candidate: Candidate
    prepared: Prepared
    calls: int = 1
    first_call_s: float = 0.0
    memory_bytes: int | None = None
    settled: bool = True
    spent_s: float = 0.0  # checks, warm-up and samples; the first call, which may compile, is told apart
    warm_ups: list[tuple[float, float]] = field(default_factory=list)
    samples: list[tuple[float, float]] = field(default_factory=list)
    cold: list[tuple[float, float]] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)  # kept busy while a sample was taken

    def told(self) -> dict[str, Any]:
        """In JSON's types."""
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


def measure(plan: Plan) -> list[dict[str, Any]]:
    """Measure a plan, in this process or in fresh ones, as its mode says.

    Returns:
        What `measure_here` gives, of every process.

    Raises:
        UsageError: The plan names something that is not there.
        RunFailed: A process failed, or not one candidate could be timed.
    """
    workloads(plan)  # what is wrong with it is told before processes are started
    for name in plan.frameworks:
        _check_framework(name)
    if plan.mode == "rigorous":
        found = [_in_fresh_process(plan, number) for number in range(plan.processes)]
    else:
        found = [measure_here(plan)]
    if not any(raw["series"] for raw in found):
        reasons = [entry["reason"] for raw in found for entry in raw["left_out"]] or ["there is nothing to run"]
        raise RunFailed(f"not one candidate could be timed; the first reason: {reasons[0]}")
    return found


def _check_framework(name: str) -> None:
    try:
        with uninterrupted():
            framework(name)
    except MissingDependency:
        return  # it is listed, with what installs it


def _in_fresh_process(plan: Plan, number: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="deep5-bench-") as folder:
        wanted, got = Path(folder, "plan.json"), Path(folder, "out.json")
        wanted.write_text(plan.to_json())
        command = [sys.executable, "-m", "deep5.bench.measure", str(wanted), str(got), str(number)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode or not got.exists():
            raise RunFailed(
                f"process {number + 1} of {plan.processes} ended with {done.returncode}: {done.stderr.strip()[-600:]}"
            )
        raw: dict[str, Any] = json.loads(got.read_text())
    return raw


def measure_here(plan: Plan, process: int = 0) -> dict[str, Any]:
    """Measure a plan in this process.

    Args:
        plan: What.
        process: Its number, for the record and the order.

    Returns:
        `series`, each with its raw times; `left_out`, each with its reason; `roofline`, and `peaks_flop_s` before and
        after; `settings` by framework; `warnings`; `resolution_s` and `overhead_s` of the clock and of the loop.

    Raises:
        Deep5Error: The timer's self-test fails.
    """
    timing.self_test()
    begin = perf_counter()
    works, left_out = workloads(plan)
    raw: dict[str, Any] = {
        "process": process,
        "resolution_s": timing.clock_resolution_s(),
        "overhead_s": timing.loop_overhead_s(),
        "series": [],
        "left_out": [{**entry, "candidate": c.label} for entry in left_out for c in candidates(plan)],
        "warnings": remarks(plan, works, left_out),
        "settings": {},
    }
    ready: list[Candidate] = []
    for candidate in candidates(plan):
        reason = _start(plan, candidate, raw)
        if reason is None:
            ready.append(candidate)
        else:
            raw["left_out"] += [{**work.key, "candidate": candidate.label, "reason": reason} for work in works]
    names = [candidate.framework for candidate in ready if not candidate.bare]
    before = peaks(plan, names)
    evictor = timing.Evictor(plan.threads) if plan.cold else None
    order = generator(derive_seed(plan.seed, "bench order", process), "order")
    for work in works:
        inputs, grads = random_values(work, plan.seed)
        made = _prepared(plan, work, ready, inputs, grads, raw, order, begin)
        _rounds(plan, made, order, begin)
        if evictor is not None:
            _cold(plan, made, evictor, order, begin)
        for series in made:
            if not series.candidate.bare:  # code by hand says nothing of its settings
                raw["settings"].setdefault(series.candidate.framework, series.prepared.settings)
            raw["series"].append(series.told())
    if evictor is not None:
        evictor.close()
    after = peaks(plan, names)
    roofline = before.merged(after)
    raw["roofline"] = {**asdict(roofline), "seen": dict(roofline.seen)}
    raw["peaks_flop_s"] = [found.flop_s for found in (before, after)]
    raw["warnings"] += _thread_warnings(plan, raw["settings"], raw["series"])
    return raw


def _start(plan: Plan, candidate: Candidate, raw: dict[str, Any]) -> str | None:
    """Load a framework and set its threads, before it computes; why that cannot be, or None."""
    try:
        engine = framework(candidate.framework)
    except MissingDependency as error:
        return str(error)
    try:
        engine.set_threads(plan.threads)
    except UsageError as error:
        if not candidate.bare:
            raw["warnings"].append(
                f"{candidate.framework} does not run with {plan.threads} threads: {error}; remedy: --rigorous, which "
                "starts fresh processes"
            )
    return None


def _prepared(
    plan: Plan,
    work: Workload,
    ready: Sequence[Candidate],
    inputs: Sequence[Any],
    grads: Sequence[Any],
    raw: dict[str, Any],
    order: Any,
    begin: float,
) -> list[_Series]:
    """Every candidate that runs this workload rightly: first call, check of its results, calibration, warm-up.

    First calls come in a random order: who comes later finds memory and kernels that another has left.
    """
    tried: dict[Candidate, tuple[_Series, Results]] = {}
    reasons: dict[Candidate, str] = {}

    for which in order.permutation(len(ready)):
        candidate = ready[which]
        try:
            series = _Series(work=work, candidate=candidate, prepared=prepare(candidate, plan, work, inputs, grads))
            results = Results(label=candidate.label, bare=candidate.bare, arrays=_first_call(series))
            reason = difference(work, results, None)
        except UsageError:
            raise
        except Exception as error:  # whatever a framework raises is the answer of that framework, and is listed
            reason = reason_of(error)
        if reason is None:
            tried[candidate] = series, results
        else:
            reasons[candidate] = reason
    in_order = [candidate for candidate in ready if candidate in tried]
    standard = standard_of(work, [tried[candidate][1] for candidate in in_order])
    for candidate in in_order:
        series, results = tried[candidate]
        try:
            reason = standard if isinstance(standard, str) else difference(work, results, standard)
            reason = reason or _warm(series, begin, plan)
        except Exception as error:  # as above
            reason = reason_of(error)
        if reason is not None:
            reasons[candidate] = reason
    for candidate in ready:
        if candidate in reasons:
            raw["left_out"].append({**work.key, "candidate": candidate.label, "reason": reasons[candidate]})
    return [tried[candidate][0] for candidate in in_order if candidate not in reasons]


def _first_call(series: _Series) -> list[NDArray[Any]]:
    kept: list[Any] = []
    loop = series.prepared.work

    def first() -> None:
        begin = perf_counter()
        kept.append(loop.call(*loop.arguments))
        loop.synchronize()
        series.first_call_s = perf_counter() - begin

    series.memory_bytes = timing.peak_growth_bytes(first)
    return [value.copy() for value in series.prepared.read(kept[0])]


def _warm(series: _Series, begin: float, plan: Plan) -> str | None:
    """Check that all work is timed, calibrate, warm up; why the candidate is left out, or None."""
    loop, start = series.prepared.work, perf_counter()
    fault = timing.untimed_work(loop, series.prepared.read)
    if fault is not None:
        return f"invalid: {fault}; its work is not on the clock"
    each = timing.time_loop(loop, 1)
    series.warm_ups.append((perf_counter() - begin, each))
    budget = _BUDGET_S[plan.mode]
    if each > budget:
        return f"one call takes {each:.2g} s; allowed: {budget:g} s a size"
    if each < _LONG_S:
        series.calls, tried = timing.calibrate(loop)
        times, series.settled = timing.warm_up(loop, series.calls, _WARM_UP_S)
        series.warm_ups += [(perf_counter() - begin, value) for value in (*tried, *times)]
    series.spent_s += perf_counter() - start
    return None


def _rounds(plan: Plan, made: list[_Series], order: Any, begin: float) -> None:
    """A sample of each a round, in a new random order; a candidate that has used its time up takes part no more."""
    budget_s = _BUDGET_S[plan.mode] * (0.65 if plan.cold else 1.0)
    costs = [_sample_s(series) for series in made]
    # Where warming up took most of the time, short calls still get the samples that an interval needs.
    least = [_FEWEST if _FEWEST * cost < _LEAST_S else 1 for cost in costs]
    with timing.collector_off():
        for number in range(plan.rounds):
            for which in order.permutation(len(made)):
                series, turn = made[which], perf_counter()
                # Whoever leaves out one round leaves out all that follow: sample i is of round i.
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


def _sample_s(series: _Series) -> float:
    return median(value for _, value in series.warm_ups[-3:]) * (series.calls + 1)


def _cold(plan: Plan, made: list[_Series], evictor: timing.Evictor, order: Any, begin: float) -> None:
    """Single calls, the caches emptied before each."""
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


def _thread_warnings(plan: Plan, settings: dict[str, dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[str]:
    """Who has other threads than were asked for, by what it says and, code by hand too, by what it keeps busy."""
    asked = f"the run asked for {plan.threads} threads and"
    said = [
        f"{asked} {name} has {own['threads']}"
        for name, own in settings.items()
        if own.get("threads") not in (None, plan.threads)
    ]
    busy: dict[str, float] = {}
    for series in found:
        busy[series["candidate"]] = max(series["processors"] or 0.0, busy.get(series["candidate"], 0.0))
    most = plan.threads + _BESIDE
    return said + [
        f"{asked} {label} keeps {value:.2g} processors busy" for label, value in busy.items() if value > most
    ]


def _main(arguments: Sequence[str]) -> None:
    wanted, got, number = arguments
    raw = measure_here(Plan.from_json(Path(wanted).read_text()), int(number))
    Path(got).write_text(json.dumps(raw, default=str))


if __name__ == "__main__":
    _main(sys.argv[1:])
