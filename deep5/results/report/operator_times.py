"""Operator times of a run of level 0: violins over the sizes, or a study of batch sizes."""

from __future__ import annotations

from typing import Any

from deep5.core.errors import UsageError
from deep5.results.charts.operator_study import study_chart
from deep5.results.charts.operators import common_sizes, violin_chart
from deep5.results.markup import Markup, named
from deep5.results.reading import NotThere, read_object
from deep5.results.report.chart_parts import Drawing, check_size
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result
from deep5.results.standing import standing

__all__ = ["operator_drawing", "operator_rows", "operator_table"]

_FILE = "operators.json"


def operator_drawing(run: Result) -> Drawing | None:
    """The samples of a run of level 0; None for other runs, or if no size was measured on all candidates.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The file is not in deep5's format.
    """
    document = _read(run)
    rows = document["rows"]
    check_size(run.folder)
    problems = str((run.document.get("components") or {}).get("plan", {}).get("problems"))
    if problems.startswith("studies."):
        about, chart = "Median times with their intervals.", study_chart(rows)
    elif common_sizes(rows):
        about = "Times over the sizes that every candidate ran: violins where there are enough of them, else points."
        chart = violin_chart(rows, run.samples(), document.get("left_out", ()))
    else:
        return None
    return Drawing("operators", "Times of operators", about, chart, standing([run]))


def operator_table(run: Result) -> Markup | None:
    """The same as numbers, one row per problem, direction and candidate; None for other runs.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    rows = operator_rows(run)
    if not rows:
        return None
    cells = [
        [
            named(row["candidate"]),
            named(row["problem"]),
            named(row["direction"]),
            *(Cell.seconds(row.get(key)) for key in ("median_s", "low_s", "high_s")),
        ]
        for row in rows
    ]
    return table("Times per call", ["candidate", "problem", "direction", "median", "low", "high"], cells)


def operator_rows(run: Result) -> list[dict[str, Any]]:
    """The rows of operators.json; empty for runs of other levels.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    rows: list[dict[str, Any]] = _read(run)["rows"]
    return rows


def _read(run: Result) -> dict[str, Any]:
    try:
        document = read_object(run.folder / _FILE)
    except NotThere:
        return {"rows": []}
    if not isinstance(document.get("rows"), list):
        raise UsageError(f"{_FILE} of {run.folder.name} has no list of rows; remedy: restore it from a copy")
    return document
