"""Charts of operator studies: time against batch size, with linear scaling; algorithms compared by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.charts import WIDTH, altair, doubling, logarithmic, stacked

__all__ = ["study_chart"]

_HEIGHT, _ROW_HEIGHT = 180, 40


def study_chart(rows: Sequence[Mapping[str, Any]], title: str = "") -> Any:
    """Median times of a study with their intervals.

    Args:
        rows: From operators.json; a problem is named `layer-BATCH`, or `size-NUMBER-ALGORITHM`.
        title: Title of the chart.
    """
    alt = altair()
    if all(row["problem"].rpartition("-")[2].isdigit() for row in rows):
        layers = dict.fromkeys(row["problem"].rpartition("-")[0] for row in rows)
        return stacked(alt, [_batches(alt, layer, rows) for layer in layers], title)
    return stacked(alt, [_algorithms(alt, name, rows) for name in dict.fromkeys(r["candidate"] for r in rows)], title)


def _batches(alt: Any, layer: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Time of a layer against the batch size, and linear scaling from the largest batch."""
    points = [
        {**_point(row), "batch": int(row["problem"].rpartition("-")[2]), "candidate": row["candidate"]}
        for row in rows
        if row["problem"].rpartition("-")[0] == layer
    ]
    linear = []
    for candidate in dict.fromkeys(point["candidate"] for point in points):
        own = [point for point in points if point["candidate"] == candidate]
        most = max(own, key=lambda point: point["batch"])
        least = min(point["batch"] for point in own)
        if least == most["batch"]:
            continue  # a single size has nothing to scale from
        linear += [
            {"candidate": candidate, "batch": batch, "s": most["s"] * batch / most["batch"]}
            for batch in (least, most["batch"])
        ]
    batches = sorted({point["batch"] for point in points})
    x = doubling(alt, "batch:Q", batches, "batch size")
    y = logarithmic(alt, alt.Y, "s:Q", [*_ends(points), *(entry["s"] for entry in linear)], "time per call")
    colour = alt.Color("candidate:N", title=None)
    measured = alt.Chart(alt.Data(values=points))
    return alt.layer(
        alt.Chart(alt.Data(values=linear)).mark_line(strokeDash=[4, 3]).encode(x=x, y=y, color=colour),
        measured.mark_line().encode(x=x, y=y, color=colour),
        measured.mark_circle(size=45, opacity=1).encode(x=x, y=y, color=colour),
        measured.mark_rule().encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
    ).properties(
        width=WIDTH, height=_HEIGHT, title=layer + "; dashed: linear scaling from the largest batch" * bool(linear)
    )


def _algorithms(alt: Any, candidate: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Time of each algorithm, one row of panels per size."""
    points = [
        {**_point(row), "size": row["title"].partition(", ")[0], "algorithm": row["problem"].split("-", 2)[2]}
        for row in rows
        if row["candidate"] == candidate
    ]
    sizes = list(dict.fromkeys(point["size"] for point in points))
    names = list(dict.fromkeys(point["algorithm"] for point in points))
    x = logarithmic(alt, alt.X, "s:Q", _ends(points), "time per call")
    y = alt.Y("size:N", sort=sizes, title=None, axis=alt.Axis(labelLimit=260, grid=True))
    colour = alt.Color("algorithm:N", sort=names, title=None)
    shape = alt.Shape("algorithm:N", sort=names, legend=None)
    measured = alt.Chart(alt.Data(values=points))
    return alt.layer(
        measured.mark_rule().encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour),
        measured.mark_point(size=60, filled=True, opacity=0.85).encode(x=x, y=y, color=colour, shape=shape),
    ).properties(width=WIDTH * 2 // 3, height=_ROW_HEIGHT * len(sizes), title=candidate)


def _ends(points: Sequence[Mapping[str, Any]]) -> list[float]:
    return [point[end] for point in points for end in ("low", "high")]


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    """Median and interval; without an interval, only the median."""
    middle = row["median_s"]
    return {"s": middle, "low": row.get("low_s") or middle, "high": row.get("high_s") or middle}
