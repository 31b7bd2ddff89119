"""Tables that fit on a screen of any width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_table"]

# Width around and between two columns of a table.
_BETWEEN = 3


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, or several narrower ones, each with as many columns as fit: no word and no number is broken.

    Args:
        console: The console to print on.
        columns: Headings; the first column is in each table.
        rows: Cells.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [max((cell_len(row[place]) for row in rows), default=0) for place in range(len(columns))]
    widths = [max(own, cell_len(head)) for own, head in zip(cells, columns, strict=True)]
    if sum(widths) + _BETWEEN * len(widths) > console.width:
        # Headings wrap.
        widths = [max(own, *map(cell_len, head.split())) for own, head in zip(cells, columns, strict=True)]
    widths[0] = min(widths[0], console.width // 3)
    begin = 1
    while begin < len(columns):
        end, used = begin, widths[0] + _BETWEEN
        while end < len(columns) and (end == begin or used + widths[end] + _BETWEEN <= console.width):
            used += widths[end] + _BETWEEN
            end += 1
        places = [0, *range(begin, end)]
        table = Table(box=box.SIMPLE, pad_edge=False)
        for place in places:
            table.add_column(Text(columns[place]), overflow="fold", width=widths[place])  # "[s]" is not markup
        for row in rows:
            table.add_row(*(Text(row[place]) for place in places))
        console.print(table)
        begin = end
