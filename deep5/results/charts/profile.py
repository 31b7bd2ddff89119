"""The chart of performance profiles: the share of workloads a candidate solves within tau times the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deep5.core.charts import PERCENT, WIDTH, altair, by_name, headed, line_styles
from deep5.core.errors import UsageError
from deep5.measuring.profiles import LIMIT, Profile

__all__ = ["profile_chart"]

_HEIGHT = 300
# Overlapping lines are distinguished by their widths: the first is drawn first and widest.
_WIDEST, _THINNEST = 5.5, 1.6


def profile_chart(
    profiles: Mapping[str, Profile], title: str = "", *, by: str = "seconds", limit: float = LIMIT, log: bool = False
) -> Any:
    """Step curves of rho(tau), with each candidate's score in the legend.

    Args:
        profiles: By candidate.
        title: Title of the chart.
        by: The measure counted until the target.
        limit: Right end of the axis, and upper limit of the score's integral.
        log: Whether the tau axis is logarithmic; the score is the area under a curve on the linear axis.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There are no candidates.
    """
    alt = altair()
    if not profiles:
        raise UsageError("no profiles to draw; allowed: at least one candidate")
    legend = {name: f"{name}: {profile.score:.2f}" for name, profile in profiles.items()}
    points = []
    for name, profile in profiles.items():
        steps = sorted({1.0, limit, *(ratio for ratio in profile.ratios.values() if ratio <= limit)})
        points += [{"candidate": legend[name], "tau": tau, "share": profile.share(tau)} for tau in steps]
    names = list(legend.values())
    colors, dashes = line_styles(names)
    thinner = (_WIDEST - _THINNEST) / max(1, len(names) - 1)
    widths = [round(_WIDEST - place * thinner, 2) for place in range(len(names))]
    if log:
        places = [tau for tau in (1, 1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64) if tau <= limit]
        scale = alt.Scale(type="log", domain=[1, limit], nice=False)
        axis = alt.Axis(values=places, format="~g")
    else:
        scale = alt.Scale(domain=[1, limit], nice=False)
        step = max(0.5, math.ceil((limit - 1) / 6))
        axis = alt.Axis(values=[1 + step * place for place in range(int((limit - 1) / step) + 1)], format="~g")
    x = alt.X("tau:Q", title=f"tau: times the best candidate's {by} to target", scale=scale, axis=axis)
    y = alt.Y(
        "share:Q",
        title="share of workloads solved within tau",
        scale=alt.Scale(domain=[0, 1], nice=False, padding=6),
        axis=alt.Axis(labelExpr=PERCENT, values=[0, 0.25, 0.5, 0.75, 1]),
    )
    heading = alt.Legend(title="score")
    color = by_name(alt.Color, "candidate:N", colors, legend=heading)
    dash = by_name(alt.StrokeDash, "candidate:N", dashes, legend=heading)
    layers = [
        alt.Chart(alt.Data(values=[point for point in points if point["candidate"] == name]))
        .mark_line(interpolate="step-after", strokeWidth=width)
        .encode(x=x, y=y, order="tau:Q", color=color, strokeDash=dash)
        for name, width in zip(names, widths, strict=True)
    ]
    return headed(alt, alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT), title)
