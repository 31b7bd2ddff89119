"""Pictures of operators' times, drawn from a result folder's raw samples: violins over all sizes, boxes at one size.

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

__all__ = ["box_chart", "draw", "violin_chart", "violin_outline"]

_OPERATORS = "operators.json"
_WIDTH, _HEIGHT = 64, 280
_WAYS = {False: "through deep5", True: "bare"}
_COLOURS = {"domain": list(_WAYS.values()), "range": ["#3b6ea5", "#d98032"]}
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
    rows, samples = _read(folder)
    charts = {"violin": violin_chart(rows, samples)}
    missing = []
    if box is not None:
        if any(row["problem"] == box for row in rows):
            charts["box"] = box_chart(rows, samples, box)
        else:
            missing.append(f"no box.svg was drawn: the problem {box!r} was not measured in this run")
    pictures: dict[str, bytes] = {}
    for name, chart in charts.items():
        pictures |= _pictures(name, chart)
    return pictures, missing


def violin_chart(rows: Sequence[Mapping[str, Any]], samples: Mapping[str, Sequence[SampleRow]]) -> Any:
    """Times over all sizes: a violin a candidate, its median as a line, a panel a direction.

    Every size counts alike, however many samples it has.

    Args:
        rows: Of operators.json.
        samples: Of samples.csv, by series.
    """
    alt = _altair()
    panels = []
    for direction in dict.fromkeys(row["direction"] for row in rows):
        chosen = [row for row in rows if row["direction"] == direction]
        labels = list(dict.fromkeys(row["candidate"] for row in chosen))
        outlines, medians = [], []
        for place, label in enumerate(labels):
            own = [row for row in chosen if row["candidate"] == label]
            way = _WAYS[own[0]["bare"]]
            shared = {"candidate": label, "way": way}
            times, widths = violin_outline([_values(row, samples) for row in own])
            outlines += [
                {**shared, "s": time, "left": place - width, "right": place + width}
                for time, width in zip(times.tolist(), widths.tolist(), strict=True)
            ]
            middle = float(np.median([row["median_s"] for row in own]))
            medians.append({**shared, "s": middle, "left": place - 0.25, "right": place + 0.25})
        y = alt.Y("s:Q", scale=alt.Scale(type="log", nice=False), title="seconds a call")
        x = alt.X("left:Q", axis=_axis(alt, labels), scale=alt.Scale(domain=[-0.6, len(labels) - 0.4]), title=None)
        colour = alt.Color("way:N", scale=alt.Scale(**_COLOURS), title=None)
        shape = alt.Chart(alt.Data(values=outlines)).mark_area(orient="horizontal", opacity=0.75)
        line = alt.Chart(alt.Data(values=medians)).mark_rule(strokeWidth=2)
        panels.append(
            alt.layer(
                shape.encode(x=x, x2="right:Q", y=y, color=colour, detail="candidate:N"),
                line.encode(x=x, x2="right:Q", y=y),
            ).properties(width=_WIDTH * len(labels), height=_HEIGHT, title=f"{direction}, all sizes")
        )
    return alt.hconcat(*panels).resolve_scale(color="shared")


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
        panels.append(
            alt.Chart(alt.Data(values=values))
            .mark_boxplot(extent="min-max", size=28)
            .encode(
                x=alt.X("candidate:N", sort=labels, title=None, axis=alt.Axis(labelAngle=-40, labelOverlap=False)),
                y=alt.Y("s:Q", scale=alt.Scale(type="log", nice=False), title="seconds a call"),
                color=alt.Color("way:N", scale=alt.Scale(**_COLOURS), title=None),
            )
            .properties(width=_WIDTH * len(labels), height=_HEIGHT, title=f"{direction}, {chosen[0]['title']}")
        )
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, list[SampleRow]]]:
    result = load(folder)
    file = result.folder / _OPERATORS
    try:
        told = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no {_OPERATORS} ({error}); allowed: a result of level 0") from error
    return told["rows"], result.samples()


def _values(row: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]) -> list[float]:
    return [sample.value for name in row["series"] for sample in samples[name]]


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
