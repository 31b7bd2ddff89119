"""`Collector`: gathers the results of single checks, so that a failure does not prevent the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.operators.checks.heat_map import heat_map, picture_folder
from deep5.operators.checks.report import OperatorReport, Row, Word
from deep5.operators.checks.tolerance import Deviation

__all__ = ["Collector"]


class Collector:
    """The rows of a report under construction.

    Args:
        operator: Name of the operator.
        framework: The framework that runs it.
        out: The folder for pictures; None: a temporary folder of this process.
    """

    def __init__(self, operator: str, framework: str, out: Path | None) -> None:
        self.operator, self.framework = operator, framework
        self._out, self._rows, self._group = out, list[Row](), ""

    @property
    def failed(self) -> bool:
        """Whether a check has failed so far."""
        return any(row.verdict == "FAILED" for row in self._rows)

    def report(self) -> OperatorReport:
        """The report of all rows so far."""
        return OperatorReport(operator=self.operator, framework=self.framework, rows=tuple(self._rows))

    def begin(self, group: str) -> None:
        """The checks that follow belong to this group."""
        self._group = group

    def say(self, check: str, verdict: Word, note: str = "") -> None:
        """Add a check that compares no values."""
        self._rows.append(Row(check=check, group=self._group, verdict=verdict, note=note))

    def refuse_type(self, check: str, note: str, dtype: str, reason: str = "") -> None:
        """Add a refused check of an element type, which the verdict names, with the reason where one is given."""
        excluded = f"{dtype}, {reason}" if reason else dtype
        self._rows.append(Row(check=check, group=self._group, verdict="refused", note=note, excluded=excluded))

    def require(self, holds: bool, check: str, note: str) -> bool:
        """Add a check that passes or fails."""
        self.say(check, "passed" if holds else "FAILED", "" if holds else note)
        return holds

    def same(self, check: str) -> None:
        """Add a passed check of bit-identical values."""
        row = Row(check=check, group=self._group, verdict="passed", error=0.0, relative=0.0, ulps=0.0)
        self._rows.append(row)

    def compare(
        self, check: str, found: Iterable[tuple[str, Deviation]], tolerance: str, note: str = "", itself: bool = False
    ) -> bool:
        """Add a check of values: one row, for the part (an output, a gradient) that is closest to its tolerance.

        Args:
            check: Name of the check.
            found: Name and deviation of each part.
            tolerance: Derivation of the tolerance.
            note: A note that is shown even if the check passes.
            itself: Whether the operator is compared with another run of itself, so that both may be wrong.
        """
        parts = list(found)
        wrong = [(name, part) for name, part in parts if part.story]
        if not parts:
            self.say(check, "not evaluated", note or "there is nothing to compare")
            return True
        name, worst = max(wrong or parts, key=lambda entry: _share(entry[1]))
        story = "; ".join(f"{name}: {part.story}" for name, part in wrong)
        picture, drawn, unreported = self._draw(f"{check}, {name}", worst, name) if wrong else (None, "", "")
        self._rows.append(
            Row(
                check=check,
                group=self._group,
                verdict="FAILED" if wrong else "passed",
                error=worst.error,
                relative=worst.relative,
                ulps=worst.ulps,
                allowed=worst.allowed,
                tolerance=tolerance,
                note="; ".join(
                    text for text in (story, note, f"tolerance: {tolerance}" if wrong else "", unreported) if text
                ),
                picture=picture,
                drawn=drawn,
                values=0 if itself else sum(part.values for _, part in parts),
            )
        )
        return not wrong

    @contextmanager
    def guarded(self, check: str) -> Iterator[None]:
        """An error within the block is a failure of this check; the next checks still run."""
        try:
            yield
        except Deep5Error as error:
            self.say(check, "FAILED", str(error))

    def _draw(self, title: str, part: Deviation, name: str) -> tuple[Path | None, str, str]:
        """The picture, its description, and the reason if there is none."""
        if not part.differences.size:
            return None, "", ""
        at = np.unravel_index(int(part.differences.argmax()), part.differences.shape)
        shows = part.shows or f"differences beyond the tolerance, by element of {name}"
        caption = f"{shows}; the largest is {part.differences[at]:.2g} at {[int(index) for index in at]}"
        try:
            return (
                heat_map(part.differences, f"{self.operator} {title}", caption, self._out or picture_folder()),
                caption,
                "",
            )
        except Deep5Error as error:
            return None, "", f"no picture: {error}"


def _share(part: Deviation) -> float:
    if part.error == 0:
        return 0.0
    return part.error / part.allowed if part.allowed else np.inf
