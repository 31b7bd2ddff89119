"""Selects rows of the store: filters, order, the last rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from deep5.core.errors import UnknownName, suggestion
from deep5.results.stored import Stored, printable

__all__ = ["check_column", "chosen", "columns_of", "heading", "matches", "ordered", "rows_with_units", "unmatched"]

_COLUMNS = tuple(Stored(folder="", kind="").row())
_OTHERS = ("metric.", "ratio.", "ratio_low.", "ratio_high.", "set.", "verdict.")
# Maximum number of values listed per column, of characters of each, and of values examined.
_LISTED, _LETTERS, _LOOKED_AT = 10, 60, 2_000


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All columns of these rows: first the fields that each result has, then the others by name."""
    extra = {name for row in rows for name in row} - set(_COLUMNS)
    return [*_COLUMNS, *sorted(extra)]


def rows_with_units(results: Iterable[Stored]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows, and the unit of each metric column; a metric with several units becomes several columns."""
    results = list(results)
    seen: dict[str, set[str]] = {}
    for own in results:
        for label, (_, unit) in own.metrics.items():
            seen.setdefault(label, set()).add(unit)
    rows, units = [], {}
    for own in results:
        row = own.row()
        for label, (value, unit) in own.metrics.items():
            name = f"metric.{label}"
            if len(seen[label]) > 1:
                del row[name]
                name = f"{name} [{unit}]"
                row[name] = value
            units[name] = unit
        rows.append(row)
    return rows, units


def heading(column: str, units: Mapping[str, str]) -> str:
    """The heading of a column where its unit has no other place.

    >>> heading("metric.loss", {"metric.loss": "nat"}), heading("metric.t [s]", {"metric.t [s]": "s"})
    ('metric.loss [nat]', 'metric.t [s]')
    """
    unit = units.get(column)
    return column if not unit or column.endswith(f" [{unit}]") else f"{column} [{unit}]"


def chosen(rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows in which every column has the requested value.

    Args:
        rows: As made by `Stored.row`.
        where: Value by column, as for `matches`.

    Raises:
        UnknownName: No row has such a column.
    """
    known = columns_of(rows)
    for name in where:
        check_column(name, known)
    return [row for row in rows if all(matches(row.get(name), value) for name, value in where.items())]


def unmatched(rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> list[str]:
    """A sentence for each requested value that no result has, with the existing values.

    Args:
        rows: As made by `Stored.row`.
        where: As for `chosen`.

    >>> unmatched([{"framework": "jax, pytorch"}, {"framework": "jax"}], {"framework": "pytoch"})
    ["no result has framework 'pytoch'; available: jax, pytorch; did you mean 'pytorch'?"]
    """
    said = []
    for name, wanted in where.items():
        got = [row.get(name) for row in rows]
        if not rows or any(matches(value, wanted) for value in got):
            continue
        seen: Counter[str] = Counter()
        for value in got:
            # A comparison lists all its frameworks.
            parts = str(value).split(", ") if name == "framework" else [str(value)]
            seen.update(printable(part)[:_LETTERS] for part in parts if value is not None)
        known = [text for text, _ in seen.most_common(_LOOKED_AT)]
        more = f" and {len(seen) - _LISTED} more" if len(seen) > _LISTED else ""
        there = (
            f"available: {', '.join(sorted(known[:_LISTED]))}{more}{suggestion(str(wanted)[:_LETTERS], known)}"
            if seen
            else "no result has any"
        )
        said.append(f"no result has {printable(name)} {printable(wanted)[:_LETTERS]!r}; {there}")
    return said


def matches(got: object, wanted: object) -> bool:
    """Whether a value equals the requested one.

    Args:
        got: In JSON types.
        wanted: A value; a string is parsed, and may contain file-name wildcards. For several frameworks, the name of
            one is enough.

    >>> matches(0.01, "1e-2"), matches("digits_lenet", "digits*"), matches("jax, pytorch", "jax"), matches(None, "none")
    (True, True, True, True)
    """
    if got is None:
        return wanted is None or str(wanted).lower() in ("none", "")
    if not isinstance(wanted, str):
        return bool(got == wanted) and isinstance(got, bool) == isinstance(wanted, bool)
    if isinstance(got, bool):
        return str(got).lower() == wanted.lower()
    if isinstance(got, (int, float)):
        try:
            return got == float(wanted) or str(got) == wanted
        except (ValueError, OverflowError):
            return fnmatchcase(str(got), wanted)
    text = str(got)
    return any(part == wanted or fnmatchcase(part, wanted) for part in (text, *text.split(", ")))


def ordered(rows: Sequence[Mapping[str, Any]], key: str | None) -> list[Mapping[str, Any]]:
    """The rows in ascending order of a column's value; rows without a value come first.

    Args:
        rows: As made by `Stored.row`.
        key: A column; None: the given order.

    Raises:
        UnknownName: No row has such a column.
    """
    if key is None:
        return list(rows)
    check_column(key, columns_of(rows))
    return sorted(rows, key=lambda row: _rank(row.get(key)))


def _rank(value: Any) -> tuple[int, float, str]:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return (0, 0.0, "")
    if isinstance(value, (int, float)):
        try:
            return (1, float(value), "")
        except OverflowError:
            return (1, math.inf, "")
    return (2, 0.0, str(value))


def check_column(name: str, known: Sequence[str]) -> None:
    """Reject an unknown column.

    Args:
        name: The requested column.
        known: As returned by `columns_of`.

    Raises:
        UnknownName: The column is unknown; the message lists the fields, and metrics and settings if they are few.
    """
    if name not in known:
        fields = [column for column in known if column in _COLUMNS]
        rest = len(known) - len(fields)
        remedy = f"and {rest} of metric.NAME, set.KEY, ratio.CANDIDATE and the like in these results" if rest else ""
        allowed = known if name.startswith(_OTHERS) and rest <= 60 else fields
        raise UnknownName("column", name, allowed, remedy if allowed is fields else "")
