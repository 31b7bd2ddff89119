"""Charts of training: accuracy against epoch and loss against time, a line per candidate, a band over its seeds.

They compare optimizers like Ben-Nun et al., A Modular Benchmarking Infrastructure for High-Performance and Reproducible
Deep Learning, IPDPS 2019. Needs the packages of the extra `report`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from deep5.core.charts import WIDTH, altair, by_name, headed, line_styles, logarithmic, same_axis
from deep5.core.errors import UsageError
from deep5.results.result import Result

__all__ = [
    "Point",
    "accuracy_chart",
    "accuracy_points",
    "loss_chart",
    "loss_points",
    "return_chart",
    "return_points",
    "undrawn",
]

_HEIGHT = 300


class Point(NamedTuple):
    """One point of a line.

    Attributes:
        candidate: Name of the candidate.
        epoch: Epochs completed.
        value: Mean over the seeds.
        low: Minimum over the seeds.
        high: Maximum over the seeds.
        seconds: Median over the seeds of the time since training began.
        seeds: Number of seeds.
    """

    candidate: str
    epoch: int
    value: float
    low: float
    high: float
    seconds: float
    seeds: int


def accuracy_points(runs: Mapping[str, Sequence[Result]]) -> list[Point]:
    """Test accuracy after every epoch, from the samples of `test_accuracy`.

    Args:
        runs: Results that differ in their seeds, by candidate.

    Raises:
        UsageError: A result has no samples of this metric.
    """
    return _points(runs, "test_accuracy", _evaluated)


def return_points(runs: Mapping[str, Sequence[Result]]) -> list[Point]:
    """Mean return after every epoch, from the samples of `mean_return`.

    Args:
        runs: Results that differ in their seeds, by candidate.

    Raises:
        UsageError: A result has no samples of this metric.
    """
    return _points(runs, "mean_return", _evaluated)


def _evaluated(rows: Iterable[Any]) -> dict[int, tuple[float, float]]:
    return {row.epoch: (row.value, row.time_s) for row in rows}


def loss_points(runs: Mapping[str, Sequence[Result]]) -> list[Point]:
    """Training loss of every epoch, the mean over its steps, from the samples of `training_loss`.

    The time of an epoch is that of its last step; epochs are numbered from 1, because they are completed by then.
    Non-finite losses are omitted.

    Args:
        runs: Results that differ in their seeds, by candidate.

    Raises:
        UsageError: A result has no samples of this metric.
    """

    def by_epoch(rows: Iterable[Any]) -> dict[int, tuple[float, float]]:
        found: dict[int, list[Any]] = {}
        for row in rows:
            found.setdefault(row.epoch + 1, []).append(row)
        return {epoch: (mean(row.value for row in own), own[-1].time_s) for epoch, own in found.items()}

    return _points(runs, "training_loss", by_epoch)


def _points(runs: Mapping[str, Sequence[Result]], metric: str, by_epoch: Any) -> list[Point]:
    points = []
    for candidate, results in runs.items():
        curves = []
        for result in results:
            # If several metrics have this name, the label is used.
            labels = [verdict.label for verdict in result.verdicts if verdict.name == metric]
            rows = result.samples().get(labels[0] if labels else metric, [])
            # A run stopped before its first evaluation has none; the other runs are drawn.
            if not rows and not labels:
                raise UsageError(f"{result.folder} has no samples of {metric}; remedy: add it to METRICS")
            curves.append(by_epoch(rows))
        for epoch in sorted(set().union(*curves)):
            seen = [curve[epoch] for curve in curves if epoch in curve and math.isfinite(curve[epoch][0])]
            if seen:
                values = [value for value, _ in seen]
                seconds = median(time_s for _, time_s in seen)
                points.append(Point(candidate, epoch, mean(values), min(values), max(values), seconds, len(values)))
    return points


def undrawn(points: Sequence[Point], seeds: Mapping[str, int]) -> str:
    """How many runs a chart shows, in words; empty if it shows all.

    A failed run has no points, a stopped run ends early, and a non-finite loss cannot be drawn: the mean and the band
    are then of the other runs, which the reader must know.

    Args:
        points: The points drawn.
        seeds: Number of runs made, by candidate.

    >>> undrawn([Point("a", 1, 1.0, 1.0, 1.0, 1.0, 2), Point("a", 2, 1.0, 1.0, 1.0, 1.0, 1)], {"a": 2, "b": 2})
    'of a, 1 of 2 from epoch 2; of b, none of 2'
    """
    last = max((point.epoch for point in points), default=0)
    missing = []
    for candidate, planned in seeds.items():
        there = {point.epoch: point.seeds for point in points if point.candidate == candidate}
        counts = [there.get(epoch, 0) for epoch in range(1, last + 1)]
        if not any(counts):
            missing.append(f"of {candidate}, none of {planned}")
        elif min(counts) < planned:
            first = next(place for place, count in enumerate(counts) if count < planned)
            least = min(counts) or "none"
            missing.append(f"of {candidate}, {least} of {planned}" + (f" from epoch {first + 1}" if first else ""))
    return "; ".join(missing)


def accuracy_chart(
    points: Sequence[Point],
    title: str = "",
    *,
    goal: float | None = None,
    by: str = "epoch",
    seeds: Mapping[str, int] | None = None,
    note: str = "",
) -> Any:
    """Test accuracy against epoch or time.

    Args:
        points: From `accuracy_points`.
        title: Title of the chart.
        goal: Accuracy in percent, drawn as a horizontal line.
        by: "epoch" or "seconds".
        seeds: Number of runs made, by candidate: missing runs are stated under the title, and the colors are the same
            in every chart.
        note: A further note under the title.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    x = _seconds(alt) if by == "seconds" else _epochs(alt, points)
    y = alt.Y("value:Q", title="test accuracy (%)", scale=alt.Scale(zero=False))
    return _lines(alt, points, x, y, by, title, seeds, goal, note)


def return_chart(
    points: Sequence[Point], title: str = "", *, seeds: Mapping[str, int] | None = None, note: str = ""
) -> Any:
    """Mean return against epoch.

    Args:
        points: From `return_points`.
        title: Title of the chart.
        seeds: As for `accuracy_chart`.
        note: A further note under the title.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    y = alt.Y("value:Q", title="mean return")
    return _lines(alt, points, _epochs(alt, points), y, "epoch", title, seeds, None, note)


def _epochs(alt: Any, points: Sequence[Point]) -> Any:
    last = max((point.epoch for point in points), default=1)
    # Integer ticks: an axis of two epochs would have a tick at one and a half, labeled as two.
    marks = list(range(0, last + 1, max(1, -(-last // 10))))
    return alt.X("epoch:Q", title="epoch", axis=alt.Axis(values=marks, format="d"), scale=alt.Scale(nice=False))


def _seconds(alt: Any) -> Any:
    # Few ticks: the first label is moved inwards, and would overlap the second.
    axis = alt.Axis(tickCount=7)
    return alt.X("seconds:Q", title="time since training began (s)", scale=alt.Scale(nice=False, zero=True), axis=axis)


def loss_chart(
    points: Sequence[Point], title: str = "", *, seeds: Mapping[str, int] | None = None, note: str = ""
) -> Any:
    """Training loss against time, the loss on a logarithmic axis.

    Args:
        points: From `loss_points`; points with a loss of zero are omitted.
        title: Title of the chart.
        seeds: Number of runs made, by candidate: missing runs are stated under the title, and the colors are the same
            in every chart.
        note: A further note under the title.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    above = [point for point in points if point.low > 0]
    if not above:
        raise UsageError("no training loss above zero to draw; allowed: at least one")
    x = _seconds(alt)
    ends = [end for point in above for end in (point.low, point.high)]
    y = logarithmic(alt, alt.Y, "value:Q", ends, "training loss (nat)", None, _HEIGHT)
    return _lines(alt, above, x, y, "seconds", title, seeds, None, note)


def _lines(
    alt: Any,
    points: Sequence[Point],
    x: Any,
    y: Any,
    order: str,
    title: str,
    seeds: Mapping[str, int] | None = None,
    goal: float | None = None,
    note: str = "",
) -> Any:
    if not points:
        raise UsageError("no points to draw; allowed: at least one")
    names = list(seeds or dict.fromkeys(point.candidate for point in points))
    colors, dashes = line_styles(names)
    data = alt.Chart(alt.Data(values=[point._asdict() for point in points]))
    color = by_name(alt.Color, "candidate:N", colors, title=None)
    dash = by_name(alt.StrokeDash, "candidate:N", dashes, title=None)
    layers = [
        data.mark_line(strokeWidth=1.8, clip=True).encode(x=x, y=y, color=color, strokeDash=dash, order=f"{order}:Q")
    ]
    if any(point.seeds > 1 for point in points):
        band = data.mark_area(opacity=0.15, clip=True).encode(x=x, y=same_axis(y, "low:Q"), y2="high:Q", color=color)
        layers.insert(0, band)
    if goal is not None:
        line = alt.Chart(alt.Data(values=[{"goal": goal, "label": f"target {goal:g} %"}]))
        across = same_axis(y, "goal:Q")
        layers.append(line.mark_rule(color="#444444", strokeDash=[6, 4], strokeWidth=1.2).encode(y=across))
        # First a wider white copy, so that the text is legible where a line crosses it.
        for look in ({"color": "white", "stroke": "white", "strokeWidth": 4}, {"color": "#333333"}):
            text = line.mark_text(align="left", baseline="bottom", dx=4, dy=-2, fontSize=11, **look)
            layers.append(text.encode(y=across, x=alt.value(0), text="label:N"))
    missing = undrawn(points, seeds or {})
    made = alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT)
    below = [f"not all runs are drawn; {missing}"] if missing else []
    return headed(alt, made, title, "; ".join([*below, *([note] if note else [])]))
