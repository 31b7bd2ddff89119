"""A chart of data loading: images per second by format and decoder, one point per number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.charts import PALETTE, WIDTH, altair, by_name, logarithmic, same_axis
from deep5.core.errors import UsageError

__all__ = ["loading_chart"]

_ROW, _SHAPES = 48, ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.3g}"


def loading_chart(rows: Sequence[Mapping[str, Any]], ideal: float | None, title: str = "") -> Any:
    """Medians as points with their intervals; the dashed line is the rate of decoded arrays.

    Args:
        rows: `name` of format and decoder, `workers`, `rate` and its ends `low` and `high`, in images per second.
        ideal: The rate of arrays that are already decoded; None: no line.
        title: Title of the chart.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no rows.
    """
    alt = altair()
    if not rows:
        raise UsageError("no rates to draw; allowed: at least one")
    names = list(dict.fromkeys(row["name"] for row in rows))
    workers = sorted({row["workers"] for row in rows})
    labels = [str(number) for number in workers]
    # Numbers of workers side by side within a row, so that intervals do not cover each other.
    values = [{**row, "workers": str(row["workers"]), "place": workers.index(row["workers"])} for row in rows]
    ends = [end for row in rows for end in (row["low"], row["high"])] + ([] if ideal is None else [ideal])
    x = logarithmic(alt, alt.X, "rate:Q", ends, "images per second", _number)
    y = alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=260, grid=True))
    within = alt.YOffset("place:Q", scale=alt.Scale(nice=False, zero=False, padding=6))
    looks = {label: PALETTE[place % len(PALETTE)] for place, label in enumerate(labels)}
    shapes = {label: _SHAPES[place % len(_SHAPES)] for place, label in enumerate(labels)}
    color = by_name(alt.Color, "workers:N", looks, title="workers")
    shape = by_name(alt.Shape, "workers:N", shapes, title="workers")
    data = alt.Chart(alt.Data(values=values))
    layers = [
        data.mark_rule(strokeWidth=2).encode(x=same_axis(x, "low:Q"), x2="high:Q", y=y, yOffset=within, color=color),
        data.mark_point(size=45, filled=True, opacity=1).encode(x=x, y=y, yOffset=within, color=color, shape=shape),
    ]
    if ideal is not None:
        line = alt.Chart(alt.Data(values=[{"ideal": ideal}]))
        layers.insert(0, line.mark_rule(strokeDash=[4, 3]).encode(x=same_axis(x, "ideal:Q")))
    return alt.layer(*layers).properties(width=WIDTH, height=_ROW * len(names), title=title)
