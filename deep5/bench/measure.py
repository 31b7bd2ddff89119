"""Timing of operators on every framework: in alternation, in a new random order each round, with all raw times kept.

The rigorous mode uses fresh processes, in which threads can be set that a framework fixes at its start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

from deep5.bench.agreement import Results, difference, standard_of
from deep5.bench.candidates import Candidate, candidates, prepare, random_values, reason_of, set_numerics
from deep5.bench.peaks import peaks
from deep5.bench.plan import Plan, Workload, framework_of, remarks, workloads
from deep5.bench.series import Series, call_first, sample, sample_cold, warm_up
from deep5.core.errors import Deep5Error, MissingDependency, RunFailed, UsageError
from deep5.core.plugins import framework, uninterrupted
from deep5.core.progress import Steps, Tell, unreported
from deep5.core.python_child import ask, keep
from deep5.core.seeds import derive_seed, generator
from deep5.measuring import loops as timing
from deep5.operators.checks.survival import death
from deep5.recipe.operator_names import names_file
from deep5.recipe.register import refuse_local

__all__ = ["SCOPE", "measure", "measure_here", "measure_series", "stage_name"]

SCOPE = (
    "whole calls with inputs in the framework's memory, each finished by synchronize before the next begins; a "
    "direction with gradients includes the forward pass; the loop's own time is stated, not subtracted"
)

# Processors beyond the number of threads that a candidate may keep busy, for the interpreter's own work.
_BESIDE = 0.3
_TIMEOUT_S = 3600


def measure(plan: Plan, *, tell: Tell = unreported) -> list[dict[str, Any]]:
    """Measure a plan in this process, or in fresh ones in the rigorous mode or for an operator of a file.

    Args:
        plan: The plan.
        tell: Called with a `ProgressLine` before each process, and in this process before each workload, off the clock.

    Returns:
        The results of `measure_here`, one per process.

    Raises:
        UsageError: The plan names something that does not exist.
        RunFailed: A process failed, or no candidate could be timed.
    """
    workloads(plan)  # its errors are reported before processes start
    # Code of a file may crash or exit: it runs in a separate process, which reports this.
    of_files = any(map(names_file, (plan.operator or "", *plan.frameworks)))
    if plan.mode == "rigorous" or of_files:
        refuse_local("frameworks", plan.frameworks)
        refuse_local("operators", plan.operator)
    for name in plan.frameworks:
        if not names_file(name):
            _check_framework(name)
    if plan.mode == "rigorous":
        found, steps = [], Steps(plan.processes, tell)
        for number in range(plan.processes):
            steps.say("timing: processes")
            found.append(_in_fresh_process(plan, number))
            steps.advance()
    elif of_files:
        found = [_in_fresh_process(plan, 0)]
    else:
        found = [measure_here(plan, tell=tell)]
    if not any(raw["series"] for raw in found):
        reasons = [entry["reason"] for raw in found for entry in raw["left_out"]] or ["no workload"]
        raise RunFailed(f"no candidate could be timed; the first reason: {reasons[0]}")
    return found


def _check_framework(name: str) -> None:
    try:
        with uninterrupted():
            framework(name)
    except MissingDependency:
        return  # it is listed, with the command that installs it


def _in_fresh_process(plan: Plan, number: int) -> dict[str, Any]:
    answer = ask(_measure_for_parent, plan.to_json(), number, time_limit_s=_TIMEOUT_S, hear=keep)
    ended, name = answer.ended, (plan.operator or str(plan.problems)).rpartition(":")[2]
    if ended.stopped is not None:
        raise RunFailed(
            f"{name} {ended.stopped}{ended.where} (it ran in a child process, now stopped); remedy: look for an "
            "endless loop, or run fewer sizes"
        )
    # An operator's output is for its author; that of frameworks at startup is not.
    sys.stdout.write(ended.output.decode(errors="replace"))
    if answer.fault is not None:
        raise RunFailed(death(name, ended.status, ended.doing, ended.errors.decode(errors="replace")))
    raw: dict[str, Any] = answer.value
    if "refused" in raw:
        raise UsageError(raw["refused"])
    if "failed" in raw:
        raise RunFailed(raw["failed"])
    return raw


def measure_here(
    plan: Plan, process: int = 0, report: Callable[[str], object] = unreported, *, tell: Tell = unreported
) -> dict[str, Any]:
    """Measure a plan in this process, and the machine's peaks before and after.

    Args:
        plan: The plan.
        process: Its number, for the record and the order.
        report: Called before each step that may crash, with words that follow "in".
        tell: Called with a `ProgressLine` before each workload, off the clock.

    Returns:
        The result of `measure_series`; `roofline`, and `peaks_flop_s` before and after.

    Raises:
        Deep5Error: The timer's self-test fails.
    """
    begin = perf_counter()
    raw, works, ready = _started(plan, process)
    names = [candidate.framework for candidate in ready if not candidate.bare]
    before = peaks(plan, names)
    _time(plan, raw, works, ready, report, begin, tell)
    report("the measurement of peaks")
    after = peaks(plan, names, before)
    roofline = before.merged(after)
    raw["roofline"] = {**asdict(roofline), "seen": dict(roofline.seen)}
    raw["peaks_flop_s"] = [found.flop_s for found in (before, after)]
    return raw


def measure_series(plan: Plan, process: int = 0, report: Callable[[str], object] = unreported) -> dict[str, Any]:
    """Measure a plan in this process, without peaks, which load frameworks that the plan does not name.

    Args:
        plan: The plan.
        process: Its number, for the record and the order.
        report: As for `measure_here`.

    Returns:
        `series`, each with its raw times; `left_out`, each with its reason; `settings` by framework; `warnings`;
        `resolution_s` and `overhead_s` of the clock and of the loop.

    Raises:
        Deep5Error: The timer's self-test fails.
    """
    begin = perf_counter()
    raw, works, ready = _started(plan, process)
    _time(plan, raw, works, ready, report, begin)
    return raw


def _started(plan: Plan, process: int) -> tuple[dict[str, Any], list[Workload], list[Candidate]]:
    """The document to fill, the workloads, and the candidates that are ready; the document lists the others as left
    out."""
    timing.self_test()
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
    return raw, works, ready


def _time(
    plan: Plan,
    raw: dict[str, Any],
    works: Sequence[Workload],
    ready: Sequence[Candidate],
    report: Callable[[str], object],
    begin: float,
    tell: Tell = unreported,
) -> None:
    """Add the times, settings, and warnings of the ready candidates to the document."""
    evictor = timing.Evictor(plan.threads) if plan.cold else None
    order = generator(derive_seed(plan.seed, "bench order", raw["process"]), "order")
    with timing.collector_spared():
        steps = Steps(len(works), tell)
        for work in works:
            steps.say(f"timing: {work.direction.name} of {work.key['problem']}")
            inputs, grads = random_values(work, plan.seed, plan.bounds)
            made, standard = _prepared(plan, work, ready, inputs, grads, raw, order, begin, report)
            report(stage_name(work.key))
            sample(plan, made, order, begin)
            report(f"the check of {work.direction.name} after the timed calls")
            made = _still_right(made, standard, raw)
            if evictor is not None:
                sample_cold(plan, made, evictor, order, begin)
            for series in made:
                name = series.candidate.framework
                if not series.candidate.bare and name not in raw["settings"]:  # hand-written code does not report them
                    raw["settings"][name] = series.prepared.settings()
                raw["series"].append(series.reported())
            steps.advance()
    if evictor is not None:
        evictor.close()
    raw["warnings"] += _thread_warnings(plan, raw["settings"], raw["series"])


def stage_name(key: Mapping[str, str]) -> str:
    """The report of the stage that samples a workload."""
    return f"the timed calls of {key['direction']} of {key['problem']}"


def _start(plan: Plan, candidate: Candidate, raw: dict[str, Any]) -> str | None:
    """Load a framework and set its numerics and threads before it computes; why that fails, or None."""
    try:
        engine = framework_of(plan, candidate.framework)
    except MissingDependency as error:
        return str(error)
    requested: dict[str, Callable[[], None]] = {
        "bit-identical results and without TF32": lambda: set_numerics(engine, plan),
        f"{plan.threads} threads": lambda: engine.set_threads(plan.threads),
    }
    for what, apply in requested.items():
        try:
            apply()
        except UsageError as error:
            if not candidate.bare:
                raw["warnings"].append(
                    f"{candidate.framework} does not run with {what}: {error}; remedy: --rigorous, which starts fresh "
                    "processes"
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
    report: Callable[[str], object],
) -> tuple[list[Series], Any]:
    """All candidates that run this workload correctly, after first call, check of results, calibration, and warm-up;
    and the results to which all are compared.

    First calls have a random order, because later candidates find memory and kernels cached by earlier ones.
    """
    tried: dict[Candidate, tuple[Series, Results]] = {}
    reasons: dict[Candidate, str] = {}

    for which in order.permutation(len(ready)):
        candidate = ready[which]
        report(f"the first call of {work.direction.name} on {candidate.label}")
        try:
            series = Series(work=work, candidate=candidate, prepared=prepare(candidate, plan, work, inputs, grads))
            results = Results(label=candidate.label, bare=candidate.bare, arrays=call_first(series))
            reason = difference(work, results, None)
        except UsageError:
            raise
        except Exception as error:  # any error of a framework is its answer, and is listed
            reason = reason_of(error)
        if reason is None:
            tried[candidate] = series, results
        else:
            reasons[candidate] = reason
    in_order = [candidate for candidate in ready if candidate in tried]
    standard = standard_of(work, [tried[candidate][1] for candidate in in_order])
    for candidate in in_order:
        series, results = tried[candidate]
        report(f"the warm-up of {work.direction.name} on {candidate.label}")
        try:
            reason = standard if isinstance(standard, str) else difference(work, results, standard)
            reason = reason or warm_up(series, begin, plan)
        except Exception as error:  # as above
            reason = reason_of(error)
        if reason is not None:
            reasons[candidate] = reason
    for candidate in ready:
        if candidate in reasons:
            raw["left_out"].append({**work.key, "candidate": candidate.label, "reason": reasons[candidate]})
    return [tried[candidate][0] for candidate in in_order if candidate not in reasons], standard


def _still_right(made: Sequence[Series], standard: Any, raw: dict[str, Any]) -> list[Series]:
    """Those whose results are right after the timed calls, too; the document lists the others as left out."""
    found = []
    for series in made:
        label = series.candidate.label
        try:
            own = series.prepared
            arrays = own.read(own.work.call(*own.work.arguments))
            reason = difference(series.work, Results(label=label, bare=series.candidate.bare, arrays=arrays), standard)
            if reason is None and (fault := timing.untimed_work(own.work, own.read)) is not None:
                reason = f"{fault}; its work is not on the clock"
        except Exception as error:  # any error of a framework is its answer, and is listed
            reason = reason_of(error)
        if reason is None:
            found.append(series)
        else:
            reason = f"after the timed calls: {reason}"
            raw["left_out"].append({**series.work.key, "candidate": label, "reason": reason})
    return found


def _thread_warnings(plan: Plan, settings: dict[str, dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[str]:
    """Candidates whose threads differ from the requested ones, by their report and by the processors they keep busy."""
    requested = f"the run requested {plan.threads} threads and"
    said = [
        f"{requested} {name} has {own['threads']}"
        for name, own in settings.items()
        if own.get("threads") not in (None, plan.threads)
    ]
    busy: dict[str, float] = {}
    for series in found:
        busy[series["candidate"]] = max(series["processors"] or 0.0, busy.get(series["candidate"], 0.0))
    most = plan.threads + _BESIDE
    return said + [
        f"{requested} {label} keeps {value:.2g} processors busy" for label, value in busy.items() if value > most
    ]


def _measure_for_parent(plan: str, number: int, report: Callable[[str], object]) -> dict[str, Any]:
    """In a fresh process: measure a plan in JSON; the result is in JSON types."""
    try:
        raw = measure_here(Plan.from_json(plan), number, report)
    except UsageError as error:
        raw = {"refused": str(error)}
    except Deep5Error as error:
        raw = {"failed": str(error)}
    report("the end")
    made: dict[str, Any] = json.loads(json.dumps(raw, default=str))
    return made
