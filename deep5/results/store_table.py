"""Results for a terminal: one row per result, never truncated; long values wrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.terminal import UNWRAPPED
from deep5.results.choosing import heading
from deep5.results.stored import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["SHOWN", "cell", "store_table"]

SHOWN = ("result", "outcome", "figures")
"""Columns of the table that no row of the store has: they are made of several fields."""

# A result's name contains recipe and date; deep5's own names are not broken in a terminal of 80 columns.
_NARROW = ("result", "framework", "outcome")
_WIDE, _WIDE_FROM = ("started", "result", "size", "framework", "ranks", "device", "status", "verdict"), 120
# In a pipe or a file, where no line is too long.
_UNWRAPPED = (
    "result", "size", "division", "framework", "ranks", "device", "outcome", "figures", "comparable", "started",
)  # fmt: skip
_WIDTHS = {"started": 19, "result": 48, "size": 8, "framework": 12, "device": 8, "status": 10}
_REASON = 120
# The first metrics of a recipe are its main ones.
_FIGURES = 3
_METRIC = "metric."
_MORE = "result,size,figures,comparable"

_STYLE = {"failed": "bold red", "invalid": "bold red", "unreadable": "bold red", "aborted": "yellow"}


def store_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], units: Mapping[str, str], console: Console
) -> None:
    """Print the rows.

    Args:
        rows: As made by `Stored.row`.
        columns: Columns to show; empty: those that fit. "result" is the folder's name, below its study if it is in one,
            "outcome" the verdict, or why there is none, and "figures" the first metrics of the recipe.
        units: Unit by metric column.
        console: The console to print on.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Explicit widths: otherwise the table would break names, which users copy, before words.
    widths = _WIDTHS if not columns and 76 <= console.width < UNWRAPPED else {}
    chosen, narrow = bool(columns), console.width < _WIDE_FROM
    if not columns and not narrow:
        several = any(_ranks(row) > 1 for row in rows)
        fitting = _WIDE if console.width < UNWRAPPED else _UNWRAPPED
        columns = [name for name in fitting if name != "ranks" or several]
    columns = columns or _NARROW
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        longest = max((len(cell(row, name, units)) for row in rows), default=0)
        width = min(max(longest, len(name)), widths[name]) if name in widths else None
        table.add_column(Text(heading(name, units)), overflow="fold", width=width)
    for row in rows:
        style = _STYLE.get(str(row.get("status")), "")
        table.add_row(
            *(Text(cell(row, name, units), style=style if name in ("status", "outcome") else "") for name in columns)
        )
    console.print(table)
    if not chosen and console.width < UNWRAPPED:
        console.print(Text(f"figures and what is comparable: --columns {_MORE}"))


def cell(row: Mapping[str, Any], name: str, units: Mapping[str, str]) -> str:
    """The text of one cell, without terminal control characters.

    Args:
        row: As made by `Stored.row`.
        name: The column.
        units: Unit by metric column.

    >>> cell({"seconds": 1.2345678}, "seconds", {}), cell({}, "host", {})
    ('1.23457', '-')
    >>> cell({"metric.test_accuracy": 97.5, "metric.peak_memory": 80}, "figures", {"metric.test_accuracy": "%"})
    'test_accuracy 97.5 %, peak_memory 80'
    """
    if name == "result":
        folder = printable(row["folder"])
        return folder if not row.get("study") else f"└ {folder.rpartition('/')[2]}"
    value = row.get(name)
    if name == "figures":
        return _figures(row, units)
    if name == "outcome":
        if row.get("status") == "success":
            ranks, size = _ranks(row), row.get("size")
            sized = f", size {printable(size)}" if size not in (None, "full") else ""
            return str(row.get("verdict") or "-") + sized + (f", {ranks} ranks" if ranks > 1 else "")
        reason = str(row.get("reason") or "")
        # --json shows the full reason.
        shown = reason if len(reason) <= _REASON else f"{reason[:_REASON].rstrip()} …"
        return f"{row.get('status')}: {shown}" if shown else str(row.get("status"))
    if name == "started" and value:
        return str(value).replace("T", " ").removesuffix("Z")
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(value)


def _figures(row: Mapping[str, Any], units: Mapping[str, str]) -> str:
    """The first metrics of a run with their units."""
    own = [name for name in row if name.startswith(_METRIC) and row[name] is not None]
    said = []
    for name in own[:_FIGURES]:
        unit = units.get(name, "")
        label = name.removeprefix(_METRIC).removesuffix(f" [{unit}]")
        said.append(f"{label} {cell(row, name, units)} {unit}".rstrip())
    return ", ".join(said) + (", …" if len(own) > _FIGURES else "") or "-"


def _ranks(row: Mapping[str, Any]) -> int:
    ranks = row.get("ranks")
    return ranks if isinstance(ranks, int) else 1
