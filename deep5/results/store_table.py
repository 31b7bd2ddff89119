"""Results for a terminal: one row per result, never truncated; long values wrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.terminal import UNWRAPPED
from deep5.results.choosing import heading
from deep5.results.stored import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["cell", "store_table"]

# A result's name contains recipe and date; deep5's own names are not broken in a terminal of 80 columns.
_NARROW = ("result", "framework", "outcome")
_WIDE, _WIDE_FROM = ("started", "result", "framework", "ranks", "device", "status", "verdict"), 120
_WIDTHS = {"started": 19, "result": 48, "framework": 12, "device": 8, "status": 10}
_REASON = 120

_STYLE = {"failed": "bold red", "invalid": "bold red", "unreadable": "bold red", "aborted": "yellow"}


def store_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], units: Mapping[str, str], console: Console
) -> None:
    """Print the rows.

    Args:
        rows: As made by `Stored.row`.
        columns: Columns to show; empty: those that fit. "result" is the folder's name, below its study if it is in one,
            and "outcome" the verdict, or why there is none.
        units: Unit by metric column.
        console: The console to print on.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Explicit widths: otherwise the table would break names, which users copy, before words.
    widths = _WIDTHS if not columns and 76 <= console.width < UNWRAPPED else {}
    if not columns and _WIDE_FROM <= console.width < UNWRAPPED:
        several = any(_ranks(row) > 1 for row in rows)
        columns = [name for name in _WIDE if name != "ranks" or several]
    columns = columns or _NARROW
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        longest = max((len(cell(row, name)) for row in rows), default=0)
        width = min(max(longest, len(name)), widths[name]) if name in widths else None
        table.add_column(Text(heading(name, units)), overflow="fold", width=width)
    for row in rows:
        style = _STYLE.get(str(row.get("status")), "")
        table.add_row(
            *(Text(cell(row, name), style=style if name in ("status", "outcome") else "") for name in columns)
        )
    console.print(table)


def cell(row: Mapping[str, Any], name: str) -> str:
    """The text of one cell, without terminal control characters.

    >>> cell({"seconds": 1.2345678}, "seconds"), cell({}, "host")
    ('1.23457', '-')
    """
    if name == "result":
        folder = printable(row["folder"])
        return folder if not row.get("study") else f"└ {folder.rpartition('/')[2]}"
    value = row.get(name)
    if name == "outcome":
        if row.get("status") == "success":
            ranks = _ranks(row)
            return str(row.get("verdict") or "-") + (f", {ranks} ranks" if ranks > 1 else "")
        reason = str(row.get("reason") or "")
        # --json shows the full reason.
        shown = reason if len(reason) <= _REASON else f"{reason[:_REASON].rstrip()} …"
        return f"{row.get('status')}: {shown}" if shown else str(row.get("status"))
    if name == "started" and value:
        return str(value).replace("T", " ").removesuffix("Z")
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(value)


def _ranks(row: Mapping[str, Any]) -> int:
    ranks = row.get("ranks")
    return ranks if isinstance(ranks, int) else 1
