"""`OptimizerReport`: the checks of an optimizer and their results."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["OptimizerReport", "OptimizerRow"]

_STYLE = {"passed": "green", "FAILED": "bold red", "not evaluated": "yellow"}


@dataclass(frozen=True, kw_only=True)
class OptimizerRow:
    """One check.

    Attributes:
        check: What was checked.
        verdict: `"not evaluated"` if the check does not apply, or if the reader has to evaluate the result.
        error: The largest relative difference, if numbers are compared.
        allowed: The maximum allowed difference.
        note: Information for the reader; on a failure, the full message.
    """

    check: str
    verdict: Literal["passed", "FAILED", "not evaluated"]
    error: float | None = None
    allowed: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class OptimizerReport:
    """All checks of one optimizer; true if none failed.

    Attributes:
        optimizer: Its name.
        kind: `"update rule"` or `"step optimizer"`.
        rows: The checks, in order.
    """

    optimizer: str
    kind: str
    rows: tuple[OptimizerRow, ...]

    def __bool__(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[OptimizerRow, ...]:
        """The checks that failed."""
        return tuple(row for row in self.rows if row.verdict == "FAILED")

    @property
    def verdict(self) -> str:
        """A one-line summary."""
        what = f"{self.optimizer}, {self.kind}"
        if self.failures:
            return f"{what}: {len(self.failures)} of {len(self.rows)} checks failed"
        return f"{what}: passed"

    def story(self) -> str:
        """All failures."""
        return "\n".join([self.verdict, *(f"  {row.check}: {row.note}" for row in self.failures)])

    def document(self) -> dict[str, Any]:
        """The report in JSON types."""
        rows = [{key: _plain(value) for key, value in asdict(row).items()} for row in self.rows]
        return {"optimizer": self.optimizer, "kind": self.kind, "passed": bool(self), "checks": rows}

    def print(self, console: Console) -> None:
        """Print a table of the checks and the notes.

        Args:
            console: Where to print; a console that is not a terminal gets plain text.
        """
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("check", overflow="fold")
        for name in ("error", "allowed"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for row in self.rows:
            numbers = (_short(row.error), _short(row.allowed))
            table.add_row(Text(row.check), *map(Text, numbers), Text(row.verdict, style=_STYLE[row.verdict]))
        console.print(table)
        for row in self.rows:
            if row.note:
                console.print(Text(f"{row.check}: {row.note}"), soft_wrap=True)
        console.print(Text(self.verdict, style=_STYLE["FAILED" if self.failures else "passed"]), soft_wrap=True)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _plain(value: Any) -> Any:
    """JSON has no infinity or NaN: they become strings."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
