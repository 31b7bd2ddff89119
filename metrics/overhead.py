"""Overhead of one piece of code over another, timed in turn in one process."""

from __future__ import annotations

from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.samples import Interval, median_interval, non_inferiority
from deep5.measuring.timing import Rounds

__all__ = ["Overhead", "Slowdown"]


class _Overhead(Observer):
    def __init__(self) -> None:
        self._differences: list[float] = []
        self._interval: Interval | None = None

    def after_timing(self, rounds: Rounds) -> None:
        self._differences = [
            (candidate - (first + second) / 2) / rounds.steps * 1e6
            for candidate, first, second in zip(rounds.candidate, rounds.baseline, rounds.baseline_again, strict=True)
        ]
        self._interval = median_interval(self._differences)

    def samples(self) -> list[Sample]:
        return [Sample(value) for value in self._differences]

    def value(self) -> float | None:
        return self._interval.high if self._interval else None

    def interval(self) -> tuple[float, float] | None:
        return (self._interval.low, self._interval.high) if self._interval else None


class Overhead(Metric):
    """Microseconds per step that the candidate takes longer than the baseline.

    The value is the upper bound of the median difference's interval.

    On the clock: whole calls of many steps, divided by their number. Each round's difference is relative to the mean of
    two instances of the baseline.

    >>> import deep5 as d5
    >>> from deep5.measuring.timing import Rounds
    >>> baseline = tuple(1e-3 + 1e-6 * number for number in range(10))  # seconds per call of 100 steps
    >>> times = Rounds(
    ...     candidate=tuple(second + 2e-4 for second in baseline), baseline=baseline, baseline_again=baseline,
    ...     steps=100, warmups=1, first_call_s=0.1,
    ... )
    >>> observer = d5.Overhead().observer()
    >>> observer.after_timing(times)
    >>> round(observer.value(), 6)  # microseconds per step: 200 us per call of 100 steps
    2.0
    """

    name = "overhead"
    unit = "us"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the difference of every round."""
        return _Overhead()


class _Slowdown(Observer):
    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._value: float | None = None
        self._interval: Interval | None = None

    def after_timing(self, rounds: Rounds) -> None:
        answer = non_inferiority(rounds.candidate, rounds.baseline, rounds.baseline_again)
        self._ratios = [ours / theirs for ours, theirs in zip(rounds.candidate, rounds.baseline, strict=True)]
        self._value, self._interval = answer.excess, answer.interval

    def samples(self) -> list[Sample]:
        return [Sample(value) for value in self._ratios]

    def value(self) -> float | None:
        return self._value

    def interval(self) -> tuple[float, float] | None:
        return (self._interval.low, self._interval.high) if self._interval else None


class Slowdown(Metric):
    """Ratio of candidate time to baseline time, by the non-inferiority test.

    The value is the upper bound of the median ratio's interval, minus the half-width of the interval of the same ratio
    between two instances of the baseline (the noise of this machine in these rounds). The interval shown is that of the
    ratio itself.

    On the clock: whole calls of many steps.

    >>> import deep5 as d5
    >>> from deep5.measuring.timing import Rounds
    >>> baseline = tuple(1e-3 + 1e-6 * number for number in range(10))  # seconds per call of 100 steps
    >>> times = Rounds(
    ...     candidate=tuple(1.05 * second for second in baseline), baseline=baseline, baseline_again=baseline,
    ...     steps=100, warmups=1, first_call_s=0.1,
    ... )
    >>> observer = d5.Slowdown().observer()
    >>> observer.after_timing(times)
    >>> round(observer.value(), 6)
    1.05
    """

    name = "slowdown"
    unit = "ratio"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the ratio of every round."""
        return _Slowdown()
