"""Latency percentiles, throughput and goodput of a served load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from deep5.bench.serving.records import OK, Request, ServedLoad
from deep5.core.errors import UsageError

__all__ = [
    "PERCENTILES",
    "PhaseSummary",
    "nearest_rank",
    "query_latencies",
    "summarise_load",
    "summarise_phase",
    "unsure",
]

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""The latency percentiles that every result states."""

# Queries above a percentile; with fewer, single queries decide it.
_ABOVE = 10


def nearest_rank(values: Sequence[float], percentile: float) -> float:
    """A percentile by the nearest rank, without interpolation: the smallest value that is at least as large as
    `percentile` % of all values.

    Args:
        values: Shape (values,), at least one; infinite values are valid.
        percentile: Above 0 and at most 100.

    Raises:
        UsageError: There is no value, or the percentile is not in its range.

    References:
        Hyndman and Fan, Sample Quantiles in Statistical Packages, The American Statistician 50, 1996: definition 1.

    >>> nearest_rank([1.0, 2.0, 3.0, 4.0], 50), nearest_rank([1.0, 2.0, 3.0, 4.0], 50.1), nearest_rank([7.0], 99)
    (2.0, 3.0, 7.0)
    """
    if not values or not 0 < percentile <= 100:
        raise UsageError(f"percentile {percentile!r} of {len(values)} values; allowed: above 0 to 100, of at least one")
    # In exact arithmetic: 99.9 / 100 * 1000 is not 999 in floating-point numbers.
    rank = math.ceil(Fraction(str(percentile)) * len(values) / 100)
    return sorted(values)[rank - 1]


def query_latencies(requests: Sequence[Request]) -> list[float]:
    """Seconds of every query, that of its slowest request; infinite if one of them failed.

    Args:
        requests: The requests of whole queries, in order.
    """
    found: dict[int, float] = {}
    for each in requests:
        found[each.query] = max(found.get(each.query, 0.0), each.latency_s)
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class PhaseSummary:
    """One phase: the load at one rate.

    Attributes:
        rate: Target queries per second; None: the scenario has no rate.
        queries: Number of queries.
        requests: Number of requests.
        failures: Number of requests that failed.
        seconds: From the start of the phase to its last answer or failure.
        throughput: Answered requests per second.
        goodput: Requests per second of queries that were answered within the bound; None: there is no bound.
        percentiles: By percentile, the latency of queries in seconds.
        judged_s: The latency at the plan's percentile.
        met: Whether that is within the bound; None: there is no bound.
        mean_batch: Mean size of the batches that requests were in; None: none was.
        late_s: 99th percentile of the time by which the generator issued a request late.
    """

    rate: float | None
    queries: int
    requests: int
    failures: int
    seconds: float
    throughput: float
    goodput: float | None
    percentiles: dict[str, float]
    judged_s: float
    met: bool | None
    mean_batch: float | None
    late_s: float | None


def summarise_phase(load: ServedLoad, phase: int, bound_s: float | None = None) -> PhaseSummary:
    """The summary of a phase.

    Args:
        load: The load.
        phase: Number of the rate.
        bound_s: Latency bound in place of the plan's.

    >>> from deep5.bench.serving.plan import ServingPlan
    >>> plan = ServingPlan(scenario="offline", queries=2, bound_s=0.2)
    >>> rows = [
    ...     Request(request=number, query=number, phase=0, sample=0, scheduled_s=0.0, last_s=last_s)
    ...     for number, last_s in enumerate((0.1, 0.4))
    ... ]
    >>> found = summarise_phase(ServedLoad(plan=plan, requests=tuple(rows), begins_s=(0.0,)), 0)
    >>> found.throughput, found.goodput, found.percentiles["50"]
    (5.0, 2.5, 0.1)
    """
    plan, requests = load.plan, load.of_phase(phase)
    bound_s = plan.bound_s if bound_s is None else bound_s
    latencies = query_latencies(requests)
    seconds = max(each.last_s for each in requests) - load.begins_s[phase]
    answered = sum(each.status == OK for each in requests)
    judged_s = nearest_rank(latencies, plan.percentile)
    batches = [each.batch for each in requests if each.batch is not None]
    late = [each.issued_s - each.scheduled_s for each in requests if each.issued_s is not None]
    within = None if bound_s is None else sum(latency <= bound_s for latency in latencies) * plan.samples_per_query
    return PhaseSummary(
        rate=plan.rates[phase] if plan.rates else None,
        queries=len(latencies),
        requests=len(requests),
        failures=len(requests) - answered,
        seconds=seconds,
        throughput=answered / seconds,
        goodput=None if within is None else within / seconds,
        percentiles={f"{each:g}": nearest_rank(latencies, each) for each in PERCENTILES},
        judged_s=judged_s,
        met=None if bound_s is None else judged_s <= bound_s,
        mean_batch=fmean(batches) if batches else None,
        late_s=nearest_rank(late, 99.0) if late else None,
    )


def summarise_load(load: ServedLoad) -> tuple[PhaseSummary, ...]:
    """The summaries of all phases."""
    return tuple(summarise_phase(load, phase) for phase in range(load.plan.phases))


def unsure(load: ServedLoad, phases: Sequence[PhaseSummary]) -> list[str]:
    """Why the numbers of a load are uncertain, one sentence each.

    Args:
        load: The load.
        phases: The result of `summarise_load`.
    """
    plan, found = load.plan, list[str]()
    above = plan.queries * (100 - plan.percentile) / 100
    if above < _ABOVE:
        found.append(
            f"{above:.3g} of {plan.queries} queries are above the {plan.percentile:g}th percentile, so that single "
            f"queries decide it; allowed: {_ABOVE}; remedy: queries={math.ceil(_ABOVE * 100 / (100 - plan.percentile))}"
            if plan.percentile < 100
            else "the 100th percentile is the slowest query, whatever their number; remedy: percentile=99"
        )
    failed = [each for each in load.requests if each.status != OK]
    if failed:
        found.append(f"{len(failed)} of {len(load.requests)} requests failed; the first: {failed[0].status}")
    bound_s = plan.bound_s
    late = max((each.late_s for each in phases if each.late_s is not None), default=0.0)
    if plan.open_loop and bound_s is not None and late > bound_s / 10:
        found.append(
            f"the generator issued 1 % of the requests more than {late:.3g} s late, above a tenth of the bound of "
            f"{bound_s:g} s; latencies count from the scheduled time and contain it; remedy: a lower rate, or more "
            "free processors"
        )
    return found
