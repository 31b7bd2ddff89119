"""Latencies and throughput of a serving run, by rate."""

from __future__ import annotations

import math
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.charts.serving import serving_chart, serving_title
from deep5.results.markup import Markup
from deep5.results.reading import NotThere, read_object
from deep5.results.report.chart_parts import ROWS, SECONDS, Drawing, left_out, within
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result
from deep5.results.standing import standing

__all__ = ["serving_drawing", "serving_table"]

_FILE = "serving.json"
_PERCENTILES = ("50", "90", "95", "99", "99.9")
# Requests per second that can be drawn on one axis.
_RATES = (1e-6, 1e9)


def serving_drawing(run: Result) -> Drawing | None:
    """Latency percentiles against throughput, throughput and goodput against the rate; None for other runs.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The file is not in deep5's format, or no latency can be drawn.
    """
    document = _read(run)
    phases = document["phases"]
    chosen = [phase for phase in phases if _is_drawable(phase)][:ROWS]
    if not chosen:
        return None
    plan = document["plan"]
    chart = serving_chart(chosen, plan["bound_s"], serving_title(plan))
    about = (
        f"Latency percentiles of queries against answered requests per second, one point per rate, in the scenario "
        f"{plan['scenario']}; below, throughput and goodput against the rate.{left_out(len(chosen), len(phases))}"
    )
    return Drawing("serving", "Latency against throughput", about, chart, standing([run]))


def serving_table(run: Result) -> Markup | None:
    """The same as numbers, one row per rate; None for other runs.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    phases = _read(run)["phases"]
    if not phases:
        return None
    rows = [
        [
            "-" if phase["rate"] is None else Cell.number(phase["rate"]),
            Cell.number(phase["throughput"]),
            Cell.number(phase["goodput"]),
            *(Cell.seconds(float(phase["percentiles"][name])) for name in _PERCENTILES),
            Cell.number(phase["mean_batch"]),
            Cell.number(phase["failures"]),
        ]
        for phase in phases
    ]
    columns = ["rate", "requests/s", "goodput", *(f"p{name}" for name in _PERCENTILES), "mean batch", "failed"]
    return table("Latencies from the scheduled time, percentiles by the nearest rank", columns, rows)


def _is_drawable(phase: dict[str, Any]) -> bool:
    return within(phase["throughput"], _RATES) and within(float(phase["percentiles"]["50"]), SECONDS)


def _read(run: Result) -> dict[str, Any]:
    try:
        document = read_object(run.folder / _FILE)
    except NotThere:
        return {"phases": []}
    try:
        plan = document["plan"]
        serving_title(plan)
        whole = _is_optional(plan["bound_s"]) and all(map(_is_phase, document["phases"]))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise UsageError(
            f"{_FILE} of {run.folder.name} is not as deep5 writes it; allowed: its plan, and phases of numbers; "
            "remedy: restore it from a copy"
        )
    return document


def _is_phase(phase: Any) -> bool:
    return (
        _is_number(phase["throughput"])
        and _is_number(phase["failures"])
        and all(_is_optional(phase[name]) for name in ("rate", "goodput", "mean_batch"))
        and all(not math.isnan(float(phase["percentiles"][name])) for name in _PERCENTILES)
    )


def _is_optional(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
