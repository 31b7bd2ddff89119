"""Learning curves of a group of runs or of a study: one line per candidate and a band over its seeds.

Mean and band are of the runs that finished; the line's name states how many did not, and why. Runs in different
environments have separate lines.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from deep5.core.errors import UsageError
from deep5.results.charts.training import (
    Point,
    accuracy_chart,
    accuracy_points,
    loss_chart,
    loss_points,
    return_chart,
    return_points,
)
from deep5.results.markup import clean
from deep5.results.report.chart_parts import Drawing, check_size
from deep5.results.report.environment import steady
from deep5.results.result import Result
from deep5.results.standing import standing
from deep5.results.time_to_target import diverged

__all__ = ["Curves", "accuracy_drawing", "curves", "learning_curves", "loss_drawing", "return_drawing"]

_LINES, _NAME, _MOST = 12, 30, 1e30
# Pixels: of the panel, which fits a phone; of the chart; of a character in the legend, and of its symbol.
_PANEL, _WIDTH, _LETTER, _SYMBOL = (330, 240), 380, 6.6, 50

_Runs = Mapping[str, Sequence[Result]]
_Failures = Mapping[str, Sequence[str]]
_POINTS: dict[str, Callable[[_Runs], list[Point]]] = {
    "test_accuracy": accuracy_points,
    "mean_return": return_points,
    "training_loss": loss_points,
}


class Curves(NamedTuple):
    """The points of a chart, and what it omits.

    Attributes:
        points: Points of the lines, each named as in the legend.
        left_out: What is omitted and why, one sentence each.
    """

    points: list[Point]
    left_out: list[str]


def accuracy_drawing(
    runs: _Runs, failures: _Failures | None = None, *, finished: bool = True, notes: Sequence[str] = ()
) -> Drawing | None:
    """Test accuracy against epoch; None if no run has any.

    Args:
        runs: Results that differ in their seeds, by candidate.
        failures: The outcome of runs without a result, by candidate.
        finished: Whether the study of these runs is finished.
        notes: Notes of that study.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The samples of a run are not in deep5's format.
    """
    found = curves(runs, failures or {}, "test_accuracy")
    if not found.points:
        return None
    drawing = _drawing("accuracy", "Test accuracy", "Test accuracy after each epoch", found, accuracy_chart)
    return drawing._replace(standing=_standing(runs, finished, notes))


def return_drawing(
    runs: _Runs, failures: _Failures | None = None, *, finished: bool = True, notes: Sequence[str] = ()
) -> Drawing | None:
    """Mean return of an agent against epoch; None if no run has any; arguments and errors as above."""
    # Most runs have no agent: their samples are not read for it.
    if not any(verdict.name == "mean_return" for own in runs.values() for run in own for verdict in run.verdicts):
        return None
    found = curves(runs, failures or {}, "mean_return")
    if not found.points:
        return None
    drawing = _drawing("return", "Mean return", "Mean return after each epoch", found, return_chart)
    return drawing._replace(standing=_standing(runs, finished, notes))


def loss_drawing(
    runs: _Runs, failures: _Failures | None = None, *, finished: bool = True, notes: Sequence[str] = ()
) -> Drawing | None:
    """Training loss against time; None if no run has any above zero; arguments and errors as above."""
    found = curves(runs, failures or {}, "training_loss")
    found = Curves([point for point in found.points if point.low > 0], found.left_out)
    if not found.points:
        return None
    about = "Training loss of each epoch, the mean over its steps, against time"
    return _drawing("loss", "Training loss", about, found, loss_chart)._replace(
        standing=_standing(runs, finished, notes)
    )


def learning_curves(timed: bool = True) -> dict[str, Callable[..., Drawing | None]]:
    """The drawings of a group of runs, by what they show.

    Args:
        timed: Whether their times compare; otherwise nothing is drawn over time.
    """
    made: dict[str, Callable[..., Drawing | None]] = {
        "the accuracy": accuracy_drawing,
        "the return": return_drawing,
        "the loss": loss_drawing,
    }
    if not timed:
        del made["the loss"]
    return made


def _standing(runs: _Runs, finished: bool, notes: Sequence[str]) -> str:
    return standing((run for own in runs.values() for run in own), finished=finished, notes=notes)


def _drawing(name: str, title: str, about: str, found: Curves, chart: Callable[..., Any]) -> Drawing:
    band = any(point.seeds > 1 for point in found.points)
    said = [f"{about}, one line per candidate" + "; the band spans the range over the seeds" * band]
    made = chart(found.points, note="; ".join(found.left_out)).properties(width=_PANEL[0], height=_PANEL[1])
    longest = max(len(point.candidate) for point in found.points)
    made.config.legend.columns = max(1, int(_WIDTH / (_LETTER * longest + _SYMBOL)))
    return Drawing(name, title, ". ".join([*said, *found.left_out]) + ".", made)


def curves(runs: _Runs, failures: _Failures, metric: str) -> Curves:
    """The points of learning curves.

    Args:
        runs: Results that differ in their seeds, by candidate.
        failures: The outcome of runs without a result, by candidate.
        metric: A key of `_POINTS`.

    Raises:
        UsageError: The samples of a run are not in deep5's format.
    """
    read = _POINTS[metric]
    places = list(dict.fromkeys(_environment(run) for own in runs.values() for run in own))
    lines: dict[str, list[Point]] = {}
    left_out: list[str] = []
    for candidate, results in runs.items():
        by_place: dict[str, list[Result]] = {}
        for run in results:
            by_place.setdefault(_environment(run), []).append(run)
        lost = len(failures.get(candidate, ()))
        if lost and len(by_place) != 1:
            left_out.append(f"{_short(candidate)}: {lost} failed")
            lost = 0
        for place, own in by_place.items():
            where = f", environment {_letter(places.index(place))}" if len(places) > 1 else ""
            points, count = _line(own, lost, read)
            name = f"{_short(candidate)}{where}" + (f" ({count})" if count else "")
            while name in lines:
                name += "'"
            if points:
                lines[name] = [point._replace(candidate=name) for point in points]
            elif count:
                left_out.append(f"not drawn: {name}")
    if len(lines) > _LINES:
        beyond = len(lines) - _LINES
        verb = "is" if beyond == 1 else "are"
        left_out.append(f"{beyond} of {len(lines)} curves {verb} not drawn; the tables have them all")
    return Curves([point for points in list(lines.values())[:_LINES] for point in points], left_out)


def _line(runs: Sequence[Result], lost: int, read: Callable[[_Runs], list[Point]]) -> tuple[list[Point], str]:
    """Points of a candidate's runs in one environment, and a note on how many of its runs they include."""
    reasons = [_left_out(run, read) for run in runs]
    # A single run has no mean to distort: it is drawn as far as it got.
    alone = len(runs) + lost == 1
    whole = [run for run, reason in zip(runs, reasons, strict=True) if reason is None or (alone and _there(run, read))]
    why = Counter(reason for reason in reasons if reason is not None) + Counter({"failed": lost})
    drawn = [point for point in (read({"": whole}) if whole else []) if all(map(_drawable, point[1:]))]
    if not drawn and set(why) <= {_NONE}:
        return [], ""  # such runs have no samples of this metric at all
    missing = "".join(f", {number} {reason}" for reason, number in why.items())
    if alone:
        return drawn, missing.removeprefix(", 1 ")
    planned = len(runs) + lost
    seeds = {json.dumps((run.document["seeds"] or {}).get("run")) for run in whole}
    said = f"seeds={len(whole)}" + (f" of {planned}" if len(whole) < planned else "")
    if len(seeds) < len(whole):  # repetitions say nothing about the seeds
        said = f"{len(whole)} of {planned} runs, {len(seeds)} seed{'s' * (len(seeds) != 1)}"
    return drawn, said + missing


_NONE = "without samples"


def _left_out(run: Result, read: Callable[[_Runs], list[Point]]) -> str | None:
    """Why a run is excluded from the mean over the seeds, in a word; None if it is included."""
    check_size(run.folder)
    there = _there(run, read)
    if diverged(run, run.samples()) is not None:
        return "diverged"
    if run.status != "success":
        return run.status if there else "failed"
    return None if there else _NONE


def _there(run: Result, read: Callable[[_Runs], list[Point]]) -> bool:
    """Whether a run has points to draw."""
    try:
        return bool(read({"": [run]}))
    except (UsageError, TypeError):  # no samples of this metric, or samples without an epoch or a time
        return False


def _environment(run: Result) -> str:
    environment = (run.document.get("provenance") or {}).get("environment")
    return json.dumps(environment or steady(run.document), sort_keys=True, default=str)


def _letter(place: int) -> str:
    """A letter instead of a number: numbers denote the environments of the whole page."""
    return ascii_uppercase[place] if place < len(ascii_uppercase) else f"Z{place}"


def _short(name: str) -> str:
    short = " ".join(clean(name).split()) or "?"
    return short if len(short) <= _NAME else short[: _NAME - 1] + "…"


def _drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) < _MOST
