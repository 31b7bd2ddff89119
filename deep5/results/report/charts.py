"""Charts of a comparison: ratios with their intervals, samples as boxes, and the cost of a first call.

Names are at the left and numbers increase to the right, on logarithmic axes: there is room for long names, and a chart
fits a column of a paper or a phone. Needs the packages of the extra `report`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.charts import PALETTE, altair, by_name, logarithmic, same_axis
from deep5.results.comparison import ComparisonResult
from deep5.results.comparison_summary import counted, process_medians, whole_rounds
from deep5.results.markup import clean
from deep5.results.report.chart_parts import (
    ROWS,
    SECONDS,
    WIDTH,
    Drawing,
    check_size,
    left_out,
    rows_axis,
    spread,
    unique_names,
    within,
)
from deep5.results.report.theme import BAND, INK, PHASES, WORDS
from deep5.results.standing import standing

__all__ = ["phases_chart", "ratio_chart", "samples_chart"]

# Pixels of a row; characters of a name.
_STEP, _NAME = 26, 28
_SHAPES = {"faster": "triangle-left", "slower": "triangle-right", "no difference shown": "circle"}
_PHASE_SHAPES = {"first call": "diamond", "warm-up": "square", "steady": "circle"}
# Range of ratios that can be drawn on one axis.
_RATIOS = (1e-6, 1e6)


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """A unique short name for each workload and candidate."""
    several = len({row["workload"] for row in rows}) > 1
    wholes = [f"{row['workload']}: {row['candidate']}" if several else row["candidate"] for row in rows]
    keys = [(row["workload"], row["candidate"]) for row in rows]
    return dict(zip(keys, unique_names(wholes), strict=True))


def ratio_chart(result: ComparisonResult) -> Drawing | None:
    """Ratio of each candidate's time to the baseline's, with its interval; None if there are no verdicts.

    Raises:
        MissingDependency: Altair is not installed.
    """
    fit = [row for row in result.verdicts if all(within(row[key], _RATIOS) for key in ("ratio",))]
    rows = sorted(fit, key=lambda row: -abs(math.log(row["ratio"])))[:ROWS]
    if not rows:
        return None
    alt = altair()
    rows.sort(key=lambda row: row["ratio"])
    names = _names(rows)
    points = []
    for row in rows:
        ends = [row["low"], row["high"]]
        low, high = ends if all(within(end, _RATIOS) for end in ends) else (row["ratio"], row["ratio"])
        # No band without a noise floor that can be drawn.
        floor = row["floor"] if within(row["floor"], _RATIOS) else 1.0
        name = names[row["workload"], row["candidate"]]
        points.append(
            {"name": name, "ratio": row["ratio"], "low": low, "high": high, "word": row["word"], "noise": floor}
            | {"least": 1 / floor, "one": 1.0}
        )
    ends = [point[key] for point in points for key in ("low", "high", "noise", "least", "ratio")] + [0.97, 1.03]
    baseline = clean(result.document["baseline"])[:_NAME]
    # If batch sizes differ, the time per sample is compared.
    per = {row["per"] for row in rows}
    what = "time" if per == {"call"} else "time per sample" if per == {"sample"} else "time per call or sample"
    x = logarithmic(alt, alt.X, "ratio:Q", ends, f"{what} / that of {baseline}", None).to_dict()
    y = rows_axis(alt, [point["name"] for point in points])
    words = [word for word in WORDS if any(point["word"] == word for point in points)]
    color = by_name(alt.Color, "word:N", {word: WORDS[word] for word in words}, title=None)
    shape = by_name(alt.Shape, "word:N", {word: _SHAPES[word] for word in words})
    data = alt.Chart(alt.Data(values=points))
    # Aligned to the panel's right end: a long title has room to its left, under the names.
    axis = x["axis"] | {"titleAnchor": "end", "titleAlign": "right"}

    def along(field: str) -> Any:
        return alt.X(field, scale=x["scale"], axis=axis, title=[x["title"], "left of 1: faster"])

    chart = alt.layer(
        data.mark_bar(color=BAND, height={"band": 0.9}).encode(x=along("least:Q"), x2="noise:Q", y=y),
        data.mark_rule(color=INK, strokeDash=[3, 3]).encode(x=along("one:Q")),
        data.mark_rule(strokeWidth=2).encode(x=along("low:Q"), x2="high:Q", y=y, color=color),
        data.mark_point(filled=True, size=90, opacity=1).encode(x=along("ratio:Q"), y=y, color=color, shape=shape),
    ).properties(width=WIDTH, height=alt.Step(_STEP))
    several = f"{len(rows)} ratios" if len(rows) > 1 else "One ratio"
    about = (
        f"{several} of time to the baseline's, {baseline}; lines are intervals, where available, and the gray band "
        f"is the machine's noise floor.{left_out(len(rows), len(result.verdicts))}"
    )
    return Drawing("ratios", "Ratios", about, chart, standing([result]))


def samples_chart(result: ComparisonResult) -> Drawing | None:
    """Steady samples of each candidate as a box, and its processes' medians; None if there are no samples.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: samples.csv is not in deep5's format.
    """
    # A candidate that was timed and then found to compute something else has no result and is not drawn.
    fit = {(row["workload"], row["candidate"]) for row in result.results}
    check_size(result.folder)
    rounds = whole_rounds(result.document)
    samples = [
        sample
        for sample in counted(result.document, result.samples())
        if sample.round < rounds and (sample.workload, sample.candidate) in fit and within(sample.seconds, SECONDS)
    ]
    series: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        if sample.phase == "steady":
            series.setdefault((sample.workload, sample.candidate), []).append(sample.seconds)
    chosen = _chosen(result, series)
    if not chosen:
        return None
    alt = altair()
    names = _names([{"workload": workload, "candidate": candidate} for workload, candidate in chosen])
    boxes, points = [], []
    medians = process_medians(samples)
    for key in chosen:
        least, low, middle, high, most = np.percentile(series[key], [0, 25, 50, 75, 100]).tolist()
        boxes.append({"name": names[key], "least": least, "low": low, "middle": middle, "high": high, "most": most})
        points += [{"name": names[key], "middle": value} for value in medians[key].values() if len(medians[key]) > 1]
    ends = [box[key] for box in boxes for key in ("least", "most")]
    x = logarithmic(alt, alt.X, "least:Q", spread(ends), "time per call")
    y = rows_axis(alt, [box["name"] for box in boxes])
    data = alt.Chart(alt.Data(values=boxes))

    layers = [
        data.mark_rule(color=INK).encode(x=x, x2="most:Q", y=y),
        data.mark_bar(color=PALETTE[4], height={"band": 0.55}).encode(x=same_axis(x, "low:Q"), x2="high:Q", y=y),
        data.mark_tick(color=INK, thickness=2, height={"band": 0.55}).encode(x=same_axis(x, "middle:Q"), y=y),
    ]
    if points:
        own = alt.Chart(alt.Data(values=points))
        layers.append(
            own.mark_point(filled=True, size=26, opacity=1, color=PALETTE[1]).encode(x=same_axis(x, "middle:Q"), y=y)
        )
    each = "; dots: the median of each process" if points else ""
    about = (
        f"Steady samples: boxes from quartile to quartile with the median, lines to the extremes{each}."
        f"{left_out(len(chosen), len(series))}"
    )
    chart = alt.layer(*layers).properties(width=WIDTH, height=alt.Step(_STEP))
    return Drawing("samples", "Samples", about, chart, standing([result]))


def phases_chart(result: ComparisonResult) -> Drawing | None:
    """The time of the first call, the whole warm-up, and a steady call; None if there are no results.

    Raises:
        MissingDependency: Altair is not installed.
    """
    keys = (("first call", "first_call_s"), ("warm-up", "warm_up_s"), ("steady", "median_s"))
    own = {(row["workload"], row["candidate"]): row for row in result.results}
    chosen = _chosen(result, own)
    points = []
    names = _names([own[key] for key in chosen])
    for key in chosen:
        row = own[key]
        found = [(phase, row[column]) for phase, column in keys if within(row[column], SECONDS)]
        points += [{"name": names[key], "phase": phase, "s": value} for phase, value in found]
    if not points:
        return None
    alt = altair()
    x = logarithmic(alt, alt.X, "s:Q", spread([point["s"] for point in points]), "time")
    y = rows_axis(alt, [names[key] for key in chosen])
    color = by_name(alt.Color, "phase:N", PHASES, title=None)
    shape = by_name(alt.Shape, "phase:N", _PHASE_SHAPES)
    data = alt.Chart(alt.Data(values=points))
    chart = data.mark_point(filled=True, size=80, opacity=1).encode(x=x, y=y, color=color, shape=shape)
    about = (
        "The first call, the whole warm-up, and a steady call (median); phases of zero time are not drawn."
        f"{left_out(len(chosen), len(own))}"
    )
    chart = chart.properties(width=WIDTH, height=alt.Step(_STEP))
    return Drawing("phases", "First call, warm-up, steady", about, chart, standing([result]))


def _chosen(result: ComparisonResult, known: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows to draw, of the workloads whose ratios are furthest from 1; in their order, the fastest on top."""
    ratios: dict[str, float] = {}
    for row in result.verdicts:
        if within(row["ratio"], _RATIOS):
            ratios[row["workload"]] = max(ratios.get(row["workload"], 0.0), abs(math.log(row["ratio"])))
    medians = {(row["workload"], row["candidate"]): row["median_s"] for row in result.results}
    ranked = sorted(known, key=lambda key: (-ratios.get(key[0], 0.0), key[0], medians.get(key, 0.0), key[1]))
    order = {workload: place for place, workload in enumerate(dict.fromkeys(row["workload"] for row in result.results))}
    return sorted(ranked[:ROWS], key=lambda key: (order.get(key[0], len(order)), medians.get(key, 0.0), key[1]))
