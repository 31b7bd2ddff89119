"""`OperatorReport`: the checks of an operator, with errors and tolerances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deep5.core.notebook import render
from deep5.core.quantities import percent, ulps
from deep5.operators.checks.tolerance import LEGEND

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["OperatorReport", "Row", "Word"]

Word = Literal["passed", "FAILED", "refused", "not evaluated"]

_STYLE = {"passed": "green", "FAILED": "bold red", "refused": "", "not evaluated": "yellow"}
_WORDS = {
    "refused": "the operator, or the library that runs it, does not take such inputs, which is allowed",
    "not evaluated": "there is nothing to compare with, or nothing to compare",
}
_ULPS = "ulps: the error in units of the last place of what is expected; more of each check with --json"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check.

    Attributes:
        check: Name of the check: `"forward, float32"`.
        group: What it is about: `"forward: element types"`; empty if it is about nothing that others are.
        verdict: `"refused"` if the operator, or the library that runs it, does not accept such inputs, which is
            allowed; `"not evaluated"` if there is nothing to compare, or nothing to compare with.
        error: The difference that is closest to its tolerance; None if no values are compared.
        relative: The same relative to the expected value.
        ulps: The same in units in the last place of the expected value.
        allowed: Tolerance of this error.
        tolerance: Derivation of `allowed`.
        note: A note for the user; for a failure, the full description.
        picture: A heat map of the differences, if there is one.
        drawn: Description of the picture.
        values: Number of values compared with expected ones; 0 if the operator is compared with itself.
        excluded: The element type that was refused, which the report's verdict names; else empty.
    """

    check: str
    verdict: Word
    error: float | None = None
    relative: float | None = None
    ulps: float | None = None
    allowed: float | None = None
    tolerance: str = ""
    note: str = ""
    picture: Path | None = None
    drawn: str = ""
    values: int = 0
    group: str = ""
    excluded: str = ""


@dataclass(frozen=True, kw_only=True)
class OperatorReport:
    """All checks of one operator; true if none failed.

    Attributes:
        operator: Name of the operator.
        framework: The framework that ran it.
        rows: The checks, in order.
    """

    operator: str
    framework: str
    rows: tuple[Row, ...]

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)

    def __bool__(self) -> bool:
        return not self.failures

    def __add__(self, other: OperatorReport) -> OperatorReport:
        return OperatorReport(operator=self.operator, framework=self.framework, rows=(*self.rows, *other.rows))

    def noting(self, check: str, note: str) -> OperatorReport:
        """The report with an additional row for a check that did not run."""
        row = Row(check=check, group=check, verdict="not evaluated", note=note)
        return OperatorReport(operator=self.operator, framework=self.framework, rows=(*self.rows, row))

    @property
    def failures(self) -> tuple[Row, ...]:
        """The checks that failed."""
        return tuple(row for row in self.rows if row.verdict == "FAILED")

    @property
    def values(self) -> int:
        """Number of values compared with expected ones; if 0, the operator's correctness is unknown."""
        return sum(row.values for row in self.rows)

    @property
    def verdict(self) -> str:
        """Summary in one line."""
        what = f"{self.operator} on {self.framework}"
        if self.failures:
            return f"{what}: {len(self.failures)} of {len(self.rows)} checks failed"
        if not self.values:
            return (
                f"{what}: no value was evaluated, since there was nothing to compare with; remedy: inputs "
                "that have elements, and a reference (--against, or reference=)"
            )
        excluded = "; ".join(dict.fromkeys(row.excluded for row in self.rows if row.excluded))
        return f"{what}: passed, but not in {excluded}" if excluded else f"{what}: passed"

    def story(self) -> str:
        """All failures, for an error message."""
        return "\n".join([self.verdict, *(f"  {row.check}: {row.note}{_seen(row)}" for row in self.failures)])

    def document(self) -> dict[str, Any]:
        """The report in JSON types."""
        rows = [{key: _plain(value) for key, value in asdict(row).items()} for row in self.rows]
        reported = {"operator": self.operator, "framework": self.framework, "passed": bool(self), "values": self.values}
        return {**reported, "checks": rows}

    def __str__(self) -> str:
        from io import StringIO

        from rich.console import Console

        text = StringIO()
        self.print(Console(file=text, width=120, color_system=None, force_jupyter=False))
        return text.getvalue().rstrip("\n")

    def print_summary(self, console: Console) -> None:
        """Print a row per group of checks, then the checks that failed, and the notes on those that did not pass.

        Args:
            console: As for `print`.
        """
        from rich.table import Table
        from rich.text import Text

        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.group or row.check, []).append(row)
        words = [word for word in _STYLE if any(row.verdict == word for row in self.rows)]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("checks", overflow="fold")
        table.add_column("of tolerance", justify="right", no_wrap=True)
        for word in words:
            table.add_column(word, justify="right", no_wrap=True)
        for group, rows in groups.items():
            counts = [sum(row.verdict == word for row in rows) for word in words]
            cells = [
                Text(str(count) if count else "", style=_STYLE[word]) for word, count in zip(words, counts, strict=True)
            ]
            table.add_row(Text(group), Text(_nearest(rows)), *cells)
        console.print(table)
        if self.failures:
            self._print_rows(self.failures, console)
        self._print_words(console)
        if any(map(_nearest, groups.values())):
            console.print(
                Text("of tolerance: the error that is nearest to its tolerance, or exceeds it"), soft_wrap=True
            )
        for row in self.rows:
            if row.note and row.verdict != "passed":
                console.print(Text(f"{row.check}: {row.note}{_seen(row)}"), soft_wrap=True)
        self._print_verdict(console)

    def print(self, console: Console) -> None:
        """Print a table of the checks, with a legend, the derivation of the tolerances, and notes.

        Args:
            console: The console to print to; plain text if it is not a terminal.
        """
        from rich.text import Text

        self._print_rows(self.rows, console)
        self._print_words(console)
        if any(row.ulps for row in self.rows):
            console.print(Text(_ULPS), soft_wrap=True)
        for tolerance in dict.fromkeys(row.tolerance for row in self.rows if row.tolerance):
            where = ", ".join(row.check for row in self.rows if row.tolerance == tolerance)
            console.print(Text(f"allowed: {tolerance}: {where}"), soft_wrap=True)
        if any("S)" in row.tolerance for row in self.rows):
            console.print(Text(LEGEND), soft_wrap=True)
        for row in self.rows:
            if row.note:
                console.print(Text(f"{row.check}: {row.note}{_seen(row)}"), soft_wrap=True)
        self._print_verdict(console)

    @staticmethod
    def _print_rows(rows: Sequence[Row], console: Console) -> None:
        from rich.table import Table
        from rich.text import Text

        # Fits 80 columns; --json has the remaining values.
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("check", overflow="fold")
        for name in ("error", "allowed", "ulps"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for row in rows:
            numbers = (_short(row.error), _short(row.allowed), "" if row.ulps is None else ulps(row.ulps, 2))
            table.add_row(Text(row.check), *map(Text, numbers), Text(row.verdict, style=_STYLE[row.verdict]))
        console.print(table)

    def _print_words(self, console: Console) -> None:
        from rich.text import Text

        for word, meaning in _WORDS.items():
            if any(row.verdict == word for row in self.rows):
                console.print(Text(f"{word}: {meaning}"), soft_wrap=True)

    def _print_verdict(self, console: Console) -> None:
        from rich.text import Text

        style = _STYLE["FAILED" if self.failures else "passed" if self.values else "not evaluated"]
        console.print(Text.assemble((self.verdict, style), f" ({_counts(self.rows)})"), soft_wrap=True)


def _counts(rows: Sequence[Row]) -> str:
    found = {word: sum(row.verdict == word for row in rows) for word in _STYLE}
    return ", ".join(f"{count} {word}" for word, count in found.items() if count)


def _nearest(rows: Sequence[Row]) -> str:
    """How near the errors of some checks are to their tolerances, at most; empty if none has any."""
    shares = [row.error / row.allowed for row in rows if row.error is not None and row.allowed]
    return percent(max(shares)) if shares and math.isfinite(max(shares)) else ""


def _seen(row: Row) -> str:
    return f"; {row.drawn}, drawn in {row.picture}" if row.picture else ""


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _plain(value: Any) -> Any:
    """Convert infinity and NaN, which JSON does not support, to strings."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and (not math.isfinite(value)):
        return str(value)
    return value
