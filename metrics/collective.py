"""What a collective does among ranks: bandwidth, latency, and whether its results are right; for recipes of it."""

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
    """A number that follows from the times of one algorithm at one size; its value, from the median time."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._seconds: tuple[float, ...] = ()
        self._size_bytes, self._ranks = 0, 0
        self._timed: tuple[str, ...] = ()

    @abstractmethod
    def size_of(self, sizes_bytes: tuple[int, ...]) -> int:
        """Which of the sizes is looked at."""

    @abstractmethod
    def number(self, size_bytes: int, seconds: float, ranks: int) -> float:
        """What a time says, in the metric's unit."""

    def after_collectives(self, times: Any, summary: Any) -> None:
        self._size_bytes, self._ranks = self.size_of(times.plan.sizes_bytes), times.ranks
        self._timed = times.plan.algorithms
        for each in times.measured:
            if (each.algorithm, each.size_bytes) == (self._algorithm, self._size_bytes):
                self._seconds = each.seconds

    def _told(self, seconds: float) -> float:
        return self.number(self._size_bytes, seconds, self._ranks)

    def samples(self) -> list[Sample]:
        return [Sample(self._told(seconds)) for seconds in self._seconds]

    def value(self) -> float | None:
        return self._told(median(self._seconds)) if self._seconds else None

    def interval(self) -> tuple[float, float] | None:
        try:
            found = median_interval(self._seconds)
        except TooFewSamples:
            return None
        low, high = sorted((self._told(found.low), self._told(found.high)))
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
    """Bus bandwidth at the largest size in 10**9 bytes a second: S / t * 2(n - 1)/n of all-reduce by n ranks.

    The value and its interval are those of the median time.

    On the clock: whole calls behind a barrier; of the slowest rank.

    Args:
        algorithm: Whose; "library" is the communicator's own.

    References:
        NVIDIA, nccl-tests, doc/PERFORMANCE.md, all-reduce.
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
    """Microseconds of a call at the smallest size: the median.

    On the clock: whole calls behind a barrier; of the slowest rank.

    Args:
        algorithm: Whose; "library" is the communicator's own.
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
    """Percentage of all algorithms and sizes whose results are right.

    Right is what is within the bound of rounding of a sum in float64, the same bits on every rank, and sent as many
    bytes as the algorithm's formula says.

    Nothing is on a clock. Which are wrong is among the warnings.
    """

    name = "right_results"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """One sample: the percentage."""
        return _RightResults()
