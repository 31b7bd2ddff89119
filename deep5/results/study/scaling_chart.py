"""Chart of scaling: throughput and parallel efficiency against the number of ranks, with the ideal lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from deep5.core.charts import WIDTH, altair, by_name, doubling, line_styles, logarithmic, stacked
from deep5.core.errors import UsageError
from deep5.core.quantities import count
from deep5.results.study.scaling import Scaling, ScalingRow

__all__ = ["scaling_chart"]

_HEIGHT = 170


def scaling_chart(scalings: Sequence[Scaling], title: str = "") -> Any:
    """Two panels: throughput, with a dashed line of linear scaling, and efficiency, with a dashed line at 100 %.

    Error bars are intervals, or the range over the seeds if there is no interval.

    Args:
        scalings: One line each.
        title: Title of the chart.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There is nothing to draw.
    """
    alt = altair()
    if not scalings:
        raise UsageError("no scaling to draw; allowed: at least one")
    points = [_point(scaling, row) for scaling in scalings for row in scaling.rows]
    names = list(dict.fromkeys(point["series"] for point in points))
    ranks = sorted({point["ranks"] for point in points})
    x = doubling(alt, "ranks:Q", ranks, "ranks")
    color = by_name(alt.Color, "series:N", line_styles(names)[0], title=None)
    ideal = [
        {"series": point["series"], "ranks": count, "throughput": point["throughput"] * count / point["ranks"]}
        for point in points
        if point["first"]
        for count in (ranks[0], ranks[-1])
    ]
    seen = [value["throughput"] for value in (*points, *ideal)]
    y = logarithmic(alt, alt.Y, "throughput:Q", seen, "throughput (samples/s)", count, _HEIGHT)
    measured = alt.Chart(alt.Data(values=points))
    above = alt.layer(
        alt.Chart(alt.Data(values=ideal)).mark_line(strokeDash=[4, 3]).encode(x=x, y=y, color=color),
        measured.mark_line().encode(x=x, y=y, color=color),
        measured.mark_circle(size=45, opacity=1).encode(x=x, y=y, color=color),
    ).properties(width=WIDTH, height=_HEIGHT, title="dashed: ideal throughput")
    y = alt.Y("efficiency:Q", title="parallel efficiency (%)", scale=alt.Scale(zero=True))
    full = alt.Chart(alt.Data(values=[{"efficiency": 100}])).mark_rule(strokeDash=[4, 3], color="#6b6b6b")
    below = alt.layer(
        full.encode(y=y),
        measured.mark_line().encode(x=x, y=y, color=color),
        measured.mark_circle(size=45, opacity=1).encode(x=x, y=y, color=color),
        measured.mark_rule().encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=color),
    ).properties(width=WIDTH, height=_HEIGHT)
    notes = list(dict.fromkeys(note for scaling in scalings for note in scaling.notes()))
    lines = [line for note in notes for line in textwrap.wrap(note, 84)]
    return stacked(alt, [above, below], title, lines, {"columns": 1, "labelLimit": WIDTH})


def _point(scaling: Scaling, row: ScalingRow) -> dict[str, Any]:
    low, high = row.ends if row.interval is None else (row.interval.low, row.interval.high)
    return {
        "series": scaling.title,
        "ranks": row.ranks,
        "throughput": row.throughput,
        "efficiency": 100 * row.efficiency,
        "low": 100 * low,
        "high": 100 * high,
        "first": row is scaling.rows[0],
    }
