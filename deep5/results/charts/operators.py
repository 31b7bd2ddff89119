"""Charts of operator times, drawn from a result folder's raw samples: violins over many sizes, boxes at one size.

After figure 6 of Ben-Nun et al., A Modular Benchmarking Infrastructure for High-Performance and Reproducible Deep
Learning, IPDPS 2019. Needs the packages of the extra `report`: Altair, and vl-convert, which renders without a browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.charts import WIDTH, altair, by_name, files, logarithmic, names_axis, stacked
from deep5.core.errors import UsageError
from deep5.core.quantities import seconds
from deep5.results.charts.operator_study import study_chart
from deep5.results.reading import NotThere, read_object
from deep5.results.result import load
from deep5.results.samples_file import SampleRow

__all__ = ["box_chart", "common_sizes", "draw", "violin_chart", "violin_outline"]

_OPERATORS = "operators.json"
_WAYS = {False: "through deep5", True: "bare"}
# Colors of calls through deep5, and of hand-written code.
_COLORS = {_WAYS[False]: "#3b6ea5", _WAYS[True]: "#d98032"}
_HEIGHT, _RATIO_HEIGHT = 180, 90
# With fewer sizes a density mostly shows the smoothing: their medians are drawn as points instead.
_FEWEST = 8
# Points of a violin's outline.
_POINTS = 96
# Framework, whether it is called without deep5, its values by size, and its median.
_Violin = tuple[str, bool, Sequence[Sequence[float]], float]


def draw(folder: Path, box: str | None = None) -> tuple[dict[str, bytes], list[str]]:
    """The charts of a result folder.

    Args:
        folder: Contains operators.json and samples.csv, as a run of level 0 writes them.
        box: Name of the problem of the box plot; None: no box plot.

    Returns:
        Contents of `violin.svg`, `violin.png`, `box.svg`, `box.png`, or of `study.svg` and `study.png` for a study, by
        name; and the reasons for missing charts.

    Raises:
        UsageError: The folder does not exist.
        MissingDependency: Altair or vl-convert is not installed.
    """
    result = load(folder)
    document, samples, title = _read(result.folder), result.samples(), _heading(result.document)
    rows, missing = document["rows"], []
    problems = str(result.document.get("components", {}).get("plan", {}).get("problems"))
    charts: dict[str, Any] = {}
    if problems.startswith("studies."):
        charts["study"] = study_chart(rows, title)
    elif common_sizes(rows):
        charts["violin"] = violin_chart(rows, samples, document.get("left_out", ()), title)
    else:
        missing.append("no violin.svg was drawn: no size was measured on all frameworks")
    if box is not None:
        if any(row["problem"] == box for row in rows):
            charts["box"] = box_chart(rows, samples, box, title)
        else:
            missing.append(f"no box.svg was drawn: the problem {box!r} was not measured in this run")
    pictures: dict[str, bytes] = {}
    for name, chart in charts.items():
        pictures |= files(name, chart)
    return pictures, missing


def common_sizes(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """By direction, the problems on which every candidate was measured: only those can be compared.

    Args:
        rows: From operators.json.
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
    title: str = "",
) -> Any:
    """Times over the sizes that every candidate ran: a violin per candidate with its median, by direction.

    Every size has the same weight, however many samples it has. Times of all sizes span decades, which hides deep5's
    own overhead: if a framework was also called directly, a second panel shows a violin of time through deep5 divided
    by direct time, by size. Fewer than eight sizes are drawn as points, one per size.

    Args:
        rows: From operators.json.
        samples: From samples.csv, by series.
        left_out: From operators.json, to state the number of sizes.
        title: Title of the chart.
    """
    alt, panels = altair(), []
    for direction, sizes in common_sizes(rows).items():
        chosen = [row for row in rows if row["direction"] == direction and row["problem"] in sizes]
        names = list(dict.fromkeys(row["framework"] for row in chosen))
        violins = []
        for label in dict.fromkeys(row["candidate"] for row in chosen):
            own = [row for row in chosen if row["candidate"] == label]
            middle = float(np.median([row["median_s"] for row in own]))
            violins.append((own[0]["framework"], own[0]["bare"], [_values(row, samples) for row in own], middle))
        known = {entry["problem"] for entry in (*rows, *left_out) if entry["direction"] == direction}
        said = f"{direction}: {len(sizes)} of {len(known)} sizes, those that all candidates ran; line: median"
        ratios = _ratios(alt, names, chosen)
        times = _violins(alt, names, violins, "time per call", labelled=not ratios)
        panels += [times.properties(width=WIDTH, height=_HEIGHT, title=said), *ratios]
    return stacked(alt, panels, title)


def _ratios(alt: Any, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The panel of time through deep5 divided by direct time, where both exist."""
    found: dict[str, list[float]] = {}
    bare = {(row["framework"], row["problem"]): row["median_s"] for row in rows if row["bare"]}
    for row in rows:
        other = bare.get((row["framework"], row["problem"]))
        if not row["bare"] and other is not None:
            found.setdefault(row["framework"], []).append(row["median_s"] / other)
    if not found:
        return []
    middles = {name: float(np.median(ratios)) for name, ratios in found.items()}
    violins = [(name, False, [[ratio] for ratio in ratios], middles[name]) for name, ratios in found.items()]
    labels = [f"{name} {middles[name]:.2f}x" if name in found else name for name in names]
    chart = _violins(alt, names, violins, "ratio", None, labels=labels, beside=False, height=_RATIO_HEIGHT)
    one = alt.Chart(alt.Data(values=[{"s": 1.0}])).mark_rule(strokeDash=[4, 3]).encode(y="s:Q")
    said = "through deep5 / bare, per size; labels: medians; dashed: 1"
    return [alt.layer(*chart.layer, one).properties(width=WIDTH, height=_RATIO_HEIGHT, title=said)]


def _violins(
    alt: Any,
    names: Sequence[str],
    violins: Sequence[_Violin],
    title: str,
    shown: Callable[[float], str] | None = seconds,
    *,
    labels: Sequence[str] = (),
    labelled: bool = True,
    beside: bool | None = None,
    height: int = _HEIGHT,
) -> Any:
    """One violin each, at its framework's position; side by side if there are times through deep5 and direct ones."""
    beside = any(bare for _, bare, _, _ in violins) if beside is None else beside
    outlines, points, medians, drawn = [], [], [], [] if shown else [1.0]
    for name, bare, sizes, middle in violins:
        place, half = names.index(name) + (0.22 * (1 if bare else -1) if beside else 0), 0.2 if beside else 0.4
        shared = {"candidate": f"{name} {bare}", "way": _WAYS[bare]}
        drawn.append(middle)
        if len(sizes) < _FEWEST:
            middles = [float(np.median(times)) for times in sizes]
            points += [{**shared, "s": value, "left": place} for value in middles]
            drawn += middles
        else:
            values, widths = violin_outline(sizes)
            outlines += [
                {**shared, "s": value, "left": place - half * width, "right": place + half * width}
                for value, width in zip(values.tolist(), widths.tolist(), strict=True)
            ]
            drawn += values.tolist()
        medians.append({**shared, "s": middle, "left": place - half / 2, "right": place + half / 2})
    axis = names_axis(alt, labels or names) if labelled else None
    x = alt.X("left:Q", axis=axis, scale=alt.Scale(domain=[-0.6, len(names) - 0.4], nice=False), title=None)
    y = logarithmic(alt, alt.Y, "s:Q", drawn, title, shown, height)
    colour = by_name(alt.Color, "way:N", _COLORS, title=None)
    layers = [
        alt.Chart(alt.Data(values=medians)).mark_rule(strokeWidth=2).encode(x=x, x2="right:Q", y=y),
    ]
    if points:
        layers.append(
            alt.Chart(alt.Data(values=points)).mark_circle(size=40, opacity=0.75).encode(x=x, y=y, color=colour)
        )
    if outlines:
        shape = alt.Chart(alt.Data(values=outlines)).mark_area(orient="horizontal", opacity=0.75)
        layers.insert(0, shape.encode(x=x, x2="right:Q", y=y, color=colour, detail="candidate:N"))
    return alt.layer(*layers)


def violin_outline(sizes: Sequence[Sequence[float]]) -> tuple[Any, Any]:
    """Half the width of a violin along the logarithm of time; each size has the same weight.

    Args:
        sizes: Seconds per call, every sample, by size.

    Returns:
        Seconds, and half-widths normalized to a maximum of 1; float64 arrays.
    """
    from scipy.stats import gaussian_kde

    values = np.log10(np.concatenate([np.asarray(times, dtype=np.float64) for times in sizes]))
    weights = np.concatenate([np.full(len(times), 1 / len(times)) for times in sizes])
    if values.size < 2 or np.ptp(values) < 1e-6:
        middle = float(values[0])
        return 10 ** np.array([middle - 1e-3, middle + 1e-3]), np.ones(2)
    kernel = gaussian_kde(values, weights=weights)
    grid = np.linspace(values.min(), values.max(), _POINTS)  # it ends at the extreme samples
    density = kernel(grid)
    return 10**grid, density / density.max()


def box_chart(
    rows: Sequence[Mapping[str, Any]], samples: Mapping[str, Sequence[SampleRow]], problem: str, title: str = ""
) -> Any:
    """Times at one size: a box per candidate from quartile to quartile, whiskers to the extremes, by direction.

    Args:
        rows: From operators.json.
        samples: From samples.csv, by series.
        problem: Name of the problem.
        title: Title of the chart.

    Raises:
        UsageError: The problem was not measured.
    """
    alt = altair()
    own = [row for row in rows if row["problem"] == problem]
    if not own:
        raise UsageError(f"the problem {problem!r} was not measured; remedy: choose a measured one")
    panels = []
    for direction in dict.fromkeys(row["direction"] for row in own):
        chosen = [row for row in own if row["direction"] == direction]
        values = [
            {"framework": row["framework"], "way": _WAYS[row["bare"]], "s": value}
            for row in chosen
            for value in _values(row, samples)
        ]
        labels = list(dict.fromkeys(row["framework"] for row in chosen))
        counts = sorted({len(_values(row, samples)) for row in chosen})
        number = " to ".join(map(str, {counts[0]: None, counts[-1]: None}))
        turned = names_axis(alt, labels)["labelAngle"]
        panels.append(
            alt.Chart(alt.Data(values=values))
            .mark_boxplot(extent="min-max", size=14)
            .encode(
                x=alt.X("framework:N", sort=labels, title=None, axis=alt.Axis(labelAngle=turned, labelOverlap=False)),
                xOffset=alt.XOffset("way:N", sort=list(dict.fromkeys(_WAYS[row["bare"]] for row in chosen))),
                y=logarithmic(alt, alt.Y, "s:Q", [value["s"] for value in values], "time per call"),
                color=by_name(alt.Color, "way:N", _COLORS, title=None),
            )
            .properties(
                width=WIDTH,
                height=_HEIGHT,
                title=[
                    f"{direction}: {chosen[0]['title']}",
                    f"boxes: quartiles of {number} samples; whiskers: extremes",
                ],
            )
        )
    return stacked(alt, panels, title)


def _heading(document: Mapping[str, Any]) -> str:
    """What was timed, on which processor, with how many threads.

    Args:
        document: From result.json.
    """
    plan = document.get("components", {}).get("plan", {})
    model = document.get("system", {}).get("before", {}).get("cpu", {}).get("model")
    threads = plan.get("threads")
    parts = [plan.get("problems") or plan.get("operator"), model]
    parts.append(plan["device"] if plan.get("device", "cpu") != "cpu" else None)
    parts.append(None if threads is None else f"{threads} thread{'s' * (threads != 1)}")
    return ", ".join(part for part in parts if part)


def _read(folder: Path) -> dict[str, Any]:
    file = folder / _OPERATORS
    try:
        return read_object(file)
    except NotThere as error:
        raise UsageError(f"{folder} holds no {_OPERATORS}; allowed: a result of level 0") from error


def _values(row: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]) -> list[float]:
    return [sample.value for name in row["series"] for sample in samples[name]]
