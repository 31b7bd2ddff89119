"""A chart of all-reduce over sizes: measured times with intervals and modeled times, and both bandwidths below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.charts import WIDTH, altair, by_name, line_styles, logarithmic, same_axis, stacked
from deep5.core.errors import UsageError
from deep5.core.quantities import size

__all__ = ["collective_chart", "collective_title"]

_HEIGHT, _RATE_HEIGHT = 240, 160


def collective_title(document: Mapping[str, Any]) -> str:
    """What was measured, how its ranks were started, and on which processor.

    Args:
        document: The content of collective.json.

    >>> plan = {"op": "sum", "dtype": "float32"}
    >>> collective_title({"plan": plan, "launcher": "threads", "system": {"cpu": {"model": None}}})
    'all-reduce, sum of float32, threads'
    """
    plan, model = document["plan"], document["system"]["cpu"]["model"]
    parts = ["all-reduce", f"{plan['op']} of {plan['dtype']}", document["launcher"], model]
    return ", ".join(str(part) for part in parts if part)


def collective_chart(rows: Sequence[Mapping[str, Any]], ranks: int, title: str = "") -> Any:
    """Median times as lines with points and their intervals, modeled times dashed; below, both bandwidths.

    Args:
        rows: From collective.json.
        ranks: Number of ranks.
        title: Title of the chart.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no rows.
    """
    alt = altair()
    if not rows:
        raise UsageError("no times to draw; allowed: at least one")
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    color = by_name(alt.Color, "algorithm:N", line_styles(names)[0], title=None)
    values: list[dict[str, Any]] = [
        {
            "algorithm": row["algorithm"],
            "bytes": row["size_bytes"],
            "s": row["median_s"],
            "low": row["median_s"] if row["low_s"] is None else row["low_s"],
            "high": row["median_s"] if row["high_s"] is None else row["high_s"],
            "model": row["modelled_s"],
            "algorithm bandwidth": row["algorithm_gbyte_s"],
            "bus bandwidth": row["bus_gbyte_s"],
        }
        for row in rows
    ]
    data = alt.Chart(alt.Data(values=values))
    modelled = alt.Chart(alt.Data(values=[value for value in values if value["model"]]))
    x = logarithmic(alt, alt.X, "bytes:Q", [value["bytes"] for value in values], "buffer size", size)
    ends = [value[key] for value in values for key in ("low", "high", "model") if value[key]]
    y = logarithmic(alt, alt.Y, "s:Q", ends, "time per call", height=_HEIGHT)
    times = alt.layer(
        data.mark_rule(opacity=0.5, strokeWidth=1).encode(x=x, y=same_axis(y, "low:Q"), y2="high:Q", color=color),
        modelled.mark_line(strokeDash=[4, 3], strokeWidth=1).encode(x=x, y=same_axis(y, "model:Q"), color=color),
        data.mark_line(point=True, strokeWidth=1.8).encode(x=x, y=y, color=color),
    ).properties(
        width=WIDTH,
        height=_HEIGHT,
        title=f"{ranks} ranks; line: median of the slowest rank with its interval; dashed: model",
    )
    rates = []
    for name in ("algorithm bandwidth", "bus bandwidth"):
        rate = logarithmic(
            alt, alt.Y, f"{name}:Q", [value[name] for value in values], f"{name} (GB/s)", "{:.3g}".format, _RATE_HEIGHT
        )
        drawn = data.mark_line(point=True, strokeWidth=1.8).encode(x=x, y=rate, color=color)
        rates.append(drawn.properties(width=WIDTH, height=_RATE_HEIGHT))
    return stacked(alt, [times, *rates], title)
