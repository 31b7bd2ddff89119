"""Rules 8, 9 and 14 for a served load: requests.csv is complete and possible, and serving.json follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.audit.drawn_order import seed_for
from deep5.audit.files import json_of, plain
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.serving_values import Phase, Row, read_rows

if TYPE_CHECKING:
    from deep5.bench.serving.plan import ServingPlan

__all__ = ["check_serving_rows"]

_FILE, _ROWS = "serving.json", "requests.csv"
# Two readings of one clock, or sums of its readings, and a clock of another process on the same machine.
_TICK_S, _OTHER_S = 1e-9, 1e-3
# Tolerance between the clock of the load and that of the run.
_SLACK_S = 0.01


def check_serving_rows(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """Check requests.csv, serving.json, and the metrics that follow from them.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json of a finished run.
    """
    with ledger.part(9, _FILE):
        reported, path = json_of(root, _FILE), plain(root, _ROWS)
        if not ledger.hold(9, isinstance(reported, dict), f"there is no {_FILE}"):
            return
        if not ledger.hold(8, path is not None, f"there is no {_ROWS}: the raw values are missing"):
            return
        assert path is not None  # noqa: S101 - held above
        plan, rows = _plan(document), read_rows(path)
        from deep5.results.validation import encode

        ledger.same(14, f"the plan of {_FILE}, by the recipe", reported["plan"], encode(asdict(plan)))
        if not _is_complete(ledger, plan, rows):
            return
        begins = [float(begin_s) for begin_s in reported["begins_s"]]
        if not ledger.same(8, f"the number of starts in {_FILE}", len(begins), plan.phases):
            return
        size = plan.queries * plan.samples_per_query
        phases = []
        for number, begin_s in enumerate(begins):
            own = rows[number * size : (number + 1) * size]
            phases.append(Phase(own, begin_s))
            _check_schedule(ledger, plan, number, own, begin_s)
            _check_samples(ledger, plan, number, own, int(reported["server"]["samples"]))
        _check_possible(ledger, plan, rows, float(document["resources"]["wall_time_s"]))
        _check_batches(ledger, plan, rows)
        for number, (phase, stored) in enumerate(zip(phases, reported["phases"], strict=True)):
            _check_phase(ledger, plan, number, phase, stored, rows[number * size : (number + 1) * size])
        for metric in document["metrics"]:
            _check_metric(ledger, metric, plan, phases)
        failed = [row for row in rows if not row.answered]
        said = any(f"{len(failed)} of {len(rows)} requests failed" in warning for warning in document["warnings"])
        ledger.hold(13, said or not failed, f"{len(failed)} requests failed; allowed: a warning that says so")


def _plan(document: Mapping[str, Any]) -> ServingPlan:
    from deep5.bench.serving.recipe import serving_plan
    from deep5.recipe.keys import kind_of

    parts = parts_of(document)
    keys = kind_of(parts).keys
    return serving_plan(lambda key: parts.get(key, None if key in parts else keys[key].default))


def _is_complete(ledger: Ledger, plan: ServingPlan, rows: Sequence[Row]) -> bool:
    """Every request of the plan has one row, in order, and belongs to its query and its rate."""
    size, each = plan.queries * plan.samples_per_query, plan.samples_per_query
    if not ledger.same(8, f"the number of requests of {_ROWS}, by the plan", len(rows), plan.phases * size):
        return False
    due = [(number, number // each, number // size) for number in range(plan.phases * size)]
    return ledger.same(
        8, f"the requests of {_ROWS}, by the plan", [(row.request, row.query, row.phase) for row in rows], due
    )


def _check_schedule(ledger: Ledger, plan: ServingPlan, number: int, rows: Sequence[Row], begin_s: float) -> None:
    """Scheduled times are those drawn from the seed, or in a closed loop, the ends of the previous queries."""
    each = plan.samples_per_query
    if plan.scenario in ("server", "offline"):
        times = np.zeros(plan.queries)
        if plan.scenario == "server":
            drawn = np.random.Generator(np.random.Philox(seed_for(plan.seed, "arrivals", number))).random(plan.queries)
            times = np.cumsum(-np.log1p(-drawn)) / plan.rates[number]
        found = np.array([row.scheduled_s for row in rows]) - begin_s
        right = bool(np.allclose(found, times, rtol=1e-6, atol=1e-6))
        ledger.hold(8, right, f"the scheduled times of rate {number} are not those drawn from the seed")
        return
    ends = [begin_s]
    for query in range(plan.queries - 1):
        ends.append(max(row.last_s for row in rows[query * each : (query + 1) * each]))
    issued = [(row, ends[place // each]) for place, row in enumerate(rows) if row.issued_s is not None]
    ledger.hold(
        8,
        all(abs(row.scheduled_s - due_s) <= _TICK_S for row, due_s in issued),
        "in a closed loop, a query is not scheduled at the end of the previous one",
    )


def _check_samples(ledger: Ledger, plan: ServingPlan, number: int, rows: Sequence[Row], count: int) -> None:
    random = np.random.Generator(np.random.Philox(seed_for(plan.seed, "samples", number)))
    due = random.integers(0, count, len(rows)).tolist()
    ledger.same(8, f"the samples of rate {number}, by the seed", [row.sample for row in rows], due)


def _check_possible(ledger: Ledger, plan: ServingPlan, rows: Sequence[Row], lived_s: float) -> None:
    """No request is answered before it was issued, and none after the run."""
    room = _TICK_S if plan.transport == "in_process" else _OTHER_S
    for row in rows:
        known = [time for time in (row.scheduled_s, row.issued_s, row.started_s, row.first_s) if time is not None]
        ordered = all(a <= b + room for a, b in pairwise([*known, row.last_s]))
        whole = not row.answered or None not in (row.issued_s, row.started_s, row.first_s, row.batch)
        ledger.hold(8, ordered and whole, f"request {row.request}: its times are missing or out of order")
        ledger.hold(
            8,
            row.scheduled_s >= 0 and row.last_s <= lived_s + _SLACK_S,
            f"request {row.request} was answered at {row.last_s:.6g} s, and the run took {lived_s:.6g} s",
        )


def _check_batches(ledger: Ledger, plan: ServingPlan, rows: Sequence[Row]) -> None:
    """Batches are within the limit, as large as they say, and one runs after the other."""
    batches: dict[float, list[Row]] = {}
    for row in rows:
        if row.started_s is not None:
            batches.setdefault(row.started_s, []).append(row)
    failed = any(not row.answered for row in rows)
    ends: list[tuple[float, float]] = []
    for started_s, own in sorted(batches.items()):
        sizes = {row.batch for row in own}
        size = own[0].batch or 0
        right = sizes == {size} and 1 <= size <= plan.max_batch and (len(own) == size or (failed and len(own) < size))
        where = f"the batch of request {own[0].request}"
        ledger.hold(8, right, f"{where} has {len(own)} requests and states {sizes}; allowed: up to {plan.max_batch}")
        last = {row.last_s for row in own}
        if plan.transport == "in_process":
            ledger.hold(8, len(last) == 1, f"{where} ended at {sorted(last)[:3]}; allowed: one time")
        ends.append((started_s, min(last)))
    if plan.transport == "in_process":
        right = all(end_s <= next_s + _TICK_S for (_, end_s), (next_s, _) in pairwise(ends))
        ledger.hold(8, right, "two batches ran at once; allowed: one after the other, as the server runs them")


def _check_phase(
    ledger: Ledger, plan: ServingPlan, number: int, phase: Phase, stored: Mapping[str, Any], rows: Sequence[Row]
) -> None:
    judged_s, bound_s = phase.percentile(plan.percentile), plan.bound_s
    batches = [row.batch for row in rows if row.batch is not None]
    late = sorted(row.issued_s - row.scheduled_s for row in rows if row.issued_s is not None)
    follows = {
        "rate": plan.rates[number] if plan.rates else None,
        "queries": len(phase.latencies),
        "requests": len(rows),
        "failures": phase.failures,
        "seconds": phase.seconds,
        "throughput": phase.throughput,
        "goodput": None if bound_s is None else phase.goodput(bound_s),
        "judged_s": judged_s,
        "met": None if bound_s is None else judged_s <= bound_s,
        "mean_batch": sum(batches) / len(batches) if batches else None,
        "late_s": late[-(-99 * len(late) // 100) - 1] if late else None,
    }
    for name, value in follows.items():
        ledger.same(9, f"{name} of rate {number} in {_FILE}", _number(stored.get(name)), value)
    for percent, value in stored["percentiles"].items():
        ledger.same(9, f"p{percent} of rate {number} in {_FILE}", float(value), phase.percentile(float(percent)))


def _number(value: Any) -> Any:
    """Infinities are strings in JSON."""
    return float(value) if isinstance(value, str) else value


def _check_metric(ledger: Ledger, metric: Mapping[str, Any], plan: ServingPlan, phases: Sequence[Phase]) -> None:
    """The value of a metric follows from the rows of its rate, or of the last rate."""
    name, parameters = metric["name"], metric["parameters"]
    rate = parameters.get("rate")
    if rate is not None and rate not in plan.rates:
        ledger.same(9, f"the value of {name} at a rate that the load does not have", metric["value"], None)
        return
    last = phases[-1 if rate is None else plan.rates.index(rate)]
    if name == "latency_percentile":
        follows: float = last.percentile(parameters["percentile"])
    elif name == "request_throughput":
        follows = last.throughput
    elif name == "goodput":
        follows = last.goodput(parameters["bound_s"])
    elif name == "failed_requests":
        follows = sum(phase.failures for phase in phases)
    elif name == "highest_rate":
        bound_s, percent = parameters["bound_s"], parameters["percentile"]
        pairs = zip(plan.rates, phases, strict=False)
        follows = max((rate for rate, phase in pairs if phase.percentile(percent) <= bound_s), default=0.0)
    else:
        return
    value = None if metric["value"] is None else float(metric["value"])
    ledger.same(9, f"the value of {name}, by {_ROWS}", value, float(follows))
