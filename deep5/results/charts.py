"""Pictures of operators' times, drawn from a result folder's raw samples: violins over many sizes, boxes at one size.

After figure 6 of Ben-Nun et al., A Modular Benchmarking Infrastructure for High-Performance and Reproducible Deep
Learning, IPDPS 2019. Needs the packages of the extra `report`: Altair, and vl-convert, which draws without a browser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.errors import MissingDependency, UsageError
from deep5.results.result import load
from deep5.results.samples_file import SampleRow

__all__ = ["box_chart", "common_sizes", "draw", "violin_chart", "violin_outline"]

_OPERATORS = "operators.json"
_WIDTH, _HEIGHT, _RATIO_HEIGHT = 64, 280, 160
_WAYS = {False: "through deep5", True: "bare"}
_COLOURS = {"domain": list(_WAYS.values()), "range": ["#3b6ea5", "#d98032"]}
# What its colour means, its values size by size, its median.
_Violin = tuple[str, Sequence[Sequence[float]], float]
# Points of a violin's outline.
_POINTS = 96


def draw(folder: Path, box: str | None = None) -> tuple[dict[str, bytes], list[str]]:
    """The pictures of a result folder.

    Args:
        folder: Holds operators.json and samples.csv, as a run of level 0 writes them.
        box: Name of the problem of the second picture; None: no such picture.

    Returns:
        `violin.svg`, `violin.png`, `box.svg`, `box.png` with their content; and why one of them is missing.

    Raises:
        UsageError: No such folder.
        MissingDependency: Altair or vl-convert is not installed.
    """
    told, samples = _read(folder)
    rows = told["rows"]
    charts = {"violin": violin_chart(rows, samples, told.get("left_out", ()))} if common_sizes(rows) else {}
    missing = [] if charts else ["no violin.svg was drawn: no size was measured on all frameworks"]
    if box is not None:
        if any(row["problem"] == box for row in rows):
            charts["box"] = box_chart(rows, samples, box)
        else:
            missing.append(f"no box.svg was drawn: the problem {box!r} was not measured in this run")
    pictures: dict[str, bytes] = {}
    for name, chart in charts.items():
        pictures |= _pictures(name, chart)
    return pictures, missing


def common_sizes(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """By direction, the problems that every candidate with any of them was measured on: those that can be compared.

    Args:
        rows: Of operators.json.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        found.setdefault(row["direction"], {}).setdefault(row["candidate"], set()).add(row["problem"])
    common = {direction: set.intersection(*sizes.values()) for direction, sizes in found.items()}
    return {direction: sizes for direction, sizes in common.items() if sizes}


def violin_chart(
    rows: Sequence[Mapping[str, Any]],
    samples: Mapping[str, Sequence[SampleRow]],
    left_out: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """Times over the sizes that every candidate ran: a violin a candidate, its median as a line, a panel a direction.

    Every size counts alike, however many samples it has. Times of all sizes span decades, in which deep5's own cost is
    not seen: below, where a framework is there bare too, is a violin of time through deep5 over time bare, by size.

    Args:
        rows: Of operators.json.
        samples: Of samples.csv, by series.
        left_out: Of operators.json, to say how many sizes there are.
    """
    alt = _altair()
    panels = []
    for direction, sizes in common_sizes(rows).items():
        chosen = [row for row in rows if row["direction"] == direction and row["problem"] in sizes]
        labels = list(dict.fromkeys(row["candidate"] for row in chosen))
        violins = []
        for label in labels:
            own = [row for row in chosen if row["candidate"] == label]
            middle = float(np.median([row["median_s"] for row in own]))
            violins.append((_WAYS[own[0]["bare"]], [_values(row, samples) for row in own], middle))
        known = {entry["problem"] for entry in (*rows, *left_out) if entry["direction"] == direction}
        title = [f"{direction}: time a call", f"{len(sizes)} of {len(known)} sizes, those that all ran"]
        times = _violins(alt, labels, violins, _seconds(alt)).properties(
            width=_WIDTH * len(labels), height=_HEIGHT, title=title
        )
        panels.append(alt.vconcat(times, *_ratios(alt, chosen)))
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _ratios(alt: Any, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The panel of time through deep5 over time bare, where there are both."""
    found: dict[str, list[float]] = {}
    bare = {(row["framework"], row["problem"]): row["median_s"] for row in rows if row["bare"]}
    for row in rows:
        other = bare.get((row["framework"], row["problem"]))
        if not row["bare"] and other is not None:
            found.setdefault(row["framework"], []).append(row["median_s"] / other)
    if not found:
        return []
    middles = {name: float(np.median(ratios)) for name, ratios in found.items()}
    labels = [f"{name} {middles[name]:.2f}x" for name in found]
    violins = [(_WAYS[False], [[ratio] for ratio in ratios], middles[name]) for name, ratios in found.items()]
    chart = _violins(alt, labels, violins, alt.Y("s:Q", scale=_logarithmic(alt), title="ratio of medians"))
    one = alt.Chart(alt.Data(values=[{"s": 1.0}])).mark_rule(strokeDash=[4, 3]).encode(y="s:Q")
    title = ["through deep5 / bare, the same size", "line: median, named below; dashed: no cost"]
    return [alt.layer(chart, one).properties(width=2 * _WIDTH * len(labels), height=_RATIO_HEIGHT, title=title)]


def _violins(alt: Any, labels: Sequence[str], violins: Sequence[_Violin], y: Any) -> Any:
    """A violin a label."""
    outlines, medians = [], []
    for place, (label, (way, sizes, middle)) in enumerate(zip(labels, violins, strict=True)):
        shared = {"candidate": label, "way": way}
        values, widths = violin_outline(sizes)
        outlines += [
            {**shared, "s": value, "left": place - width, "right": place + width}
            for value, width in zip(values.tolist(), widths.tolist(), strict=True)
        ]
        medians.append({**shared, "s": middle, "left": place - 0.25, "right": place + 0.25})
    x = alt.X("left:Q", axis=_axis(alt, labels), scale=alt.Scale(domain=[-0.6, len(labels) - 0.4]), title=None)
    colour = alt.Color("way:N", scale=alt.Scale(**_COLOURS), title=None)
    shape = alt.Chart(alt.Data(values=outlines)).mark_area(orient="horizontal", opacity=0.75)
    line = alt.Chart(alt.Data(values=medians)).mark_rule(strokeWidth=2)
    return alt.layer(
        shape.encode(x=x, x2="right:Q", y=y, color=colour, detail="candidate:N"),
        line.encode(x=x, x2="right:Q", y=y),
    )


def violin_outline(sizes: Sequence[Sequence[float]]) -> tuple[Any, Any]:
    """Half the width of a violin along the logarithm of time, each size weighing as much as any other.

    Args:
        sizes: Seconds a call, every sample, size by size.

    Returns:
        Seconds, and half-widths of which the largest is 0.45; float64 arrays.
    """
    from scipy.stats import gaussian_kde

    values = np.log10(np.concatenate([np.asarray(times, dtype=np.float64) for times in sizes]))
    weights = np.concatenate([np.full(len(times), 1 / len(times)) for times in sizes])
    if values.size < 2 or np.ptp(values) < 1e-6:
        middle = float(values[0])
        return 10 ** np.array([middle - 1e-3, middle + 1e-3]), np.full(2, 0.45)
    kernel = gaussian_kde(values, weights=weights)
    grid = np.linspace(values.min(), values.max(), _POINTS)  # it ends where the samples end
    density = kernel(grid)
    return 10**grid, 0.45 * density / density.max()


def box_chart(rows: Sequence[Mapping[str, Any]], samples: Mapping[str, Sequence[SampleRow]], problem: str) -> Any:
    """Times at one size: a box a candidate from quartile to quartile, whiskers to the extremes, a panel a direction.

    Args:
        rows: Of operators.json.
        samples: Of samples.csv, by series.
        problem: Whose.

    Raises:
        UsageError: It was not measured.
    """
    alt = _altair()
    own = [row for row in rows if row["problem"] == problem]
    if not own:
        raise UsageError(f"the problem {problem!r} is not among those measured; remedy: one that is")
    panels = []
    for direction in dict.fromkeys(row["direction"] for row in own):
        chosen = [row for row in own if row["direction"] == direction]
        values = [
            {"candidate": row["candidate"], "way": _WAYS[row["bare"]], "s": value}
            for row in chosen
            for value in _values(row, samples)
        ]
        labels = list(dict.fromkeys(row["candidate"] for row in chosen))
        counts = sorted(len(_values(row, samples)) for row in chosen)
        title = [
            f"{direction}: time a call",
            chosen[0]["title"],
            f"boxes: quartiles of {counts[0]} to {counts[-1]} samples; whiskers: extremes",
        ]
        panels.append(
            alt.Chart(alt.Data(values=values))
            .mark_boxplot(extent="min-max", size=28)
            .encode(
                x=alt.X("candidate:N", sort=labels, title=None, axis=alt.Axis(labelAngle=-40, labelOverlap=False)),
                y=_seconds(alt),
                color=alt.Color("way:N", scale=alt.Scale(**_COLOURS), title=None),
            )
            .properties(width=_WIDTH * len(labels), height=_HEIGHT, title=title)
        )
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, list[SampleRow]]]:
    result = load(folder)
    file = result.folder / _OPERATORS
    try:
        told = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no {_OPERATORS} ({error}); allowed: a result of level 0") from error
    return told, result.samples()


def _values(row: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]) -> list[float]:
    return [sample.value for name in row["series"] for sample in samples[name]]


def _seconds(alt: Any) -> Any:
    # Its ticks have their unit: 300µs, 20ms, 1s.
    axis = alt.Axis(labelExpr="format(datum.value, '~s') + 's'")
    return alt.Y("s:Q", scale=_logarithmic(alt), axis=axis, title="time a call")


def _logarithmic(alt: Any) -> Any:
    return alt.Scale(type="log", nice=False, padding=6)


def _axis(alt: Any, labels: Sequence[str]) -> Any:
    """Names under the places 0, 1, 2, …"""
    return alt.Axis(
        values=list(range(len(labels))),
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        labelAngle=-40,
        grid=False,
        ticks=False,
        labelOverlap=False,
    )


def _altair() -> Any:
    try:
        import altair
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return altair


def _pictures(name: str, chart: Any) -> dict[str, bytes]:
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    spec = chart.to_json()
    return {
        f"{name}.svg": vl_convert.vegalite_to_svg(spec).encode(),
        f"{name}.png": vl_convert.vegalite_to_png(spec, scale=2),
    }


def _missing(error: ModuleNotFoundError) -> MissingDependency:
    return MissingDependency(f"pictures need the package {error.name!r}; remedy: pip install 'deep5[report]'")
