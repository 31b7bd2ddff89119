"""A chart of a served load: latencies against throughput, and below, throughput and goodput against the rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.charts import WIDTH, altair, by_name, line_styles, logarithmic, stacked
from deep5.core.errors import UsageError
from deep5.core.quantities import digits, seconds

__all__ = ["serving_chart", "serving_title"]

_HEIGHT, _RATE_HEIGHT = 240, 160
_PERCENTILES = ("50", "90", "99")
_LATENCIES = tuple(f"p{percentile}" for percentile in _PERCENTILES)
_RATES = ("throughput", "goodput")


def serving_title(plan: Mapping[str, Any]) -> str:
    """The scenario, and how the server forms batches.

    Args:
        plan: From serving.json.

    >>> serving_title({"scenario": "server", "max_batch": 8, "deadline_s": 0.002, "transport": "http"})
    'scenario server, batches of up to 8 within 2 ms, http'
    """
    batches = f"batches of up to {plan['max_batch']} within {seconds(plan['deadline_s'])}"
    batches = batches if plan["max_batch"] > 1 else "no batches"
    return f"scenario {plan['scenario']}, {batches}, {plan['transport'].replace('_', ' ')}"


def serving_chart(phases: Sequence[Mapping[str, Any]], bound_s: float | None, title: str = "") -> Any:
    """Latency percentiles against throughput as lines with points, the bound dashed; both rates below.

    Args:
        phases: From serving.json; infinite latencies are left out.
        bound_s: The latency bound in seconds, or None.
        title: Title of the chart.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: No phase has a finite latency.
    """
    alt = altair()
    points = [
        {"name": f"p{percentile}", "throughput": phase["throughput"], "s": latency_s}
        for phase in phases
        for percentile in _PERCENTILES
        if math.isfinite(latency_s := float(phase["percentiles"][percentile])) and phase["throughput"] > 0
    ]
    if not points:
        raise UsageError("no latencies to draw; allowed: a load of which at least half of the queries were answered")
    color = by_name(alt.Color, "name:N", line_styles([*_LATENCIES, *_RATES])[0], title=None)
    times = [point["s"] for point in points] + ([] if bound_s is None else [bound_s])
    x = logarithmic(alt, alt.X, "throughput:Q", [point["throughput"] for point in points], "requests/s", digits)
    y = logarithmic(alt, alt.Y, "s:Q", times, "latency", height=_HEIGHT)
    lines = alt.Chart(alt.Data(values=points)).mark_line(point=True, strokeWidth=1.8).encode(x=x, y=y, color=color)
    layers = [lines]
    if bound_s is not None:
        rule = alt.Chart(alt.Data(values=[{"s": bound_s}])).mark_rule(strokeDash=[4, 3], strokeWidth=1)
        layers.append(rule.encode(y=y))
    bound = "" if bound_s is None else f"; dashed: the bound of {seconds(bound_s)}"
    panels = [alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT, title=f"Latency against throughput{bound}")]
    if rates := _by_rate(phases):
        x = logarithmic(
            alt, alt.X, "rate:Q", [each["rate"] for each in rates], "queries that arrive per second", digits
        )
        y = logarithmic(
            alt, alt.Y, "value:Q", [each["value"] for each in rates], "requests/s", digits, height=_RATE_HEIGHT
        )
        # Below saturation the two are equal: dashes show the line below them.
        drawn = [
            alt.Chart(alt.Data(values=[each for each in rates if each["name"] == name]))
            .mark_line(point=True, strokeWidth=1.8, strokeDash=dash)
            .encode(x=x, y=y, color=color)
            for name, dash in zip(_RATES, ([1, 0], [5, 5]), strict=True)
        ]
        title_below = "Throughput; dashed: goodput in the bound"
        panels.append(alt.layer(*drawn).properties(width=WIDTH, height=_RATE_HEIGHT, title=title_below))
    return stacked(alt, panels, title)


def _by_rate(phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Throughput and goodput above 0 of every rate."""
    return [
        {"name": name, "rate": phase["rate"], "value": phase[name]}
        for phase in phases
        for name in _RATES
        if phase["rate"] and phase[name]
    ]
