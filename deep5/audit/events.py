"""Rules 8, 11 and 14: the log of a finished training has every event that deep5 writes, with the recipe's values.

A check that needs an event is not skipped because the event is missing: the missing event is itself a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.results.mllog import MLLogLine
from deep5.results.samples_file import SampleRow

__all__ = ["check_log"]

_TYPES = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
_INTERVALS = tuple(f"{name}_{end}" for name in ("init", "run", "epoch", "eval") for end in _TYPES)
# Events that every log has once, before training begins.
_POINTS = (
    "submission_benchmark", "submission_division", "seed", "global_batch_size", "train_samples", "eval_samples",
    "opt_name",
)  # fmt: skip
_RATE = "opt_base_learning_rate"
_EVALUATED = ("test_accuracy", "test_loss")
# A percentage was divided by 100 in the log.
_ROUNDING = 1e-9

Samples = Mapping[str, Sequence[SampleRow]]


def check_log(ledger: Ledger, document: Mapping[str, Any], samples: Samples, lines: Sequence[MLLogLine]) -> None:
    """Check the events of a finished training run.

    Args:
        ledger: Receives the findings.
        document: result.json.
        samples: Rows of samples.csv, by metric.
        lines: The events.
    """
    stopped = any(reported.startswith("stopped:") for reported in document["reasons"])
    _check_order(ledger, lines, evaluated=any(samples.get(name) for name in _EVALUATED), stopped=stopped)
    counts = Counter(line.key for line in lines)
    wrong = [key for key in _POINTS if counts[key] != 1]
    ledger.hold(8, not wrong, f"the events name {', '.join(wrong)} not once; allowed: each of {', '.join(_POINTS)}")
    values = {line.key: line.value for line in lines}
    _check_values(ledger, document, values)
    _check_status(ledger, document, lines)


def _check_order(ledger: Ledger, lines: Sequence[MLLogLine], *, evaluated: bool, stopped: bool) -> None:
    """Each interval begins and ends once, in its turn, with its epoch's number."""
    stated = [_named(line) for line in lines if line.key in (*_INTERVALS, "eval_accuracy")]
    epochs = sum(line.key == "epoch_start" for line in lines)
    has = Counter(line.key for line in lines)
    due = list(_due(epochs, evaluated=evaluated or bool(has["eval_start"]), scored=bool(has["eval_accuracy"])))
    allowed = [due]
    if stopped and epochs:
        # An event may end a training anywhere in its last epoch.
        last = max(place for place, name in enumerate(due) if name.startswith("epoch_start"))
        cut = [*due[: last + 1], f"epoch_stop {epochs}", "run_stop"]
        allowed += [cut, [*cut[:-2], f"eval_start {epochs}", f"eval_stop {epochs}", *cut[-2:]]]
    if stated not in allowed:
        place = next((at for at, pair in enumerate(zip(stated, due, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(stated), len(due)) if place is None else place
        names = [(own[at] if at < len(own) else "nothing") for own in (stated, due)]
        ledger.find(8, f"the events are not those of a run: {names[0]}; allowed there: {names[1]}")
    ledger.checks += 1
    odd = [line.key for line in lines if line.key in _INTERVALS and line.event_type != _type_of(line.key)]
    odd += [line.key for line in lines if line.key in (*_POINTS, _RATE) and line.event_type != "POINT_IN_TIME"]
    ledger.hold(8, not odd, f"the events {', '.join(odd)[:100]} have the type of others; allowed: their own")


def _type_of(key: str) -> str:
    return _TYPES[key.rpartition("_")[2]]


def _named(line: MLLogLine) -> str:
    number = line.metadata.get("epoch_num")
    return line.key if number is None else f"{line.key} {number}"


def _due(epochs: int, *, evaluated: bool, scored: bool) -> Iterator[str]:
    yield from ("init_start", "init_stop", "run_start")
    for number in range(1, epochs + 1):
        yield f"epoch_start {number}"
        if evaluated:
            yield f"eval_start {number}"
            if scored:
                yield f"eval_accuracy {number}"
            yield f"eval_stop {number}"
        yield f"epoch_stop {number}"
    yield "run_stop"


def _check_values(ledger: Ledger, document: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """The values of the events are those of the recipe, the data and the optimizer."""
    recipe, parts = document["recipe"], parts_of(document)
    ledger.same(14, "the benchmark in the events", values.get("submission_benchmark"), recipe["name"])
    ledger.same(14, "the division in the events", values.get("submission_division"), recipe["division"])
    if isinstance(name := recipe["mutable"].get("optimizer"), str):
        ledger.same(14, "the optimizer in the events", values.get("opt_name"), name)
    size, accumulate = parts.get("batch_size"), parts.get("accumulate", 1)
    plain = parts.get("train_sampler", "shuffle") in ("shuffle", "ordered")
    if isinstance(size, int) and isinstance(accumulate, int) and plain:
        ledger.same(14, "the batch size in the events", values.get("global_batch_size"), size * accumulate)
    optimizer, schedules = (document["components"] or {}).get("optimizer"), parts.get("schedules") or {}
    rate = optimizer.get("lr") if isinstance(optimizer, Mapping) else None
    if isinstance(schedules, Mapping) and "lr" not in schedules and isinstance(rate, (int, float)):
        ledger.same(14, "the learning rate in the events", values.get(_RATE), rate)


def _check_status(ledger: Ledger, document: Mapping[str, Any], lines: Sequence[MLLogLine]) -> None:
    """A finished run is a success for MLPerf once an evaluation has reached the first goal of the accuracy."""
    from deep5.core.metric import Goal

    declared = next((row["goal"] for row in document["metrics"] if row["name"] == "test_accuracy"), None)
    stated = [line.metadata.get("status") for line in lines if line.key == "run_stop"]
    seen = [float(line.value) * 100 for line in lines if line.key == "eval_accuracy"]
    follows = {"success"}
    if declared is not None:
        goal = Goal(relation=declared["relation"], bound=float(declared["bound"]))
        near = {goal.met(value * scale) for value in seen for scale in (1 - _ROUNDING, 1 + _ROUNDING)}
        follows = {"success" if met else "aborted" for met in near} or {"aborted"}
        if True in near and any(
            goal.met(value * (1 - _ROUNDING)) and goal.met(value * (1 + _ROUNDING)) for value in seen
        ):
            follows = {"success"}
    ledger.hold(
        11,
        len(stated) == 1 and stated[0] in follows,
        f"the run ended as {stated!r:.60} by its events; allowed: {' or '.join(sorted(follows))}",
    )
