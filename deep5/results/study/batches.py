"""Accuracy and time of a study's candidates against their batch size: the points, and the chart."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from deep5.core.charts import WIDTH, altair, by_name, doubling, line_styles, logarithmic, stacked
from deep5.core.errors import UsageError
from deep5.results.result import Result

__all__ = ["BatchPoint", "batch_chart", "batch_points"]

_HEIGHT = 200


class BatchPoint(NamedTuple):
    """One candidate's point.

    Attributes:
        series: Its line: the name of the candidate without the batch size.
        batch: Samples per batch; of growing batches, in the first epoch.
        accuracy: Mean final test accuracy over the seeds, in percent.
        low: Minimum over the seeds.
        high: Maximum over the seeds.
        seconds: Median of the training's wall-clock time, evaluations included.
        soonest: Minimum.
        latest: Maximum.
        seeds: Number of seeds.
    """

    series: str
    batch: int
    accuracy: float
    low: float
    high: float
    seconds: float
    soonest: float
    latest: float
    seeds: int


def batch_points(runs: Mapping[str, Sequence[Result]]) -> list[BatchPoint]:
    """The points of candidates that are named by a batch size, such as `"linear 256"` or `"batch_size=256"`.

    Args:
        runs: The finished runs, by candidate.

    Returns:
        Points of every line with at least two batch sizes, by line and batch size; runs without a test accuracy and a
        wall-clock time are omitted. Empty: the study does not compare batch sizes.
    """
    lines: dict[str, dict[int, BatchPoint]] = {}
    for name, own in runs.items():
        known = [pair for run in own if (pair := _values(run)) is not None]
        size = _batch_size(own[0]) if own else None
        series = None if size is None else _series(name, size)
        if known and size is not None and series is not None:
            lines.setdefault(series, {})[size] = _point(series, size, known)
    kept = [line for line in lines.values() if len(line) > 1]
    return [line[size] for line in kept for size in sorted(line)]


def _values(run: Result) -> tuple[float, float] | None:
    found = []
    for metric in ("test_accuracy", "wall_clock_time"):
        values = [verdict.value for verdict in run.verdicts if verdict.name == metric]
        if len(values) != 1 or values[0] is None or not math.isfinite(values[0]):
            return None
        found.append(values[0])
    return found[0], found[1]


def _batch_size(run: Result) -> int | None:
    parts = {**run.document["recipe"]["fixed"], **run.document["recipe"]["mutable"]}
    size = parts.get("batch_size")
    if isinstance(size, Mapping) and size.get("batches") == "growing":
        size = size.get("start")
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def _series(name: str, size: int) -> str | None:
    """The name without the batch size; None if it is not named by it."""
    found = re.search(rf"(batch_size=|\b){size}\b", name)
    if found is None:
        return None
    return re.sub(r"\s+", " ", name[: found.start()] + name[found.end() :]).strip(" ,") or "all"


def _point(series: str, size: int, known: Sequence[tuple[float, float]]) -> BatchPoint:
    accuracies, times = zip(*known, strict=True)
    return BatchPoint(
        series=series,
        batch=size,
        accuracy=mean(accuracies),
        low=min(accuracies),
        high=max(accuracies),
        seconds=median(times),
        soonest=min(times),
        latest=max(times),
        seeds=len(known),
    )


def batch_chart(points: Sequence[BatchPoint], title: str = "") -> Any:
    """Two panels against the batch size, with one line per rule: test accuracy, and time of the whole training.

    Error bars are the range over the seeds.

    Args:
        points: From `batch_points`.
        title: Title of the chart.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    if not points:
        raise UsageError("no points to draw; allowed: at least one")
    names = list(dict.fromkeys(point.series for point in points))
    x = doubling(alt, "batch:Q", sorted({point.batch for point in points}), "batch size")
    color = by_name(alt.Color, "series:N", line_styles(names)[0], title=None)
    data = alt.Chart(alt.Data(values=[point._asdict() for point in points]))
    accuracy = alt.Y("accuracy:Q", title="test accuracy (%)", scale=alt.Scale(zero=False))
    ends = [end for point in points for end in (point.soonest, point.latest)]
    time = logarithmic(alt, alt.Y, "seconds:Q", ends, "training time", height=_HEIGHT)
    panels = [
        alt.layer(
            data.mark_line().encode(x=x, y=y, color=color),
            data.mark_circle(size=45, opacity=1).encode(x=x, y=y, color=color),
            data.mark_rule().encode(x=x, y=alt.Y(f"{low}:Q"), y2=f"{high}:Q", color=color),
        ).properties(width=WIDTH, height=_HEIGHT)
        for y, low, high in ((accuracy, "low", "high"), (time, "soonest", "latest"))
    ]
    seeds = {point.seeds for point in points}
    over = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(*seeds)
    notes = [f"{over} seeds: mean accuracy, median time; bars: smallest and largest"] if max(seeds) > 1 else []
    return stacked(alt, panels, title, notes)
