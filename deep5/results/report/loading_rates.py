"""Images per second of a run of the loading study: a chart and a table."""

from __future__ import annotations

import math
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.charts.loading import loading_chart
from deep5.results.markup import Markup, named
from deep5.results.report.chart_parts import ROWS, Drawing, left_out, unique_names, within
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result
from deep5.results.standing import standing

__all__ = ["loading_drawing", "loading_table"]

_RATE, _IDEAL = "images_per_second", "ideal_images_per_second"
# Images per second that can be drawn on one axis.
_RATES = (1e-6, 1e12)


def loading_drawing(run: Result) -> Drawing | None:
    """Rates by format and decoder, one point per number of workers; None for other runs.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The metrics are not in deep5's format.
    """
    every = _rows(run)
    if not every:
        return None
    cases = list(dict.fromkeys(row["name"] for row in every))
    short = dict(zip(cases[:ROWS], unique_names(cases[:ROWS]), strict=True))
    rows = [
        {**row, "name": short[row["name"]]}
        for row in every
        if row["name"] in short and all(within(row[key], _RATES) for key in ("rate", "low", "high"))
    ]
    if not rows:
        return None
    stored = next((row["value"] for row in run.document["metrics"] if row["name"] == _IDEAL), None)
    ideal = stored if _is_rate(stored) and within(stored, _RATES) else None
    state = _state(run)
    about = (
        f"Images per second of {state} files by format and decoder: medians, lines their intervals; one point for each "
        "number of threads that make batches ahead (0: the requesting thread makes them). Dashed: arrays that are "
        f"already decoded and in memory.{left_out(len(rows), len(every))}"
    )
    chart = loading_chart(rows, ideal, f"{state} files" + "; dashed: arrays already decoded" * (ideal is not None))
    return Drawing("loading", "Rates of loading", about, chart, standing([run]))


def loading_table(run: Result) -> Markup | None:
    """The same as numbers, one row per case, with the time of one image; None for other runs.

    Raises:
        UsageError: The metrics are not in deep5's format.
    """
    rows = _rows(run)
    if not rows:
        return None
    cells = [
        [
            named(row["name"]),
            Cell.number(row["workers"]),
            *(Cell.number(row[key]) for key in ("rate", "low", "high")),
            Cell.seconds(1 / row["rate"]),
        ]
        for row in rows
    ]
    columns = ["format, decoder", "workers", "images/s", "low", "high", "time of an image"]
    return table(f"Images per second of {_state(run)} files", columns, cells)


def _state(run: Result) -> str:
    state = (run.document["measurement"] or {}).get("cache_state")
    return state if state in ("warm", "cold") else "the"


def _rows(run: Result) -> list[dict[str, Any]]:
    found = []
    for row in run.document["metrics"]:
        if row["name"] != _RATE or row["value"] is None:
            continue
        given, interval = row["parameters"], row["interval"] or {}
        ends = [interval.get(key, row["value"]) for key in ("low", "high")]
        whole = isinstance(given.get("workers"), int) and all(
            isinstance(given.get(k), str) for k in ("form", "decoder")
        )
        if not whole or not all(map(_is_rate, (row["value"], *ends))):
            raise UsageError(
                f"the metric {_RATE} of {run.folder.name} is not as deep5 writes it; allowed: form, decoder, workers, "
                "and rates above 0; remedy: restore the result from a copy"
            )
        name = given["form"] + ("" if given["decoder"] == "none" else f", {given['decoder']}")
        found.append({"name": name, "workers": given["workers"], "rate": row["value"], "low": ends[0], "high": ends[1]})
    return found


def _is_rate(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0
