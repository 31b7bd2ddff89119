"""Dependence of the time per sample on the batch size: metrics for recipes whose problems differ only in batch size."""

from __future__ import annotations

from statistics import median
from typing import Any

from deep5.core.errors import TooFewSamples
from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.samples import median_interval

__all__ = ["LinearScaling", "LinearScalingOfOne"]


class _Shares(Observer):
    def __init__(self, batch: int | None) -> None:
        self._batch = batch
        self._found: list[float] = []

    def after_timing(self, rounds: Any) -> None:
        series: dict[tuple[str, str], dict[int, float]] = {}
        for row in rounds.rows:
            layer, _, batch = row["problem"].rpartition("-")
            series.setdefault((row["candidate"], layer), {})[int(batch)] = row["median_s"] / int(batch)
        for each in series.values():
            most = max(each)
            chosen = [batch for batch in sorted(each) if batch != most and self._batch in (None, batch)]
            self._found += [100 * each[most] / each[batch] for batch in chosen]

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
    """Samples per second of a batch as a percentage of those of the largest batch: the median over all smaller ones.

    100 % is linear scaling: half the batch takes half the time. On the clock: as for `OperatorTime`.
    """

    name = "linear_scaling"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: for every framework and layer, every batch size except the largest, in increasing order."""
        return _Shares(None)


class LinearScalingOfOne(Metric):
    """`LinearScaling` of a batch of one sample: the loss at the smallest size."""

    name = "linear_scaling_of_1"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: one for every framework and layer."""
        return _Shares(1)
