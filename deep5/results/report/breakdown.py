"""The breakdown of a run's time, as its folder states it."""

from __future__ import annotations

from typing import NamedTuple

from deep5.core.charts import PALETTE, altair
from deep5.core.errors import UsageError
from deep5.results.reading import NotThere, read_rows
from deep5.results.report.chart_parts import Drawing
from deep5.results.result import Result
from deep5.results.standing import standing

__all__ = ["Part", "breakdown_drawing", "breakdown_rows"]

_FILE = "time_breakdown.csv"
_COLUMNS = ("part", "seconds", "percent", "how")
_MOST = 100


class Part(NamedTuple):
    """A row of the file: a part, its seconds and its percent of the whole (None: not available), how it is known."""

    part: str
    seconds: float | None
    percent: float | None
    how: str


def breakdown_rows(run: Result) -> list[Part]:
    """The parts of a run's time; empty if no breakdown was requested.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    try:
        rows = [row for _, row in read_rows(run.folder / _FILE, _COLUMNS, most_rows=_MOST)]
    except NotThere:
        return []
    try:
        return [
            Part(part, float(seconds) if seconds else None, float(percent) if percent else None, how)
            for part, seconds, percent, how in rows
        ]
    except ValueError as error:
        raise UsageError(
            f"cannot read {_FILE} of {run.folder.name}: {error}; remedy: restore it from a copy"
        ) from error


def breakdown_drawing(run: Result) -> Drawing | None:
    """One bar per part, in percent of the whole; None if there is nothing to draw.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The file is not in deep5's format.
    """
    bars = [
        {"part": row.part, "percent": row.percent}
        for row in breakdown_rows(run)
        if row.percent is not None and abs(row.percent) <= 1e4
    ]
    if not bars:
        return None
    alt = altair()
    chart = (
        alt.Chart(alt.Data(values=bars))
        .mark_bar(color=PALETTE[0], height={"band": 0.7})
        .encode(
            x=alt.X("percent:Q", title="share of the time (%)"),
            y=alt.Y(
                "part:N", sort=[bar["part"] for bar in bars], title=None, axis=alt.Axis(labelLimit=190, minExtent=120)
            ),
        )
        .properties(width=300, height=alt.Step(26))
    )
    about = "Shares of the time of the run in percent."
    return Drawing("breakdown", "Breakdown of time", about, chart, standing([run]))
