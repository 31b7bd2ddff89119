"""Charts of the trade-offs of schemes: accuracy and time to the target against bytes sent, or staleness."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from deep5.core.charts import WIDTH, altair, by_name, headed, line_styles, logarithmic
from deep5.core.errors import UsageError
from deep5.core.quantities import size
from deep5.results.result import Result
from deep5.results.time_to_target import Target, time_to_target

__all__ = ["COSTS", "TradeOff", "synchronous_ones", "tradeoff_chart", "tradeoffs"]

COSTS = {"communication_volume": "bytes that all ranks sent", "staleness": "mean staleness (updates)"}
"""Costs in which schemes differ, by metric, with the axis label."""

_HEIGHT = 220
# Schemes whose ranks take every step together, at the same parameters.
_SYNCHRONOUS = frozenset(("AllReduce", "ParameterServer"))


class TradeOff(NamedTuple):
    """One candidate's point.

    Attributes:
        candidate: Name of the candidate.
        cost: Mean of the metric over the seeds.
        accuracy: Mean final test accuracy, in percent.
        low: Minimum over the seeds.
        high: Maximum over the seeds.
        seconds: Median time to the target; infinite if half of the seeds or more did not reach it.
        soonest: Minimum.
        latest: Maximum over the seeds that reached it.
        seeds: Number of seeds.
    """

    candidate: str
    cost: float
    accuracy: float
    low: float
    high: float
    seconds: float
    soonest: float
    latest: float
    seeds: int


def tradeoffs(runs: Mapping[str, Sequence[Result]], metric: str, target: Target | None) -> list[TradeOff]:
    """Cost and outcome of candidates with the same number of ranks.

    Args:
        runs: The finished runs, by candidate.
        metric: A key of `COSTS`.
        target: The target of the runs, or None.

    Returns:
        A point per candidate that has the metric and a test accuracy; none if these have several numbers of ranks, or
        all have the same cost.
    """
    points, ranks = [], set()
    for name, own in runs.items():
        paid = [(_value(run, metric), _value(run, "test_accuracy"), run) for run in own]
        known = [(cost, accuracy, run) for cost, accuracy, run in paid if cost is not None and accuracy is not None]
        if not known:
            continue
        ranks |= {int(run.document["ranks"]) for *_, run in known}
        points.append(_point(name, known, target))
    return points if len(ranks) == 1 and len({point.cost for point in points}) > 1 else []


def synchronous_ones(runs: Mapping[str, Sequence[Result]], target: Target | None) -> list[TradeOff]:
    """Multi-rank candidates without a staleness metric: their ranks take each step together, so it is 0.

    Args:
        runs: The finished runs, by candidate.
        target: The target of the runs, or None.
    """
    points = []
    for name, own in runs.items():
        if any(_value(run, "staleness") is not None or int(run.document["ranks"]) < 2 for run in own):
            continue
        known = [(0.0, accuracy, run) for run in own if (accuracy := _value(run, "test_accuracy")) is not None]
        if known and all(_synchronous(run) for run in own):
            points.append(_point(name, known, target))
    return points


def _synchronous(run: Result) -> bool:
    optimizer = run.document["components"].get("optimizer")
    return isinstance(optimizer, dict) and optimizer.get("scheme") in _SYNCHRONOUS


def _point(name: str, known: Sequence[tuple[float, float, Result]], target: Target | None) -> TradeOff:
    got = [accuracy for _, accuracy, _ in known]
    took = [math.inf if target is None else time_to_target(run, target).seconds for *_, run in known]
    return TradeOff(
        candidate=name,
        cost=mean(cost for cost, *_ in known),
        accuracy=mean(got),
        low=min(got),
        high=max(got),
        seconds=median(took),
        soonest=min(took),
        latest=max((seconds for seconds in took if math.isfinite(seconds)), default=math.inf),
        seeds=len(known),
    )


def _value(run: Result, metric: str) -> float | None:
    values = [verdict.value for verdict in run.verdicts if verdict.name == metric]
    return values[0] if len(values) == 1 and values[0] is not None and math.isfinite(values[0]) else None


def tradeoff_chart(
    points: Sequence[TradeOff],
    metric: str,
    title: str,
    target: Target | None,
    note: str = "",
    across: Sequence[TradeOff] = (),
) -> Any:
    """Test accuracy, and time to the target if any candidate reached it, against the cost.

    Error bars are the range over the seeds.

    Args:
        points: From `tradeoffs`.
        metric: A key of `COSTS`.
        title: Title of the chart.
        target: The target of the runs, or None.
        note: A further note under the title.
        across: Candidates without cost: one dashed line each, with its name.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no points.
    """
    alt = altair()
    if not points:
        raise UsageError("no points to draw; allowed: at least one")
    names = [point.candidate for point in (*points, *across)]
    colour = by_name(alt.Color, "candidate:N", line_styles(names)[0], title=None, legend=_legend(alt))
    costs = [point.cost for point in points]
    if metric == "communication_volume" and min(costs) > 0:
        x = logarithmic(alt, alt.X, "cost:Q", costs, COSTS[metric], size)
    else:
        x = alt.X("cost:Q", title=COSTS[metric], scale=alt.Scale(zero=True))
    there, beside = ([own for own in of if math.isfinite(own.seconds)] for of in (points, across))
    panels = [_panel(alt, points, x, ("accuracy", "low", "high"), "test accuracy (%)", colour, across)]
    if there and target is not None:
        unit = "%" if target.metric == "test_accuracy" else "nat"
        time_title = f"time to {target.goal:g} {unit} (s)"
        panels.append(_panel(alt, there, x, ("seconds", "soonest", "latest"), time_title, colour, beside))
    late = [point.candidate for point in (*points, *across) if not math.isfinite(point.seconds)]
    notes = [note] if note else []
    if there and late and target is not None:
        notes.append(f"half of the seeds or more did not reach a {target}: {', '.join(late)}")
    made = alt.vconcat(*panels, spacing=12).resolve_scale(color="shared", x="shared")
    return headed(alt, made, title, "; ".join(textwrap.shorten(line, 300) for line in notes))


def _legend(alt: Any) -> Any:
    """The legend, with points as symbols like those in the chart."""
    return alt.Legend(symbolType="circle", symbolSize=80, symbolStrokeWidth=0)


def _panel(
    alt: Any,
    points: Sequence[TradeOff],
    x: Any,
    fields: tuple[str, str, str],
    title: str,
    colour: Any,
    across: Sequence[TradeOff],
) -> Any:
    middle, low, high = fields
    data = alt.Chart(alt.Data(values=_values(points)))
    y = alt.Y(f"{middle}:Q", title=title, scale=alt.Scale(zero=False))
    layers = [
        data.mark_rule().encode(x=x, y=alt.Y(f"{low}:Q", title=title), y2=f"{high}:Q", color=colour),
        data.mark_point(size=60, filled=True, opacity=1).encode(x=x, y=y, color=colour),
        data.mark_text(align="left", baseline="bottom", dx=5, dy=-3, fontSize=10).encode(x=x, y=y, text="candidate:N"),
    ]
    if across:
        line = alt.Chart(alt.Data(values=[value | {"said": f"{value['candidate']} (0)"} for value in _values(across)]))
        layers.append(line.mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(y=y, color=colour))
        name = line.mark_text(align="right", baseline="bottom", dx=-4, dy=-2, fontSize=10)
        layers.append(name.encode(x=alt.value(WIDTH), y=y, text="said:N"))
    return alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT)


def _values(points: Sequence[TradeOff]) -> list[dict[str, Any]]:
    """The finite values of the points, because JSON has no infinity: some seeds may not have reached the target."""
    return [{key: value for key, value in point._asdict().items() if value != math.inf} for point in points]
