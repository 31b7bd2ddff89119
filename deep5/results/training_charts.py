"""Pictures of training: accuracy against epoch and loss against time, a line a candidate, a band over its seeds.

As Ben-Nun et al. compare optimizers: A Modular Benchmarking Infrastructure for High-Performance and Reproducible Deep
Learning, IPDPS 2019. Needs the packages of the extra `report`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from deep5.errors import MissingDependency, UsageError
from deep5.results.chart_parts import WIDTH, altair, files, logarithmic
from deep5.results.result import Result

__all__ = ["Point", "accuracy_chart", "accuracy_points", "loss_chart", "loss_points", "pictures"]

_HEIGHT = 300
# So many colours are told apart; what is beyond is dashed.
_COLOURS, _DASHES = 10, ([1, 0], [5, 3], [2, 2])


class Point(NamedTuple):
    """One place of a line.

    Attributes:
        candidate: Whose.
        epoch: Epochs done.
        value: Mean over the seeds.
        low: The smallest.
        high: The largest.
        seconds: Median over the seeds of the time since training began.
        seeds: How many there are.
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
        runs: By candidate, results that differ in their seeds.

    Raises:
        UsageError: A result has no such samples.
    """
    return _points(runs, "test_accuracy", lambda rows: {row.epoch: (row.value, row.time_s) for row in rows})


def loss_points(runs: Mapping[str, Sequence[Result]]) -> list[Point]:
    """Training loss of every epoch, the mean over its steps, from the samples of `training_loss`.

    The time of an epoch is that of its last step; the epoch is counted from 1, as it is done then. Losses that are not
    finite are left out.

    Args:
        runs: By candidate, results that differ in their seeds.

    Raises:
        UsageError: A result has no such samples.
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
            # One of several of this name is called by its label, too.
            label = next((verdict.label for verdict in result.verdicts if verdict.name == metric), metric)
            rows = result.samples().get(label)
            if not rows:
                raise UsageError(f"{result.folder} has no samples of {metric}; remedy: name it in METRICS")
            curves.append(by_epoch(rows))
        for epoch in sorted(set().union(*curves)):
            seen = [curve[epoch] for curve in curves if epoch in curve and math.isfinite(curve[epoch][0])]
            if seen:
                values = [value for value, _ in seen]
                seconds = median(time_s for _, time_s in seen)
                points.append(Point(candidate, epoch, mean(values), min(values), max(values), seconds, len(values)))
    return points


def accuracy_chart(points: Sequence[Point], title: str = "") -> Any:
    """Test accuracy against epoch.

    Args:
        points: As `accuracy_points` gives them.
        title: Of the picture.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    last = max((point.epoch for point in points), default=1)
    # Whole epochs: an axis of two would have one and a half, and call it two.
    marks = list(range(0, last + 1, max(1, -(-last // 10))))
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(values=marks, format="d"), scale=alt.Scale(nice=False))
    y = alt.Y("value:Q", title="test accuracy (%)", scale=alt.Scale(zero=False))
    return _lines(alt, points, x, y, "epoch", title)


def loss_chart(points: Sequence[Point], title: str = "") -> Any:
    """Training loss against time, the loss on a logarithmic axis.

    Args:
        points: As `loss_points` gives them; those of a loss of zero are left out.
        title: Of the picture.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    above = [point for point in points if point.low > 0]
    if not above:
        raise UsageError("there is no training loss above zero to draw; allowed: at least one")
    x = alt.X("seconds:Q", title="time since training began (s)", scale=alt.Scale(nice=False, zero=True))
    ends = [end for point in above for end in (point.low, point.high)]
    y = logarithmic(alt, alt.Y, "value:Q", ends, "training loss (nat)", "", _HEIGHT)
    return _lines(alt, above, x, y, "seconds", title)


def _lines(alt: Any, points: Sequence[Point], x: Any, y: Any, order: str, title: str) -> Any:
    if not points:
        raise UsageError("there are no points to draw; allowed: at least one")
    names = list(dict.fromkeys(point.candidate for point in points))
    colours = [_PALETTE[place % _COLOURS] for place in range(len(names))]
    dashes = [_DASHES[min(place // _COLOURS, len(_DASHES) - 1)] for place in range(len(names))]
    data = alt.Chart(alt.Data(values=[point._asdict() for point in points]))
    colour = alt.Color("candidate:N", sort=names, scale=alt.Scale(domain=names, range=colours), title=None)
    dash = alt.StrokeDash("candidate:N", sort=names, scale=alt.Scale(domain=names, range=dashes), title=None)
    layers = [
        data.mark_line(strokeWidth=1.8, clip=True).encode(x=x, y=y, color=colour, strokeDash=dash, order=f"{order}:Q")
    ]
    if any(point.seeds > 1 for point in points):
        band = data.mark_area(opacity=0.15, clip=True).encode(
            x=x, y=_same_axis(alt, y, "low:Q"), y2="high:Q", color=colour
        )
        layers.insert(0, band)
    made = alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT)
    made = made.properties(title=alt.Title(title, anchor="start", fontSize=13)) if title else made
    return made.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal").configure_legend(
        orient="right", labelFontSize=12, symbolType="stroke", symbolOpacity=1, symbolSize=300, symbolStrokeWidth=2
    )


# Six of Okabe and Ito's, which are told apart by those who see few colours, and four between them.
_PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#7b5ea7",
    "#8c6d46",
    "#6b6b6b",
    "#b5bd00",
)


def _same_axis(alt: Any, y: Any, field: str) -> Any:
    """The band's lower end, on the line's own axis."""
    told = y.to_dict()
    parts = {name: told[name] for name in ("scale", "axis", "title") if name in told}
    return alt.Y(field, **parts)


def pictures(name: str, chart: Any) -> dict[str, bytes]:
    """A chart as `NAME.svg`, `NAME.png` and `NAME.html`, which needs nothing from a network.

    Raises:
        MissingDependency: vl-convert is not installed.
    """
    found = files(name, chart)
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"pictures need the package {error.name!r}; remedy: pip install 'deep5[report]'"
        ) from error
    found[f"{name}.html"] = vl_convert.vegalite_to_html(chart.to_json(), bundle=True).encode()
    return found
