"""What a batch's size does to the time of a sample: a metric for recipes whose problems differ in the batch alone."""

from __future__ import annotations

from statistics import median
from typing import Any

from deep5.errors import TooFewSamples
from deep5.metric import Metric, Observer, Sample
from deep5.samples import median_interval

__all__ = ["LinearScaling"]


class _Shares(Observer):
    def __init__(self) -> None:
        self._found: list[float] = []

    def after_timing(self, rounds: Any) -> None:
        series: dict[tuple[str, str], dict[int, float]] = {}
        for row in rounds.rows:
            layer, _, batch = row["problem"].rpartition("-")
            series.setdefault((row["candidate"], layer), {})[int(batch)] = row["median_s"] / int(batch)
        for each in series.values():
            most = max(each)
            self._found += [100 * each[most] / each[batch] for batch in sorted(each) if batch != most]

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


class LinearScaling(Metric):
    """Samples a second of a batch as a percentage of those of the largest one: the median over all smaller ones.

    100 % is linear scaling: half the batch in half the time. On the clock: as for `OperatorTime`.
    """

    name = "linear_scaling"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: of every framework and layer, every batch size but the largest, the smallest first."""
        return _Shares()
