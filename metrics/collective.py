"""Bandwidth, latency and correctness of collectives, for recipes that benchmark them."""

from __future__ import annotations

from abc import abstractmethod
from statistics import median
from typing import Any

from deep5.bench.collective.plan import LIBRARY
from deep5.bench.collective.summary import bus_gbyte_s, faults_of
from deep5.core.errors import TooFewSamples
from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.samples import median_interval

__all__ = ["BusBandwidth", "CollectiveLatency", "RightResults"]


class _OfOneSize(Observer):
    """A quantity derived from the times of one algorithm at one size; the value uses the median time."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._seconds: tuple[float, ...] = ()
        self._size_bytes, self._ranks = 0, 0
        self._timed: tuple[str, ...] = ()

    @abstractmethod
    def size_of(self, sizes_bytes: tuple[int, ...]) -> int:
        """The size to evaluate."""

    @abstractmethod
    def number(self, size_bytes: int, seconds: float, ranks: int) -> float:
        """Convert a time to the metric's unit."""

    def after_collectives(self, times: Any, summary: Any) -> None:
        self._size_bytes, self._ranks = self.size_of(times.plan.sizes_bytes), times.ranks
        self._timed = times.plan.algorithms
        for each in times.measured:
            if (each.algorithm, each.size_bytes) == (self._algorithm, self._size_bytes):
                self._seconds = each.seconds

    def _reported(self, seconds: float) -> float:
        return self.number(self._size_bytes, seconds, self._ranks)

    def samples(self) -> list[Sample]:
        return [Sample(self._reported(seconds)) for seconds in self._seconds]

    def value(self) -> float | None:
        return self._reported(median(self._seconds)) if self._seconds else None

    def interval(self) -> tuple[float, float] | None:
        try:
            found = median_interval(self._seconds)
        except TooFewSamples:
            return None
        low, high = sorted((self._reported(found.low), self._reported(found.high)))
        return low, high

    def missing(self) -> str | None:
        if not self._timed:
            return "no collective was timed"
        return f"{self._algorithm!r} was not timed; allowed: {', '.join(self._timed)}"


class _BusBandwidth(_OfOneSize):
    def size_of(self, sizes_bytes: tuple[int, ...]) -> int:
        return max(sizes_bytes)

    def number(self, size_bytes: int, seconds: float, ranks: int) -> float:
        return bus_gbyte_s(size_bytes, seconds, ranks)


class BusBandwidth(Metric):
    """Bus bandwidth at the largest size in 10**9 bytes per second: S / t * 2(n - 1)/n for all-reduce over n ranks.

    The value and its interval come from the median time.

    On the clock: whole calls after a barrier, on the slowest rank.

    Args:
        algorithm: The algorithm; "library" is the communicator's own.

    References:
        NVIDIA, nccl-tests, doc/PERFORMANCE.md, all-reduce.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> from deep5.core.metric import parse_goal
    >>> plan = SimpleNamespace(sizes_bytes=(8, 1_000_000), algorithms=("library", "ring"))
    >>> measured = [
    ...     SimpleNamespace(algorithm="ring", size_bytes=8, seconds=(2e-5, 3e-5, 4e-5)),
    ...     SimpleNamespace(algorithm="ring", size_bytes=1_000_000, seconds=(9e-4, 1e-3, 2e-3)),
    ... ]
    >>> observer = d5.BusBandwidth("ring").observer()
    >>> observer.after_collectives(SimpleNamespace(plan=plan, ranks=4, measured=measured), summary=None)
    >>> round(observer.value(), 6)  # 10⁶ B / 10⁻³ s · 2 (4 − 1) / 4, of the median time at the largest size
    1.5
    >>> str(parse_goal(d5.BusBandwidth("ring"), "> 900 MB/s"))
    '> 0.9'
    """

    name = "bus_bandwidth"
    unit = "GB/s"
    direction = "higher"

    def __init__(self, algorithm: str = LIBRARY) -> None:
        self.algorithm = algorithm

    def observer(self) -> Observer:
        """Samples: the bus bandwidth of every call."""
        return _BusBandwidth(self.algorithm)


class _Latency(_OfOneSize):
    def size_of(self, sizes_bytes: tuple[int, ...]) -> int:
        return min(sizes_bytes)

    def number(self, size_bytes: int, seconds: float, ranks: int) -> float:
        return seconds * 1e6


class CollectiveLatency(Metric):
    """Median microseconds per call at the smallest size.

    On the clock: whole calls after a barrier, on the slowest rank.

    Args:
        algorithm: The algorithm; "library" is the communicator's own.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> plan = SimpleNamespace(sizes_bytes=(8, 1_000_000), algorithms=("library", "ring"))
    >>> measured = [
    ...     SimpleNamespace(algorithm="ring", size_bytes=8, seconds=(2e-5, 3e-5, 4e-5)),
    ...     SimpleNamespace(algorithm="ring", size_bytes=1_000_000, seconds=(9e-4, 1e-3, 2e-3)),
    ... ]
    >>> observer = d5.CollectiveLatency("ring").observer()
    >>> observer.after_collectives(SimpleNamespace(plan=plan, ranks=4, measured=measured), summary=None)
    >>> round(observer.value(), 6)  # microseconds, the median at the smallest size
    30.0
    >>> observer = d5.CollectiveLatency("tree").observer()
    >>> observer.after_collectives(SimpleNamespace(plan=plan, ranks=4, measured=measured), summary=None)
    >>> observer.value(), observer.missing()
    (None, "'tree' was not timed; allowed: library, ring")
    """

    name = "collective_latency"
    unit = "us"
    direction = "lower"

    def __init__(self, algorithm: str = LIBRARY) -> None:
        self.algorithm = algorithm

    def observer(self) -> Observer:
        """Samples: the time of every call."""
        return _Latency(self.algorithm)


class _RightResults(Observer):
    def __init__(self) -> None:
        self._share: float | None = None

    def after_collectives(self, times: Any, summary: Any) -> None:
        right = [not faults_of(each, times) for each in times.measured]
        self._share = 100 * sum(right) / len(right)

    def samples(self) -> list[Sample]:
        return [] if self._share is None else [Sample(self._share)]

    def value(self) -> float | None:
        return self._share


class RightResults(Metric):
    """Percentage of all algorithms and sizes whose results are correct.

    A result is correct if it is within the rounding bound of a float64 sum, bit-identical on all ranks, and sent the
    number of bytes in the algorithm's formula.

    Nothing is on a clock. The warnings list the wrong results.

    >>> import deep5 as d5
    >>> from deep5.bench.collective.measure import measure_collectives
    >>> from deep5.bench.collective.plan import CollectivePlan
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> def wrong(communicator, buffer, **options):  # leaves each rank its own buffer
    ...     pass
    >>> plan = CollectivePlan(algorithms=("library", "wrong"), sizes_bytes=(64,))
    >>> times, _ = run_in_threads(2, lambda communicator: measure_collectives(communicator, plan, {"wrong": wrong}))
    >>> observer = d5.RightResults().observer()
    >>> observer.after_collectives(times, summary=None)
    >>> observer.value()
    50.0
    """

    name = "right_results"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """One sample: the percentage."""
        return _RightResults()
