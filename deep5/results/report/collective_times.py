"""Times and bandwidths of a run of collectives, by algorithm and size."""

from __future__ import annotations

import math
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.charts.collective import collective_chart, collective_title
from deep5.results.markup import Markup, clean, named
from deep5.results.reading import NotThere, read_object
from deep5.results.report.chart_parts import ROWS, SECONDS, Drawing, left_out, unique_names, within
from deep5.results.report.numbers import rate, size
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result
from deep5.results.standing import standing

__all__ = ["collective_drawing", "collective_table"]

_FILE = "collective.json"
_NUMBERS = ("size_bytes", "median_s", "algorithm_gbyte_s", "bus_gbyte_s")
_OPTIONAL = ("low_s", "high_s", "modelled_s", "measured_over_modelled")
# Sizes of an algorithm that are drawn. Ranges that can be drawn on one axis: bytes, and 10**9 bytes per second.
_SIZES, _BYTES, _RATES = 64, (1, 2**60), (1e-12, 1e9)
_TITLE = 100


def collective_drawing(run: Result) -> Drawing | None:
    """Median times with intervals and the model, and both bandwidths over the sizes; None for other runs.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The file is not in deep5's format.
    """
    document = _read(run)
    rows = document["rows"]
    chosen = _chosen(rows)
    if not chosen:
        return None
    chart = collective_chart(chosen, run.rank_count, " ".join(clean(collective_title(document)).split())[:_TITLE])
    about = (
        f"Time per call of all-reduce by {run.rank_count} ranks and its bandwidths, one line per algorithm: medians "
        "of the slowest rank over the buffer sizes, upright lines their intervals, dashed lines the model."
        f"{left_out(len(chosen), len(rows))}"
    )
    return Drawing("collective", "Times of collectives", about, chart, standing([run]))


def collective_table(run: Result) -> Markup | None:
    """The same as numbers, one row per algorithm and size; None for other runs.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    rows = _read(run)["rows"]
    if not rows:
        return None
    cells = [
        [
            named(row["algorithm"]),
            Cell(shown=size(row["size_bytes"]), order=float(row["size_bytes"])),
            *(Cell.seconds(row[key]) for key in ("median_s", "low_s", "high_s")),
            *(Cell(shown=rate(1e9 * row[key], "B/s"), order=float(row[key])) for key in _NUMBERS[2:]),
            Cell.seconds(row["modelled_s"]),
            Cell.number(row["measured_over_modelled"]),
        ]
        for row in rows
    ]
    columns = ["algorithm", "size", "median", "low", "high", "algbw", "busbw", "model", "measured / model"]
    return table("Times per call of the slowest rank, and bandwidths", columns, cells)


def _chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows to draw, their algorithms with short names."""
    names = list(dict.fromkeys(row["algorithm"] for row in rows))[:ROWS]
    short = dict(zip(names, unique_names(names), strict=True))
    counts = dict.fromkeys(names, 0)
    chosen = []
    for row in rows:
        # A model whose constants were fitted to 0 has no time to draw.
        ends = [row["median_s"], *(row[key] for key in _OPTIONAL[:2] if row[key] is not None), row["modelled_s"] or 1.0]
        fits = within(row["size_bytes"], _BYTES) and all(within(end, SECONDS) for end in ends)
        fits = fits and all(within(row[key], _RATES) for key in _NUMBERS[2:])
        if fits and row["algorithm"] in short and counts[row["algorithm"]] < _SIZES:
            counts[row["algorithm"]] += 1
            chosen.append({**row, "algorithm": short[row["algorithm"]]})
    return chosen


def _read(run: Result) -> dict[str, Any]:
    try:
        document = read_object(run.folder / _FILE)
    except NotThere:
        return {"rows": []}
    try:
        collective_title(document)
        whole = all(map(_is_row, document["rows"]))
    except (KeyError, TypeError, OverflowError):  # a number beyond any float
        whole = False
    if not whole:
        raise UsageError(
            f"{_FILE} of {run.folder.name} is not as deep5 writes it; allowed: its plan, its machine, and rows of "
            "numbers; remedy: restore it from a copy"
        )
    return document


def _is_row(row: Any) -> bool:
    return (
        isinstance(row["algorithm"], str)
        and all(_is_number(row[key]) for key in _NUMBERS)
        and all(row[key] is None or _is_number(row[key]) for key in _OPTIONAL)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
