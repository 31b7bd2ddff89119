"""Tables that the page's script can sort and that are readable without it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deep5.results.markup import Markup, element, named
from deep5.results.report.numbers import as_float, number, ratio, seconds

__all__ = ["Cell", "table"]

# Maximum characters of a cell that is not wrapped, and rows of a table before it scrolls.
_LONG, _TALL = 28, 40
# The limits of what a browser can show; the result folder has all.
_ROWS, _COLUMNS = 2_000, 60
_TAGS = re.compile("<[^<>]*>")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell.

    Attributes:
        shown: The displayed text.
        order: The sort key; None: the displayed text. NaN sorts last.
        mark: "" or the name of its color: "good", "bad", "warn".
    """

    shown: Any
    order: float | None = None
    mark: str = ""

    @staticmethod
    def number(value: Any, mark: str = "") -> Cell:
        """A cell of a number."""
        return Cell(shown=number(value), order=_order(value), mark=mark)

    @staticmethod
    def ratio(value: Any) -> Cell:
        """A cell of a ratio."""
        return Cell(shown=ratio(value), order=_order(value))

    @staticmethod
    def seconds(value: Any, mark: str = "") -> Cell:
        """A cell of a time, in seconds."""
        return Cell(shown=seconds(value), order=_order(value), mark=mark)


def _order(value: Any) -> float:
    parsed = float(value) if isinstance(value, bool) else as_float(value)
    return math.nan if parsed is None else parsed


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], sortable: bool = True) -> Markup:
    """A table in its own region, which scrolls, also by keyboard; the first cell of a row is its heading.

    Content beyond 2000 rows or 60 columns is omitted, and the caption says so.

    Args:
        caption: Caption of the table.
        columns: Names of the columns.
        rows: Cells, or strings.
        sortable: Whether the page's script adds sort buttons to the columns.
    """
    every = list(rows)
    if len(every) > _ROWS:
        caption += f" (the first {_ROWS} of {len(every)} rows)"
    if len(columns) > _COLUMNS:
        caption += f" (the first {_COLUMNS} of {len(columns)} columns)"
    head = element(
        "tr",
        (element("th", element("span", name, class_="plain"), scope="col") for name in columns[:_COLUMNS]),
        class_="head",
    )
    body = [
        element("tr", (_cell(cell, place == 0) for place, cell in enumerate(row[:_COLUMNS]))) for row in every[:_ROWS]
    ]
    made = element(
        "table",
        element("caption", element("span", caption, class_="caption")),
        element("thead", head),
        element("tbody", body),
        class_="sortable" if sortable and len(body) > 1 else None,
    )
    kind = "scroll tall" if len(body) > _TALL else "scroll"
    return element("div", made, class_=kind, role="region", tabindex="0", aria_label=f"table: {caption}")


def _cell(cell: Any, first: bool) -> Markup:
    made = cell if isinstance(cell, Cell) else Cell(shown=cell)
    shown = made.shown if isinstance(made.shown, Markup) else named(made.shown, 120)
    if len(html.unescape(_TAGS.sub("", shown))) > _LONG:
        shown = element("div", shown, class_="long")
    # A NaN has an empty sort key: the script puts it last in either order.
    order = None if made.order is None else "" if math.isnan(made.order) else _script_number(made.order)
    kind = " ".join(filter(None, ("number" if made.order is not None else "", made.mark)))
    attributes = {"class_": kind or None, "data_sort": order}
    return element("th", shown, scope="row", **attributes) if first else element("td", shown, **attributes)


def _script_number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
