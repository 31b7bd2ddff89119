"""Values as cells of a CSV file that may be opened in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["csv_cell", "csv_lines"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: Any) -> Any:
    """None as an empty cell, a number in its shortest exact form, and a string that cannot be taken for a formula.

    A spreadsheet evaluates a cell that begins with `=`, `+`, `-`, `@` or a tab, which may send the sheet's contents to
    a third party; such a string gets a leading apostrophe. Numbers, including negative ones, are unchanged.

    >>> csv_cell(None), csv_cell(-0.5), csv_cell(-3), csv_cell("=1+1"), csv_cell("lr=1")
    ('', '-0.5', -3, "'=1+1", 'lr=1')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    # A formula after blanks is evaluated as well.
    if isinstance(value, str) and (value.lstrip(" \n").startswith(_FORMULA)):
        return f"'{value}"
    return value


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as lines of CSV, with each value converted by `csv_cell`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([csv_cell(value) for value in row])
    return out.getvalue()
