"""A recorded loop: its values follow from the times and sizes of its steps; what it cannot know is absent."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from deep5.audit.files import bytes_of, plain
from deep5.audit.finding import Ledger
from deep5.audit.order_statistics import median_ends
from deep5.audit.recorded_events import check_recorded_events
from deep5.core.plugins import registered
from deep5.results.samples_file import SampleRow

__all__ = ["check_recorded"]

_FILE = "time_breakdown.csv"
_BETWEEN, _EVALUATED = "time[between steps: ", "time[evaluation: "
_OWN = ("time[step]", "time[epoch]", "time[evaluation]")
# Times of one clock are integers of nanoseconds, stored in seconds in float64; the breakdown has six digits.
_TICK_S, _ROUNDING, _DIGITS = 1e-6, 1e-9, 1e-4
_UNKNOWN = ("data", "split", "initial_weights", "init", "trained_weights", "batch_order", "network", "recipe_source")
# What the recorder names as unknown: always, and if nothing shows it.
_NAMED = ("seeds", "data", "order of the batches", "network", "initial weights", "optimizer", "element type")
_MAY_BE_NAMED = (*_NAMED, "framework", "device", "number of threads")

Rows = Sequence[SampleRow]
Samples = Mapping[str, Rows]


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The steps of a loop: samples, seconds and epoch of each, and whether it was the first of its size."""

    sizes: Sequence[int]
    seconds: Sequence[float]
    epochs: Sequence[int]
    firsts: Sequence[bool]

    def of(self, epoch: int) -> list[int]:
        """The numbers of the steps of an epoch."""
        return [step for step, own in enumerate(self.epochs) if own == epoch]


def check_recorded(ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Samples) -> None:
    """Check a finished recording.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json.
        samples: Rows of samples.csv, by metric.
    """
    with ledger.part(14, "what was recorded"):
        _check_unknown(ledger, document)
    steps = None
    with ledger.part(8, "the steps of the loop"):
        steps = _steps(ledger, samples)
    if steps is None:
        return
    with ledger.part(8, "the epochs of the loop"):
        _check_epochs(ledger, samples, steps)
    with ledger.part(8, "the regions of the loop"):
        _check_regions(ledger, samples, steps)
    with ledger.part(6, "the first steps"):
        _check_first(ledger, document, steps)
    with ledger.part(9, "the values of the loop"):
        _check_values(ledger, document, samples, steps)
    with ledger.part(9, _FILE):
        _check_breakdown(ledger, root, samples)
    check_recorded_events(ledger, root, document, samples)


def _check_unknown(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """What a recorder cannot know is absent, and named."""
    recipe, provenance = document["recipe"], document["provenance"]
    ledger.skip(f"what a recorder cannot know: {', '.join(map(str, document['recorded']['unknown']))}")
    ledger.same(14, "the fixed part of a recorded loop", recipe["fixed"], {"recorded": recipe["name"]})
    ledger.same(14, "the mutable part of a recorded loop", recipe["mutable"], {})
    ledger.same(14, "the division of a recorded loop", recipe["division"], "open")
    ledger.same(11, "the seeds of a recorded loop", document["seeds"], {})
    stated = [name for name in _UNKNOWN if provenance.get(name) is not None]
    stated += [name for name in ("components", "checkpoints") if document[name] is not None]
    ledger.hold(
        14,
        not stated and not document["resumed"],
        f"a recorded loop states {', '.join(stated) or 'a resumption'}, which a recorder cannot know; allowed: nothing",
    )
    own, numerics = document["framework"] or {}, document["numerics"] or {}
    ledger.hold(
        3,
        not own or own["name"] in registered("frameworks"),
        f"the framework is {own.get('name')!s:.40}; allowed: one that deep5 knows, or none",
    )
    ledger.hold(
        2,
        own.get("device") != "cpu" or (numerics.get("tf32"), numerics.get("deterministic")) == (False, True),
        f"the loop ran on the host with {numerics!s:.80}; allowed: no TF32, and deterministic",
    )
    named = document["recorded"]["unknown"]
    wrong = [name for name in _NAMED if name not in named] + [name for name in named if name not in _MAY_BE_NAMED]
    ledger.hold(14, not wrong, f"what a recorder cannot know has {', '.join(map(str, wrong))[:100]} wrong")
    for name, known in (
        ("framework", document["framework"] is not None),
        ("device", (document["framework"] or {}).get("device") is not None),
        ("number of threads", (document["threads"] or {}).get("framework") is not None),
    ):
        ledger.hold(
            14, known != (name in named), f"the {name} is {'known and' if known else 'absent and not'} named as unknown"
        )


def _steps(ledger: Ledger, samples: Samples) -> _Steps | None:
    sizes, seconds = samples.get("batch_size", ()), samples.get("time[step]", ())
    places = [[(row.step, row.epoch) for row in rows] for rows in (sizes, seconds)]
    right = bool(sizes) and places[0] == places[1] and [row.step for row in sizes] == list(range(len(sizes)))
    right = right and all(row.epoch is not None for row in sizes)
    right = right and all(row.value >= 1 and row.value == int(row.value) for row in sizes)
    if not ledger.hold(
        8,
        right and all(0 < row.value < math.inf for row in seconds),
        "the steps have no complete times and batch sizes; allowed: both for each step, counted from 0",
    ):
        return None
    known = set[int]()
    firsts = []
    for row in sizes:
        firsts.append(int(row.value) not in known)
        known.add(int(row.value))
    return _Steps(
        sizes=[int(row.value) for row in sizes],
        seconds=[row.value for row in seconds],
        epochs=[row.epoch or 0 for row in sizes],
        firsts=firsts,
    )


def _check_epochs(ledger: Ledger, samples: Samples, steps: _Steps) -> None:
    """Epochs count from 0, end where their steps end, and last at least as long as their steps."""
    epochs, evaluated = samples.get("time[epoch]", ()), _by_epoch(samples.get("time[evaluation]", ()))
    ledger.same(8, "the epochs of the loop", [row.epoch for row in epochs], list(range(len(epochs))))
    ends = [sum(own <= (row.epoch or 0) for own in steps.epochs) for row in epochs]
    ledger.same(8, "the steps at the ends of the epochs", [row.step for row in epochs], ends)
    ledger.same(8, "the steps of all epochs", ends[-1] if ends else 0, len(steps.sizes))
    clocks = samples.get("wall_clock_time", ())
    if clocks:
        ledger.same(
            8, "the epochs of the wall-clock time", [s.epoch for s in clocks], [n + 1 for n in range(len(epochs))]
        )
    passed = 0.0
    for number, row in enumerate(epochs):
        own = sum(steps.seconds[step] for step in steps.of(number))
        ledger.hold(
            8,
            own <= row.value * (1 + _ROUNDING) + _TICK_S,
            f"epoch {number} took {row.value:.6g} s, and its steps {own:.6g} s; allowed: no more than the epoch",
        )
        if number < len(clocks):
            whole, parts = clocks[number].value - passed, row.value + evaluated.get(number, 0.0)
            passed = clocks[number].value
            ledger.hold(
                8,
                parts <= whole * (1 + _ROUNDING) + _TICK_S,
                f"epoch {number} took {parts:.6g} s with its evaluations, and {whole:.6g} s by the wall-clock time",
            )


def _by_epoch(rows: Rows) -> dict[int, float]:
    return {row.epoch or 0: row.value for row in rows}


def _check_regions(ledger: Ledger, samples: Samples, steps: _Steps) -> None:
    """Regions do not overlap: together they take no longer than what they are part of."""
    within: dict[int, float] = {}
    between: dict[int, float] = {}
    evaluation_s: dict[int, float] = {}
    for label, rows in samples.items():
        if not label.startswith("time[") or label in _OWN:
            continue
        for row in rows:
            if label.startswith(_BETWEEN):
                between[row.epoch or 0] = between.get(row.epoch or 0, 0.0) + row.value
            elif label.startswith(_EVALUATED):
                evaluation_s[row.epoch or 0] = evaluation_s.get(row.epoch or 0, 0.0) + row.value
            else:
                within[row.step or 0] = within.get(row.step or 0, 0.0) + row.value
        wrong = [row.value for row in rows if not 0 < row.value < math.inf or row.unit != "s"]
        ledger.hold(8, not wrong, f"{label} has the times {wrong[:3]}; allowed: seconds above 0")
    for step, own in within.items():
        whole = steps.seconds[step] if step < len(steps.seconds) else 0.0
        ledger.hold(
            8,
            own <= whole * (1 + _ROUNDING),
            f"the regions of step {step} took {own:.6g} s, and the step {whole:.6g} s",
        )
    epochs, evaluated = _by_epoch(samples.get("time[epoch]", ())), _by_epoch(samples.get("time[evaluation]", ()))
    for epoch, own in between.items():
        whole = epochs.get(epoch, 0.0) - sum(steps.seconds[step] for step in steps.of(epoch))
        # What follows an evaluation in an epoch is not in its time.
        room = math.inf if epoch in evaluated else whole + _TICK_S
        ledger.hold(
            8, own <= room, f"the regions between the steps of epoch {epoch} took {own:.6g} s of {whole:.6g} s there"
        )
    for epoch, own in evaluation_s.items():
        whole = evaluated.get(epoch, 0.0)
        ledger.hold(
            8,
            own <= whole * (1 + _ROUNDING),
            f"the regions of the evaluation of epoch {epoch} took {own:.6g} s, and the evaluation {whole:.6g} s",
        )


def _check_first(ledger: Ledger, document: Mapping[str, Any], steps: _Steps) -> None:
    first, *others = [own for own, is_first in zip(steps.seconds, steps.firsts, strict=True) if is_first]
    stored = [document["measurement"][key] for key in ("first_call_s", "warm_up_s", "warmups")]
    ledger.same(
        6,
        "the first step, the first steps of other sizes, and their number",
        stored,
        [first, sum(others, 0.0), len(others)],
    )


def _check_values(ledger: Ledger, document: Mapping[str, Any], samples: Samples, steps: _Steps) -> None:
    for row in document["metrics"]:
        own, name = samples.get(row["name"], ()), row["name"]
        if row["value"] is None:
            continue
        value = float(row["value"])
        if name == "step_latency":
            ledger.same(8, "the latencies, by the steps", [s.value for s in own], [1e3 * s for s in steps.seconds])
            ledger.same(8, "the steps of the latencies", [s.step for s in own], list(range(len(steps.sizes))))
            steady = [s for s, first in zip(own, steps.firsts, strict=False) if not first] or list(own)
            values = [s.value for s in steady if s.epoch] or [s.value for s in steady]
            ledger.same(9, "the value of step_latency", value, median(values))
            ends, found = median_ends(values), row["interval"]
            stored = None if found is None else [found["low"], found["high"]]
            ledger.same(9, "the interval of step_latency", stored, None if ends is None else list(ends))
        elif name == "training_loss":
            ledger.same(9, "the value of training_loss", value, _mean_loss(own, steps))
        elif name == "throughput":
            _check_throughput(ledger, value, own, _by_epoch(samples.get("time[epoch]", ())), steps)
        elif name == "test_accuracy" and own and (own[-1].epoch or 0) < 1 + max(steps.epochs):
            said = any(f"is of epoch {own[-1].epoch}" in warning for warning in document["warnings"])
            ledger.hold(12, said, f"the accuracy is of epoch {own[-1].epoch}, not the last; allowed: with a warning")


def _mean_loss(own: Rows, steps: _Steps) -> float | None:
    """Mean of the losses of the last epoch that has any, each weighted by the samples since the one before."""
    counts = [0]
    for size in steps.sizes:
        counts.append(counts[-1] + size)
    ends = [0, *((row.step or 0) + 1 for row in own)]
    weights = [counts[min(end, len(steps.sizes))] - counts[begin] for begin, end in pairwise(ends)]
    last = own[-1].epoch if own else None
    rows = [(row.value, weight) for row, weight in zip(own, weights, strict=True) if row.epoch == last]
    total = sum(weight for _, weight in rows)
    return sum(loss * weight for loss, weight in rows) / total if total else None


def _check_throughput(ledger: Ledger, value: float, own: Rows, epochs: Mapping[int, float], steps: _Steps) -> None:
    """The samples of the steps in the time of their epochs, without the first steps of each size."""
    steady, warm = [0, 0.0], [0, 0.0]
    rates = []
    for epoch, seconds in sorted(epochs.items()):
        numbers = steps.of(epoch)
        count = sum(steps.sizes[step] for step in numbers if not steps.firsts[step])
        off = sum(steps.seconds[step] for step in numbers if steps.firsts[step])
        total, taken, busy = (
            (steady, count, seconds - off) if count else (warm, sum(steps.sizes[s] for s in numbers), seconds)
        )
        total[0] += taken
        total[1] += busy
        rates.append(taken / busy)
    whole, busy_s = steady if steady[1] else warm
    # A difference of nanoseconds: the sums are rounded.
    ledger.hold(
        8,
        len(rates) == len(own)
        and all(math.isclose(row.value, rate, rel_tol=1e-6) for row, rate in zip(own, rates, strict=True)),
        f"the throughputs are {[row.value for row in own]!r:.80}; by steps and epochs: {rates!r:.80}",
    )
    ledger.hold(
        9,
        math.isclose(value, whole / busy_s, rel_tol=1e-6),
        f"the value of throughput is {value:.9g}; by steps and epochs: {whole / busy_s:.9g}",
    )


def _check_breakdown(ledger: Ledger, root: Path, samples: Samples) -> None:
    if not ledger.hold(9, plain(root, _FILE) is not None, f"there is no {_FILE}; allowed: the parts of the time"):
        return
    stored = {row["part"]: row for row in csv.DictReader(io.StringIO((bytes_of(root, _FILE) or b"").decode()))}
    seconds = {label: sum(row.value for row in rows) for label, rows in samples.items() if label.startswith("time[")}
    steps, evaluated = seconds.get("time[step]", 0.0), seconds.get("time[evaluation]", 0.0)
    total = seconds.get("time[epoch]", 0.0) + evaluated
    due = {"steps": steps, "evaluation": evaluated, "total": total}
    within = {
        label: own
        for label, own in seconds.items()
        if label not in _OWN and not label.startswith((_BETWEEN, _EVALUATED))
    }
    due |= {f"steps: {label[5:-1]}": own for label, own in within.items()}
    if within:
        due["steps: other"] = steps - sum(within.values())
    between = {label[len(_BETWEEN) : -1]: own for label, own in seconds.items() if label.startswith(_BETWEEN)}
    due |= between
    due |= {f"evaluation: {k[len(_EVALUATED) : -1]}": own for k, own in seconds.items() if k.startswith(_EVALUATED)}
    due["other"] = total - steps - sum(between.values()) - evaluated
    ledger.same(9, f"the parts in {_FILE}", sorted(stored), sorted(due))
    for part, own in due.items():
        if part in stored:
            for what, follows in (("seconds", own), ("percent", 100 * own / total if total else 0.0)):
                right = math.isclose(float(stored[part][what]), follows, rel_tol=_DIGITS, abs_tol=_TICK_S * _DIGITS)
                ledger.hold(
                    9, right, f"{part} in {_FILE} has the {what} {stored[part][what]:.20}; by the samples {follows:.6g}"
                )
