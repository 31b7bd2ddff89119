"""Types of the columns of a table, inferred and stated; cells that do not fit are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["MISSING", "Column", "Role", "Rows", "column_of"]

MISSING = ("", "NA", "N/A", "NaN", "nan", "n/a", "null", "NULL", "None", "<NA>", "?")
"""Strings that stand for a missing value in a CSV file."""

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
# A decimal comma, or thousands: `0,5` and `1,234.5` are numbers to their author.
_COMMA = r"^\s*[+-]?\d*(,\d+)+\.?\d*([eE][+-]?\d+)?\s*$"
_TRUTH = {"true": 1.0, "false": 0.0}

Role = Literal["feature", "target", "classes"]
"""What a column is for: an input, the target of a task that is inferred or a regression, or a target of classes."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Names of rows for messages.

    Attributes:
        names: The files or objects, in order.
        counts: Their numbers of rows.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]

    def at(self, row: int) -> str:
        """The name of a row, which counts from 1 after the header."""
        for name, count in zip(self.names, self.counts, strict=True):
            if row < count:
                return f"{name}, row {row + 1}"
            row -= count
        raise IndexError(row)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column with its inferred type.

    Attributes:
        name: Its name.
        kind: "number", "boolean" (0 and 1) or "category".
        values: float64 of shape (rows,), NaN where missing; for a category, the index into `categories`, -1 where
            missing.
        categories: The different values of a category, sorted.
        missing: Whether a cell has no value, bool, shape (rows,).
        note: How the type was inferred, if it is not obvious.
    """

    name: str
    kind: Literal["number", "boolean", "category"]
    values: np.ndarray
    categories: tuple[str, ...]
    missing: np.ndarray
    note: str = ""

    @property
    def integral(self) -> bool:
        """Whether all values are integers that float64 holds exactly."""
        values = self.values[~self.missing]
        return self.kind != "category" and bool(np.all((values == np.trunc(values)) & (np.abs(values) < 2**53)))

    def describe(self) -> str:
        """The type, for a description."""
        if self.kind == "category":
            return f"category of {len(self.categories)} values"
        return "integer" if self.kind == "number" and self.integral else self.kind

    def taken(self, rows: np.ndarray) -> Column:
        """These rows only."""
        return Column(
            name=self.name,
            kind=self.kind,
            values=self.values[rows],
            categories=self.categories,
            missing=self.missing[rows],
            note=self.note,
        )


def column_of(
    what: str,
    name: str,
    content: Any,
    rows: Rows,
    *,
    typed: bool,
    category: bool,
    missing: Sequence[str],
    role: Role = "feature",
) -> Column:
    """A column with its type.

    A column of strings is one of numbers if all cells are, one of booleans if all are true or false, and otherwise one
    of categories. If at least half of the cells are numbers, the others are errors.

    Args:
        what: The data set, for messages.
        name: The column's name.
        content: An Arrow chunked array.
        rows: Names its rows.
        typed: Whether the column has a type; strings are then categories.
        category: Whether the caller declares it a category.
        missing: Strings that stand for a missing value.
        role: What the column is for; of classes, strings may be among numbers.

    Raises:
        UsageError: A cell does not fit the others, or the column's type has no meaning as a number or category; the
            message names file, row, column and value.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = content.type
    if types.is_dictionary(kind):
        content, typed, category = content.cast(kind.value_type), True, True
        kind = content.type
    if types.is_null(kind):
        raise UsageError(
            f"{what}: {rows.names[0]}, column {name!r}: all values are missing; remedy: features= without it"
        )
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        values = content.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
        absent = np.isnan(values)
        if infinite := np.flatnonzero(np.isinf(values)).tolist():
            raise UsageError(
                f"{what}: {rows.at(infinite[0])}, column {name!r}: got {values[infinite[0]]}; allowed: finite numbers; "
                "remedy: correct the cell, or make it NaN and choose missing="
            )
        found = Column(
            name=name,
            kind="boolean" if types.is_boolean(kind) else "number",
            values=values,
            categories=(),
            missing=absent,
        )
        return _as_category(found) if category else _checked(what, found, rows)
    if not (types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view()):
        raise UsageError(
            f"{what}: {rows.names[0]}, column {name!r} is of type {kind}; allowed: numbers, booleans and strings; "
            "remedy: features= without it, or convert it before"
        )
    return _of_texts(what, name, content.cast(pa.string()), rows, typed, category, missing, role)


def _of_texts(
    what: str, name: str, content: Any, rows: Rows, typed: bool, category: bool, missing: Sequence[str], role: Role
) -> Column:
    import pyarrow as pa
    from pyarrow import compute as pc

    content = pc.utf8_trim_whitespace(content).combine_chunks()
    absent = pc.fill_null(pc.or_kleene(pc.is_null(content), pc.is_in(content, pa.array(list(missing)))), True)
    absent = absent.to_numpy(zero_copy_only=False).astype(bool)
    present = int((~absent).sum())
    if not present:
        raise UsageError(
            f"{what}: {rows.names[0]}, column {name!r}: all values are missing; remedy: features= without it"
        )
    if not category:
        number = pc.fill_null(pc.match_substring_regex(content, _NUMBER), False).to_numpy(zero_copy_only=False)
        number = number & ~absent
        wrong = np.flatnonzero(~number & ~absent)
        if len(wrong) and role != "classes":
            _check_commas(what, name, content, absent, rows, role)
        mixed = len(wrong) * 2 <= present and (len(wrong) > 0 or typed)
        category = mixed and role == "classes"
        if mixed and not category:
            row = int(wrong[0]) if len(wrong) else int(np.flatnonzero(number)[0])
            value = content[row].as_py()
            if typed and not len(wrong):
                raise UsageError(
                    f"{what}: {rows.at(row)}, column {name!r}: got the string {value!r:.60}, which is a number; "
                    "allowed: numbers with a type of numbers; remedy: convert the column, or "
                    f"{_as_category_by(name, role)}"
                )
            allowed = f"numbers, as most cells of the column are ({len(wrong)} are not)"
            raise _bad(what, rows, row, name, value, allowed, role)
        if not len(wrong) and not category:
            masked = pc.if_else(pa.array(absent), pa.scalar(None, pa.string()), content)
            values = masked.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
            found = Column(name=name, kind="number", values=values, categories=(), missing=absent)
            if infinite := np.flatnonzero(np.isinf(values)).tolist():
                raise _bad(
                    what, rows, infinite[0], name, content[infinite[0]].as_py(), "numbers that float64 holds", role
                )
            return _checked(what, found, rows)
    encoded = pc.dictionary_encode(content)
    words = [word or "" for word in encoded.dictionary.to_pylist()]
    codes = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    lowered = [word.casefold() for word in words]
    used = np.unique(codes[~absent]).tolist()
    if not category and not typed and {lowered[code] for code in used} <= _TRUTH.keys():
        truth = np.array([_TRUTH.get(word, np.nan) for word in lowered])
        values = np.where(absent, np.nan, truth[codes])
        return Column(name=name, kind="boolean", values=values, categories=(), missing=absent)
    return _ordered(name, [words[code] for code in used], np.searchsorted(used, codes), absent)


def _check_commas(what: str, name: str, content: Any, absent: np.ndarray, rows: Rows, role: Role) -> None:
    """Reject a column whose cells are numbers if commas belong to numbers: it would become a category.

    Raises:
        UsageError: The message names the first cell with a comma.
    """
    from pyarrow import compute as pc

    comma, plain = (
        pc.fill_null(pc.match_substring_regex(content, pattern), False).to_numpy(zero_copy_only=False) & ~absent
        for pattern in (_COMMA, _NUMBER)
    )
    if comma.any() and bool((comma | plain | absent).all()):
        row = int(comma.argmax())
        raise UsageError(
            f"{what}: {rows.at(row)}, column {name!r}: got {content[row].as_py()!r:.60}, a number with a comma; "
            "allowed: a decimal point, and no separator of thousands; remedy: pandas.read_csv(…, decimal=',') or "
            f"thousands=',', whose data frame the data set takes, or {_as_category_by(name, role)}"
        )


def _as_category(column: Column) -> Column:
    """Numbers as categories, named without a trailing `.0`."""
    known, codes = np.unique(np.where(column.missing, 0.0, column.values), return_inverse=True)
    used = np.unique(codes[~column.missing])
    names = tuple(f"{known[code]:.17g}" for code in used)
    values = np.where(column.missing, -1, np.searchsorted(used, codes)).astype(np.int64)
    return Column(name=column.name, kind="category", values=values, categories=names, missing=column.missing)


def _ordered(name: str, words: Sequence[str], codes: np.ndarray, absent: np.ndarray) -> Column:
    """A category with its values sorted: as numbers where all are integers, else as strings."""
    whole: Callable[[str], Any] = (
        int if all(word.lstrip("+-").isdecimal() and word.isascii() for word in words) else str
    )
    order = sorted(range(len(words)), key=lambda place: (whole(words[place]), words[place]))
    rank = np.empty(len(words) + 1, np.int64)
    rank[order] = np.arange(len(words))
    values = np.where(absent, -1, rank[np.minimum(codes, len(words))])
    return Column(
        name=name, kind="category", values=values, categories=tuple(words[place] for place in order), missing=absent
    )


def _checked(what: str, column: Column, rows: Rows) -> Column:
    if column.missing.all():
        raise UsageError(
            f"{what}: {rows.names[0]}, column {column.name!r}: all values are missing; remedy: features= without it"
        )
    return column


def _as_category_by(name: str, role: Role) -> str:
    return f"categorical=[{name!r}]" if role == "feature" else "task='classification' if its values are classes"


def _bad(what: str, rows: Rows, row: int, name: str, value: Any, allowed: str, role: Role) -> UsageError:
    return UsageError(
        f"{what}: {rows.at(row)}, column {name!r}: got {value!r:.60}; allowed: {allowed}; remedy: correct the cell, "
        f"missing_values=[{value!r:.60}] if it stands for a missing value, or {_as_category_by(name, role)}"
    )
