"""Latency, throughput, goodput and failures of a served load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deep5.bench.serving.records import OK, ServedLoad
from deep5.bench.serving.summary import nearest_rank, query_latencies, summarise_phase
from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample

__all__ = ["FailedRequests", "Goodput", "HighestRate", "LatencyPercentile", "RequestThroughput"]


class _OfLoad(Observer):
    """A number of a whole load."""

    def __init__(self, number: Callable[[ServedLoad], float | None]) -> None:
        self._number = number
        self._value: float | None = None

    def after_serving(self, load: ServedLoad) -> None:
        found = self._number(load)
        self._value = None if found is None else float(found)

    def samples(self) -> list[Sample]:
        return [] if self._value is None else [Sample(self._value)]

    def value(self) -> float | None:
        return self._value

    def missing(self) -> str | None:
        return "no load was served; the metric is for recipes with the key 'scenario'"

    def check_network(self, network: Any) -> None:
        raise UsageError("a training serves no load; allowed: in recipes with the key 'scenario'")


class _OfRate(_OfLoad):
    """A number of the phase with one rate."""

    def __init__(self, number: Callable[[ServedLoad, int], float | None], rate: float | None) -> None:
        super().__init__(lambda load: number(load, self._phase(load)))
        self._rate = rate
        self._rates: tuple[float, ...] = ()

    def after_serving(self, load: ServedLoad) -> None:
        self._rates = load.plan.rates
        if self._rate is None or self._rate in self._rates:
            super().after_serving(load)

    def _phase(self, load: ServedLoad) -> int:
        return load.plan.phases - 1 if self._rate is None else load.plan.rates.index(self._rate)

    def missing(self) -> str | None:
        if not self._rates:
            return super().missing()
        return f"no load had the rate {self._rate:g}; allowed: {', '.join(f'{rate:g}' for rate in self._rates)}"


class LatencyPercentile(Metric):
    """A percentile of the latencies of queries in seconds, by the nearest rank.

    A query that failed has an infinite latency. There is no interval: latencies of a queue depend on each other.

    On the clock: from the scheduled time of a query to the end of its last answer.

    Args:
        percentile: Above 0 and at most 100; 99 is MLPerf's for servers.
        rate: The rate, in queries per second, at which it is taken; None: the last one.

    Raises:
        UsageError: A value is out of range.

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

    def __init__(self, percentile: float = 99, rate: float | None = None) -> None:
        self.percentile = _percentile("LatencyPercentile", percentile)
        self.rate = _rate("LatencyPercentile", rate)

    def observer(self) -> Observer:
        """One sample: the percentile."""
        return _OfRate(self._taken, self.rate)

    def _taken(self, load: ServedLoad, phase: int) -> float:
        return nearest_rank(query_latencies(load.of_phase(phase)), self.percentile)


class RequestThroughput(Metric):
    """Answered requests per second, up to the last answer or failure.

    On the clock: from the start of the load to the last answer or failure.

    Args:
        rate: The rate, in queries per second, at which it is taken; None: the last one.

    Raises:
        UsageError: The rate is out of range.

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

    def __init__(self, rate: float | None = None) -> None:
        self.rate = _rate("RequestThroughput", rate)

    def observer(self) -> Observer:
        """One sample: the throughput."""
        return _OfRate(lambda load, phase: summarise_phase(load, phase).throughput, self.rate)


class Goodput(Metric):
    """Requests per second of queries that were answered within a bound.

    Queries that are late or failed do not count, and the time that they took does.

    On the clock: from the start of the load to the last answer or failure.

    Args:
        bound_s: Latency bound in seconds, above 0.
        rate: The rate, in queries per second, at which it is taken; None: the last one.

    Raises:
        UsageError: A value is out of range.

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

    def __init__(self, bound_s: float, rate: float | None = None) -> None:
        self.bound_s = _bound("Goodput", bound_s)
        self.rate = _rate("Goodput", rate)

    def observer(self) -> Observer:
        """One sample: the goodput."""
        return _OfRate(lambda load, phase: summarise_phase(load, phase, self.bound_s).goodput, self.rate)


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
        self.percentile = _percentile("HighestRate", percentile)

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


def _percentile(metric: str, percentile: Any) -> Any:
    if not is_finite(percentile) or not 0 < percentile <= 100:
        raise UsageError(f"{metric}: got {percentile!r:.60}; allowed: above 0 and at most 100")
    return percentile


def _rate(metric: str, rate: Any) -> Any:
    if rate is not None and (not is_finite(rate) or not rate > 0):
        raise UsageError(f"{metric}: got rate={rate!r:.60}; allowed: queries per second above 0, such as rate=100")
    return rate
