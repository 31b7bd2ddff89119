"""The breakdown of a recorded loop's time: steps, regions, evaluations and the rest."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import NamedTuple

from deep5.recorder.replay import PLACES
from deep5.recorder.series import Series

__all__ = ["breakdown_text"]

_OWN = ("time[step]", "time[epoch]", "time[evaluation]")
_BETWEEN, _EVALUATED = (place.partition("{")[0] for place in PLACES[1:])


class _Part(NamedTuple):
    """A row of the file; the fields are its columns."""

    part: str
    seconds: float
    percent: float
    how: str


def breakdown_text(series: Series) -> str:
    """The CSV file of a loop: one row per part, in seconds and percent of all epochs with their evaluations.

    Args:
        series: The raw times of the loop.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_Part._fields)
    for part, seconds, percent, how in _parts(series):
        writer.writerow([part, f"{seconds:.6g}", f"{percent:.6g}", how])
    return out.getvalue()


def _parts(series: Series) -> Iterator[_Part]:
    seconds = {label: series.total(label) for label in series.labels() if label.startswith("time[")}
    steps, evaluated = (seconds.get(label, (0.0, 0)) for label in ("time[step]", "time[evaluation]"))
    total = seconds.get("time[epoch]", (0.0, 0))[0] + evaluated[0]

    def part(name: str, own: float, how: str) -> _Part:
        return _Part(name, own, 100 * own / total if total else 0.0, how)

    yield part("steps", steps[0], f"{steps[1]} steps, the first ones included")
    within = 0.0
    for label, (own, count) in seconds.items():
        if label not in _OWN and not label.startswith((_BETWEEN, _EVALUATED)):
            within += own
            yield part(f"steps: {label[5:-1]}", own, f"a region of {count} steps, part of the steps")
    if within:
        yield part("steps: other", steps[0] - within, "steps less their regions")
    between = 0.0
    for label, (own, count) in seconds.items():
        if label.startswith(_BETWEEN):
            between += own
            yield part(label[len(_BETWEEN) : -1], own, f"a region between steps, {count} times")
    yield part("evaluation", evaluated[0], f"of {evaluated[1]} epochs")
    for label, (own, count) in seconds.items():
        if label.startswith(_EVALUATED):
            yield part(f"evaluation: {label[len(_EVALUATED) : -1]}", own, f"a region of {count} evaluations")
    yield part(
        "other", total - steps[0] - between - evaluated[0], "the total less steps, regions between and evaluation"
    )
    yield part("total", total, "all epochs with their evaluations, by the run's clock")
