"""Latency, throughput, goodput and failures of a served load."""

from __future__ import annotations

from typing import Any

from deep5.bench.serving.records import OK, ServedLoad
from deep5.bench.serving.summary import nearest_rank, query_latencies, summarise_phase
from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample

__all__ = ["FailedRequests", "Goodput", "HighestRate", "LatencyPercentile", "RequestThroughput"]


class _OfLoad(Observer):
    """A number of a whole load."""

    def __init__(self, number: Any) -> None:
        self._number = number
        self._value: float | None = None

    def after_serving(self, load: ServedLoad) -> None:
        self._value = float(self._number(load))

    def samples(self) -> list[Sample]:
        return [] if self._value is None else [Sample(self._value)]

    def value(self) -> float | None:
        return self._value

    def missing(self) -> str | None:
        return "no load was served; the metric is for recipes with the key 'scenario'"


def _last(load: ServedLoad) -> int:
    return load.plan.phases - 1


class LatencyPercentile(Metric):
    """A percentile of the latencies of queries in seconds, by the nearest rank; with several rates, at the last one.

    A query that failed has an infinite latency. There is no interval: latencies of a queue depend on each other.

    On the clock: from the scheduled time of a query to the end of its last answer.

    Args:
        percentile: Above 0 and at most 100; 99 is MLPerf's for servers.

    Raises:
        UsageError: The percentile is out of range.

    >>> import deep5 as d5
    >>> from deep5.bench.serving.plan import ServingPlan
    >>> from deep5.bench.serving.records import Request, ServedLoad
    >>> plan = ServingPlan(scenario="offline", queries=4)
    >>> rows = [Request(request=n, query=n, phase=0, sample=0, scheduled_s=0.0, last_s=0.1 * (n + 1)) for n in range(4)]
    >>> observer = d5.LatencyPercentile(50).observer()
    >>> observer.after_serving(ServedLoad(plan=plan, requests=tuple(rows), begins_s=(0.0,)))
    >>> observer.value()
    0.2
    """

    name = "latency_percentile"
    unit = "s"
    direction = "lower"

    def __init__(self, percentile: float = 99) -> None:
        if not is_finite(percentile) or not 0 < percentile <= 100:
            raise UsageError(f"LatencyPercentile: got {percentile!r:.60}; allowed: above 0 and at most 100")
        self.percentile = percentile

    def observer(self) -> Observer:
        """One sample: the percentile."""
        return _OfLoad(lambda load: nearest_rank(query_latencies(load.of_phase(_last(load))), self.percentile))


class RequestThroughput(Metric):
    """Answered requests per second, up to the last answer or failure; with several rates, at the last one.

    On the clock: from the start of the load to the last answer or failure.

    >>> import deep5 as d5
    >>> from deep5.bench.serving.plan import ServingPlan
    >>> from deep5.bench.serving.records import Request, ServedLoad
    >>> rows = [Request(request=n, query=n, phase=0, sample=0, scheduled_s=0.0, last_s=0.5) for n in range(4)]
    >>> plan = ServingPlan(scenario="offline", queries=4)
    >>> observer = d5.RequestThroughput().observer()
    >>> observer.after_serving(ServedLoad(plan=plan, requests=tuple(rows), begins_s=(0.0,)))
    >>> observer.value()
    8.0
    """

    name = "request_throughput"
    unit = "requests/s"
    direction = "higher"

    def observer(self) -> Observer:
        """One sample: the throughput."""
        return _OfLoad(lambda load: summarise_phase(load, _last(load)).throughput)


class Goodput(Metric):
    """Requests per second of queries answered within a bound; with several rates, at the last one.

    Queries that are late or failed do not count, and the time that they took does.

    On the clock: from the start of the load to the last answer or failure.

    Args:
        bound_s: Latency bound in seconds, above 0.

    Raises:
        UsageError: The bound is not a number above 0.

    >>> import deep5 as d5
    >>> from deep5.bench.serving.plan import ServingPlan
    >>> from deep5.bench.serving.records import Request, ServedLoad
    >>> rows = [
    ...     Request(request=number, query=number, phase=0, sample=0, scheduled_s=0.0, last_s=last_s)
    ...     for number, last_s in enumerate((0.1, 0.2, 0.4))
    ... ]
    >>> plan = ServingPlan(scenario="offline", queries=3)
    >>> observer = d5.Goodput(0.2).observer()
    >>> observer.after_serving(ServedLoad(plan=plan, requests=tuple(rows), begins_s=(0.0,)))
    >>> observer.value()
    5.0
    """

    name = "goodput"
    unit = "requests/s"
    direction = "higher"

    def __init__(self, bound_s: float) -> None:
        self.bound_s = _bound("Goodput", bound_s)

    def observer(self) -> Observer:
        """One sample: the goodput."""
        return _OfLoad(lambda load: summarise_phase(load, _last(load), self.bound_s).goodput)


class HighestRate(Metric):
    """The highest measured rate, in queries per second, whose latency percentile is within a bound; 0 if none is.

    MLPerf's metric of the scenario `server`. Use several rates in the recipe.

    On the clock: as for `LatencyPercentile`.

    Args:
        bound_s: Latency bound in seconds, above 0.
        percentile: Above 0 and at most 100.

    Raises:
        UsageError: A value is out of range.

    References:
        MLCommons, MLPerf Inference Rules, section "Scenarios": server.

    >>> import deep5 as d5
    >>> from deep5.bench.serving.plan import ServingPlan
    >>> from deep5.bench.serving.records import Request, ServedLoad
    >>> rows = [
    ...     Request(request=number, query=number, phase=number, sample=0, scheduled_s=0.0, last_s=last_s)
    ...     for number, last_s in enumerate((0.1, 0.15, 0.4))
    ... ]
    >>> plan = ServingPlan(scenario="server", queries=1, rates=(50.0, 100.0, 200.0))
    >>> observer = d5.HighestRate(0.2).observer()
    >>> observer.after_serving(ServedLoad(plan=plan, requests=tuple(rows), begins_s=(0.0, 0.0, 0.0)))
    >>> observer.value()
    100.0
    """

    name = "highest_rate"
    unit = "queries/s"
    direction = "higher"

    def __init__(self, bound_s: float, percentile: float = 99) -> None:
        self.bound_s = _bound("HighestRate", bound_s)
        if not is_finite(percentile) or not 0 < percentile <= 100:
            raise UsageError(f"HighestRate: got {percentile!r:.60}; allowed: above 0 and at most 100")
        self.percentile = percentile

    def observer(self) -> Observer:
        """One sample: the rate."""
        return _OfLoad(self._highest)

    def _highest(self, load: ServedLoad) -> float:
        within = [
            rate
            for phase, rate in enumerate(load.plan.rates)
            if nearest_rank(query_latencies(load.of_phase(phase)), self.percentile) <= self.bound_s
        ]
        return max(within, default=0.0)


class FailedRequests(Metric):
    """Number of requests of all rates that failed: errors, answers that did not come, and requests not issued.

    Nothing is on a clock. The warnings state the first failure; requests.csv states each.

    >>> import deep5 as d5
    >>> from deep5.bench.serving.plan import ServingPlan
    >>> from deep5.bench.serving.records import Request, ServedLoad
    >>> rows = [
    ...     Request(request=number, query=number, phase=0, sample=0, scheduled_s=0.0, last_s=0.1, status=status)
    ...     for number, status in enumerate(("ok", "the server ended", "ok"))
    ... ]
    >>> observer = d5.FailedRequests().observer()
    >>> plan = ServingPlan(scenario="offline", queries=3)
    >>> observer.after_serving(ServedLoad(plan=plan, requests=tuple(rows), begins_s=(0.0,)))
    >>> observer.value()
    1.0
    """

    name = "failed_requests"
    unit = "requests"
    direction = "lower"

    def observer(self) -> Observer:
        """One sample: the number."""
        return _OfLoad(lambda load: sum(each.status != OK for each in load.requests))


def _bound(metric: str, bound_s: Any) -> Any:
    if not is_finite(bound_s) or not bound_s > 0:
        raise UsageError(f"{metric}: got bound_s={bound_s!r:.60}; allowed: seconds above 0, such as bound_s=0.05")
    return bound_s
