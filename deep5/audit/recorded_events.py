"""The events of a recorded loop: in order, and of the durations that its samples state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.results.mllog import MLLogLine, read_mllog
from deep5.results.result import EVENTS
from deep5.results.samples_file import SampleRow

__all__ = ["check_recorded_events"]

# Times of events are in milliseconds, without fractions.
_SLACK_S = 0.005
_ENDED = ("success", "aborted")

Samples = Mapping[str, Sequence[SampleRow]]


def check_recorded_events(ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Samples) -> None:
    """Check the events of a finished recording.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json.
        samples: Rows of samples.csv, by metric.
    """
    with ledger.part(8, EVENTS):
        path = plain(root, EVENTS)
        if not ledger.hold(8, path is not None, f"there is no {EVENTS}; allowed: a log, as every recording writes it"):
            return
        lines = read_mllog(root / EVENTS)
        _check_order(ledger, document, lines, samples)
        _check_durations(ledger, lines, samples)


def _check_order(ledger: Ledger, document: Mapping[str, Any], lines: Sequence[MLLogLine], samples: Samples) -> None:
    values = {line.key: line.value for line in lines}
    recipe = document["recipe"]
    ledger.same(14, "the benchmark in the events", values.get("submission_benchmark"), recipe["name"])
    ledger.same(14, "the division in the events", values.get("submission_division"), recipe["division"])
    names = [(line.key, line.metadata.get("epoch_num")) for line in lines if line.event_type != "POINT_IN_TIME"]
    evaluated = {line.metadata.get("epoch_num") for line in lines if line.key == "eval_start"}
    epochs = len(samples.get("time[epoch]", ()))
    due: list[tuple[str, Any]] = [("init_start", None), ("init_stop", None), ("run_start", None)]
    for number in range(1, epochs + 1):
        inner = [("eval_start", number), ("eval_stop", number)] if number in evaluated else []
        due += [("epoch_start", number), *inner, ("epoch_stop", number)]
    ledger.same(8, "the events of the recording", names, [*due, ("run_stop", None)])
    sampled = {(row.epoch or 0) + 1 for row in samples.get("time[evaluation]", ())}
    ledger.hold(
        8, evaluated <= sampled, f"epochs {sorted(evaluated - sampled, key=str)!s:.60} are evaluated by the events only"
    )


def _check_durations(ledger: Ledger, lines: Sequence[MLLogLine], samples: Samples) -> None:
    """By the events, an epoch contains its steps and evaluations, and nothing else without an evaluation."""
    at = {(line.key, line.metadata.get("epoch_num")): line.time_ms / 1e3 for line in lines}
    evaluated = {row.epoch: row.value for row in samples.get("time[evaluation]", ())}
    for row in samples.get("time[epoch]", ()):
        number, evaluation_s = (row.epoch or 0) + 1, evaluated.get(row.epoch, 0.0)
        begin, end = at.get(("epoch_start", number)), at.get(("epoch_stop", number))
        if begin is None or end is None:
            continue  # a finding of the order
        whole = end - begin
        most = whole if row.epoch in evaluated else row.value
        ledger.hold(
            8,
            row.value + evaluation_s <= whole + _SLACK_S and whole <= most + _SLACK_S,
            f"epoch {number} took {row.value:.6g} s and its evaluations {evaluation_s:.6g} s by the samples, and "
            f"{whole:.6g} s by the events",
        )
