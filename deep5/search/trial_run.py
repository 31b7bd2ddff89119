"""The run of one trial: carried out by an engine, ended early by the pruner, and read from its result folder."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error
from deep5.engines.attempt import attempt
from deep5.engines.call import packed, place_for
from deep5.engines.lease import result_of
from deep5.engines.request import Outcome, RunRequest
from deep5.results.result import load
from deep5.results.sweep.record import RUNS
from deep5.results.sweep.trial import FAILED, FINISHED, PRUNED, Direction, Trial
from deep5.run.curve import CURVE
from deep5.search.pruners import NONE, Watch
from deep5.search.space import Space

__all__ = ["TrialRequest", "run_trial"]

_MOST_POINTS = 100


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A trial to run, in JSON types.

    Attributes:
        number: Its number.
        settings: Its settings.
        run: Its run, as of `RunRequest`.
        earlier: All trials before this one, if there is a pruner.
        space: The space, as written.
        goal: Label of the metric.
        direction: Whether higher or lower values are better.
        pruner: Name of the pruner.
        known: Number of earlier trials, from the first on, whose outcome the pruner uses.
        epochs: Most epochs of a trial.
    """

    number: int
    settings: Mapping[str, Any]
    run: Mapping[str, Any]
    earlier: Sequence[Mapping[str, Any]]
    space: Mapping[str, str]
    goal: str
    direction: Direction
    pruner: str
    known: int
    epochs: int


def run_trial(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a trial, and read how it ended.

    Args:
        request: A `TrialRequest`, in JSON types.

    Returns:
        `trial`, a `Trial` in JSON types but for numbers that are not finite, with the path of its run below the folder
        of the sweep; and `archive`, its files if the sweep's folder is not shared.

    Raises:
        Interrupted: It was interrupted, and can resume.
        OutputError: A disk is full.
    """
    with place_for(RunRequest(**request["run"])) as run:
        trial = _run(TrialRequest(**request), run)
        return {"trial": trial.document(), "archive": packed(run)}


def _run(request: TrialRequest, run: RunRequest) -> Trial:
    earlier = [Trial.of(trial) for trial in request.earlier]
    space = Space.of(request.space)
    watch = Watch(request.pruner, space, request.direction, earlier, request.known, request.epochs)

    def stop(folder: Path) -> str | None:
        return "was pruned" if watch.hear(_points(_lines(folder))).pruned else None

    outcome = attempt(run, None if request.pruner == NONE else stop)
    lines = _lines(Path(outcome.results))
    verdict = watch.hear(_points(lines))
    runs = Path(run.folder)
    about: dict[str, Any] = {
        "number": request.number,
        "settings": request.settings,
        "curve": _thinned(verdict.curve) if request.pruner == NONE else verdict.curve,
        "rungs": verdict.rungs,
        "run": None if outcome.run is None else f"{RUNS}/{Path(outcome.run).relative_to(runs)}",
        "epochs": lines[-1]["epoch"] if lines else 0,
        "steps": lines[-1]["step"] if lines else 0,
        "wall_s": outcome.wall_s,
        "host": outcome.host,
        "attempts": int(Path(outcome.attempt).name),
    }
    if verdict.pruned:
        if outcome.run is not None:
            # It never resumes.
            shutil.rmtree(Path(outcome.run) / "checkpoints", ignore_errors=True)
        return Trial(state=PRUNED, value=verdict.curve[-1][1], **about)
    value, reason = _value(outcome, request.goal, runs)
    if reason is not None:
        return Trial(state=FAILED, reason=reason, **about)
    return Trial(state=FINISHED, value=value, **about)


def _value(outcome: Outcome, goal: str, root: Path) -> tuple[float | None, str | None]:
    """The value of the goal's metric; or why there is none."""
    if outcome.reason is not None:
        return None, outcome.reason
    if outcome.run is None:
        return None, "it left no result"
    try:
        result = load(outcome.run, root=root)
    except Deep5Error as error:
        return None, str(error)
    if result.status != "success":
        return None, "; ".join(result.document["reasons"]) or f"its status is {result.status}"
    verdict = next((own for own in result.verdicts if own.label == goal), None)
    if verdict is None or verdict.value is None:
        return None, f"it has no value of {goal}"
    return float(verdict.value), None


def _lines(folder: Path) -> list[Mapping[str, Any]]:
    """Whole lines of the curve in an attempt's folder."""
    run = result_of(folder)
    try:
        text = "" if run is None else (run / CURVE).read_text()
    except OSError:
        return []
    # The last line may be under way.
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _points(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return [(line["epoch"], float(line["value"])) for line in lines if line["value"] is not None]


def _thinned(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """At most 100 points of a curve, evenly spread, with both ends."""
    if len(curve) <= _MOST_POINTS:
        return tuple(curve)
    places = [math.floor(place * (len(curve) - 1) / (_MOST_POINTS - 1)) for place in range(_MOST_POINTS)]
    return tuple(curve[place] for place in places)
