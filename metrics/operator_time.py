"""Time of operators on a framework, through deep5 and bare, for recipes that time operators (level 0)."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from deep5.core.errors import TooFewSamples
from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.samples import median_interval

__all__ = ["BareRatio", "OperatorCost", "OperatorCoverage", "OperatorTime"]


class _OverSizes(Observer):
    """The median over all sizes of one value per size."""

    def __init__(self, numbers: Callable[[Any], list[float]]) -> None:
        self._numbers = numbers
        self._found: list[float] = []

    def after_timing(self, rounds: Any) -> None:
        self._found = self._numbers(rounds)

    def samples(self) -> list[Sample]:
        return [Sample(value) for value in self._found]

    def value(self) -> float | None:
        return median(self._found) if self._found else None

    def interval(self) -> tuple[float, float] | None:
        try:
            interval = median_interval(self._found)
        except TooFewSamples:
            return None
        return interval.low, interval.high


class OperatorTime(Metric):
    """Milliseconds per call through deep5: the median over all sizes, directions and frameworks.

    On the clock: whole calls, each synchronized, with inputs in the framework's memory; a direction with gradients
    includes the forward pass.

    Args:
        framework: Only this framework; None: all.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> rows = [
    ...     {"framework": "pytorch", "bare": False, "median_s": 0.002},
    ...     {"framework": "pytorch", "bare": True, "median_s": 0.001},
    ...     {"framework": "reference", "bare": False, "median_s": 0.004},
    ... ]
    >>> every, one = d5.OperatorTime().observer(), d5.OperatorTime(framework="reference").observer()
    >>> for observer in (every, one):
    ...     observer.after_timing(SimpleNamespace(rows=rows))
    >>> every.value(), one.value()  # milliseconds; what is bare does not count
    (3.0, 4.0)
    """

    name = "operator_time"
    unit = "ms"
    direction = "lower"

    def __init__(self, framework: str | None = None) -> None:
        self.framework = framework

    def observer(self) -> Observer:
        """Samples: the median of every size, direction and framework."""

        def numbers(times: Any) -> list[float]:
            wanted = (None, self.framework) if self.framework is None else (self.framework,)
            return [
                row["median_s"] * 1e3
                for row in times.rows
                if not row["bare"] and (None in wanted or row["framework"] in wanted)
            ]

        return _OverSizes(numbers)


class BareRatio(Metric):
    """Ratio of the time through deep5 to the bare framework's: the median over all sizes, directions and frameworks.

    On the clock: as for `OperatorTime`; both sides of a ratio are measured in the same rounds.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> about = {"problem": "64x64", "direction": "forward", "framework": "pytorch"}
    >>> series = [  # of each round, its number and seconds
    ...     {**about, "bare": False, "samples": [(0, 11e-6), (1, 12e-6), (2, 30e-6)]},
    ...     {**about, "bare": True, "samples": [(0, 10e-6), (1, 10e-6), (2, 20e-6)]},
    ... ]
    >>> observer = d5.BareRatio().observer()
    >>> observer.after_timing(SimpleNamespace(raw=[{"series": series}]))
    >>> round(observer.value(), 6)  # the median of 1.1, 1.2 and 1.5
    1.2
    """

    name = "bare_ratio"
    unit = "ratio"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the median of the rounds' ratios of every size, direction and framework."""
        return _OverSizes(lambda times: [median(a / b for a, b in pair) for pair in _paired(times)])


class OperatorCost(Metric):
    """Microseconds that deep5 adds to a call of the bare framework: the median over all sizes.

    On the clock: as for `OperatorTime`; both sides of a difference are measured in the same rounds.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> about = {"problem": "64x64", "direction": "forward", "framework": "pytorch"}
    >>> series = [  # of each round, its number and seconds
    ...     {**about, "bare": False, "samples": [(0, 11e-6), (1, 12e-6), (2, 30e-6)]},
    ...     {**about, "bare": True, "samples": [(0, 10e-6), (1, 10e-6), (2, 20e-6)]},
    ... ]
    >>> observer = d5.OperatorCost().observer()
    >>> observer.after_timing(SimpleNamespace(raw=[{"series": series}]))
    >>> round(observer.value(), 6)  # microseconds, the median of 1, 2 and 10
    2.0
    """

    name = "operator_cost"
    unit = "us"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the median of the rounds' differences of every size, direction and framework."""
        return _OverSizes(lambda times: [median((a - b) * 1e6 for a, b in pair) for pair in _paired(times)])


class _Coverage(Observer):
    def __init__(self) -> None:
        self._share: float | None = None

    def after_timing(self, rounds: Any) -> None:
        through = [counts for label, counts in rounds.coverage.items() if not label.endswith("(bare)")]
        self._share = 100 * sum(c["measured"] for c in through) / sum(c["of"] for c in through)

    def samples(self) -> list[Sample]:
        return [] if self._share is None else [Sample(self._share)]

    def value(self) -> float | None:
        return self._share


class OperatorCoverage(Metric):
    """Percentage of all problems and directions measured through deep5, over all frameworks.

    Nothing is on a clock. The result lists what was not measured, with reasons.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> coverage = {
    ...     "pytorch": {"measured": 4, "of": 4},
    ...     "pytorch (bare)": {"measured": 4, "of": 4},
    ...     "reference": {"measured": 2, "of": 4},
    ... }
    >>> observer = d5.OperatorCoverage().observer()
    >>> observer.after_timing(SimpleNamespace(coverage=coverage))
    >>> observer.value()  # 6 of 8: what is bare does not count
    75.0
    """

    name = "operator_coverage"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """One sample: the percentage."""
        return _Coverage()


def _paired(times: Any) -> list[list[tuple[float, float]]]:
    """For each size, direction and framework with both sides: seconds through deep5 and bare, per round."""
    pairs = []
    for raw in times.raw:
        known = {(s["problem"], s["direction"], s["framework"], s["bare"]): s["samples"] for s in raw["series"]}
        for key, samples in known.items():
            other = known.get((*key[:3], True))
            if not key[3] and other:
                # Sample i is of round i; the slower side may have fewer.
                pairs.append([(ours, bare) for (_, ours), (_, bare) in zip(samples, other, strict=False)])
    return pairs
