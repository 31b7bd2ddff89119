"""`FrameworkReport`: the groups of the conformance suite of a back-end, with verdicts and times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["FrameworkReport", "FrameworkRow"]

_STYLE = {"passed": "green", "FAILED": "bold red", "not supported": "yellow"}


@dataclass(frozen=True, kw_only=True)
class FrameworkRow:
    """One group of checks.

    Attributes:
        check: What was checked.
        verdict: `"not supported"` if the back-end refuses, with its reason, operators that it may lack.
        time_s: How long the checks took, or lasted until the process ended.
        note: The full message of a failure, or the reason.
    """

    check: str
    verdict: Literal["passed", "FAILED", "not supported"]
    time_s: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class FrameworkReport:
    """The checks of one back-end; true if none failed.

    Attributes:
        framework: Its name.
        version: The version of its library.
        rows: The groups, in order.
    """

    framework: str
    version: str
    rows: tuple[FrameworkRow, ...]

    def __bool__(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[FrameworkRow, ...]:
        """The groups that failed."""
        return tuple(row for row in self.rows if row.verdict == "FAILED")

    @property
    def verdict(self) -> str:
        """A one-line summary."""
        what = f"{self.framework} {self.version}".rstrip()
        if self.failures:
            return f"{what}: {len(self.failures)} of {len(self.rows)} groups of checks failed"
        lacking = sum(row.verdict == "not supported" for row in self.rows)
        return f"{what}: passed" + (f", {lacking} not supported" if lacking else "")

    def story(self) -> str:
        """All failures."""
        return "\n".join([self.verdict, *(f"  {row.check}: {row.note}" for row in self.failures)])

    def document(self) -> dict[str, Any]:
        """The report in JSON types."""
        about = {"framework": self.framework, "version": self.version, "passed": bool(self)}
        return {**about, "checks": [asdict(row) for row in self.rows]}

    def print(self, console: Console) -> None:
        """Print a table of the groups and the notes.

        Args:
            console: Where to print; a console that is not a terminal gets plain characters.
        """
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("check", overflow="fold")
        table.add_column("time", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for row in self.rows:
            table.add_row(Text(row.check), f"{row.time_s:.2f} s", Text(row.verdict, style=_STYLE[row.verdict]))
        console.print(table)
        for note in dict.fromkeys(row.note for row in self.rows if row.note):
            where = "; ".join(row.check for row in self.rows if row.note == note)
            console.print(Text(f"{where}: {note}"), soft_wrap=True)
        console.print(Text(self.verdict, style=_STYLE["FAILED" if self.failures else "passed"]), soft_wrap=True)
