"""Rules 8, 9 and 12: the samples of a run are whole and in order, and every metric's value follows from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.measured import batch_size_of
from deep5.audit.numerics import parts_of
from deep5.audit.run_times import samples_of_epoch
from deep5.errors import TooFewSamples
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

__all__ = ["check_values"]

# Two metrics read the clock after one evaluation, one after the other: a share of the time between two evaluations, on
# a machine that is busy.
_BETWEEN_S, _BETWEEN_SHARE = 0.05, 0.25

Rows = Sequence[SampleRow]
All = Mapping[str, Rows]

# By how a value follows from the metric's own samples.
_LAST = (
    "test_accuracy", "test_loss", "wall_clock_time", "final_test_accuracy", "generalisation_gap", "training_accuracy",
    "top_k", "confusion_matrix", "cost", "energy", "operator_coverage",
)  # fmt: skip
_LARGEST = ("peak_memory", "repeatability", "sampling_bias")
# Others of which no interval is derived.
_SIMPLE = ("training_loss", "throughput", "time_to_accuracy", "epochs_to_accuracy")
# Steps of a run of which the firsts are told.
_MOST_STEPS = 5_000_000
# In percent: clocks rise and fall, and the peak is measured once.
_PEAK = 105.0
# That of the intervals that are derived again.
_CONFIDENCE = 0.95
_MIDDLE = ("operator_time", "bare_ratio", "operator_cost")
# Judged once an epoch, on the epoch that the recipe names: the last.
_JUDGED = ("test_accuracy", "test_loss", "top_k")


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a value may follow from beside its own samples."""

    document: Mapping[str, Any]
    samples: All
    train_samples: int | None

    @property
    def ended(self) -> bool:
        """Whether it came to its end: a run that did not has what its metrics had seen until then."""
        return bool(self.document["status"] == "success")


def check_values(ledger: Ledger, document: Mapping[str, Any], samples: All, train_samples: int | None = None) -> None:
    """Hold a run's metrics against its samples.

    Args:
        ledger: Takes the findings.
        document: result.json.
        samples: As samples.csv has them, by metric.
        train_samples: Of the training set, where the events say it.
    """
    run = _Run(document=document, samples=samples, train_samples=train_samples)
    rows = document["metrics"]
    labels = metric_labels(rows)
    for label, own in samples.items():
        _check_order(ledger, label, own)
    for label, row in zip(labels, rows, strict=True):
        own = samples.get(label, [])
        if not run.ended and not row["samples"] and row["value"] is None:
            continue  # it was killed, and the samples were written after the document
        if ledger.hold(
            8, len(own) == row["samples"], f"{label}: {len(own)} samples are there; {row['samples']} were taken"
        ):
            wrong = {sample.unit for sample in own} - {row["unit"]}
            ledger.hold(8, not wrong, f"{label}: samples are in {', '.join(wrong)}; the metric is in {row['unit']}")
        with ledger.part(9, f"the value of {label}"):
            _check_value(ledger, label, row, own, run)
    known = {*labels, "candidate_time", "baseline_time", "baseline_again_time"}
    odd = [label for label in samples if label not in known and not label.startswith("time[")]
    ledger.hold(8, not odd, f"samples of {', '.join(odd)[:100]} are there, which is no metric of the recipe")


def _check_order(ledger: Ledger, label: str, own: Rows) -> None:
    ledger.hold(
        8,
        [sample.index for sample in own] == list(range(len(own))),
        f"{label}: samples are missing, double, or out of order: their places are not 0 to {len(own) - 1}",
    )
    for what in ("step", "epoch", "time_s"):
        values = [getattr(sample, what) for sample in own if getattr(sample, what) is not None]
        ledger.hold(8, len(values) in (0, len(own)), f"{label}: some samples have no {what}")
        ledger.hold(
            8,
            all(a <= b for a, b in pairwise(values)),
            f"{label}: samples are out of order: their {what} goes back",
        )
        if what == "time_s" and values:
            ledger.hold(8, all(map(math.isfinite, values)) and values[0] >= 0, f"{label}: times are no times")


def _check_value(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    stored = None if row["value"] is None else float(row["value"])
    interval = row["interval"]
    if interval is not None:
        ledger.hold(
            9,
            interval["confidence"] in (None, _CONFIDENCE),
            f"the interval of {label} has the confidence {interval['confidence']!r}; allowed: {_CONFIDENCE} or none",
        )
        ledger.hold(
            9,
            row["name"] not in (*_LAST, *_LARGEST, *_SIMPLE),
            f"{label} has an interval; allowed: none, since its value is one reading",
        )
    if stored is None:
        ledger.hold(9, interval is None, f"{label} has an interval and no value; allowed: both or neither")
        ledger.hold(
            9,
            bool(row["missing"]) or not own or not run.ended,
            f"{label} has {len(own)} samples and no value; allowed: a value, or the reason why there is none",
        )
        return
    name, values = row["name"], [sample.value for sample in own]
    if name in ("time_to_accuracy", "epochs_to_accuracy"):
        _check_target(ledger, label, row, own, run.samples)
    elif name in _JUDGED or name in _LAST:
        if not ledger.hold(9, bool(values), f"{label} has a value and no samples"):
            return
        best = max(values) if row["direction"] == "higher" else min(values)
        rule = 12 if name in _JUDGED and stored == best != values[-1] else 9
        which = ": that of the best epoch, not of the last" if rule == 12 else ""
        ledger.same(rule, f"the value of {label}{which}", stored, values[-1])
        if name in _JUDGED:
            _check_epochs(ledger, label, own, run)
    elif name in _LARGEST:
        ledger.same(9, f"the value of {label}", stored, max(values))
    elif name in _MIDDLE:
        ledger.same(9, f"the value of {label}", stored, median(values))
        _check_interval(ledger, label, row, values)
    elif (check := _CHECKS.get(name)) is not None:
        check(ledger, label, row, own, run)
    else:
        ledger.skip(f"the value of {name}: how it follows from its samples is not known here")


def _check_epochs(ledger: Ledger, label: str, own: Rows, run: _Run) -> None:
    """Every epoch was judged, up to the one that the recipe names."""
    epochs, asked = [sample.epoch for sample in own], parts_of(run.document).get("epochs")
    stopped = any(told.startswith("stopped:") for told in run.document["reasons"])
    ledger.hold(
        12,
        epochs == list(range(1, len(epochs) + 1)),
        f"{label}: epochs were left out of the evaluations: {epochs!r:.80}",
    )
    if isinstance(asked, int) and not stopped and run.ended:
        ledger.hold(
            12,
            len(epochs) == asked,
            f"{label} is judged after {len(epochs)} epochs; the recipe names {asked}, and nothing says that it "
            "was stopped",
        )


def _check_target(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, samples: All) -> None:
    """The first declared evaluation that reached the target: of the time, by the accuracies beside it."""
    target, timed = float(row["parameters"]["target"]), row["name"] == "time_to_accuracy"
    judged = samples.get("test_accuracy") or samples.get("epochs_to_accuracy") or (() if timed else own)
    if not judged:
        ledger.skip(f"the value of {label}: the accuracies that it follows from are not stored")
        return
    place = next((place for place, sample in enumerate(judged) if sample.value >= target), None)
    upto = judged if place is None else judged[: place + 1]
    if timed:
        room = max(_BETWEEN_S, _BETWEEN_SHARE * (upto[-1].time_s or 0.0) / len(upto))
        ledger.hold(
            8,
            len(own) == len(upto)
            and all(
                sample.value == sample.time_s and abs(sample.value - (other.time_s or 0.0)) <= room
                for sample, other in zip(own, upto, strict=True)
            ),
            f"the times of {label} are not those of the evaluations up to the one that reached {target:g}",
        )
        follows = math.inf if place is None or not own else own[-1].value
    else:
        ledger.same(8, f"the accuracies of {label}", [s.value for s in own], [s.value for s in judged])
        follows = math.inf if place is None else float(judged[place].epoch or 0)
    what = f"the value of {label}: the first evaluation that reached {target:g}"
    ledger.same(12, what, float(row["value"]), follows)


def _check_interval(ledger: Ledger, label: str, row: Mapping[str, Any], values: Sequence[float]) -> None:
    from deep5.samples import median_interval

    try:
        found = median_interval(values)
    except TooFewSamples:
        ledger.same(9, f"the interval of {label}", row["interval"], None)
        return
    stored = row["interval"] or {"low": None, "high": None}
    ledger.same(9, f"the interval of {label}", [stored["low"], stored["high"]], [found.low, found.high])


def _training_loss(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    """The mean over the samples of the last epoch: exact where the sizes of batches follow from their number."""
    losses = [sample.value for sample in own if sample.epoch == own[-1].epoch]
    stored, size = float(row["value"]), batch_size_of(run.document)
    slack = 1e-9 * max(map(abs, losses))
    ledger.hold(
        9,
        not min(losses) - slack > stored and not stored > max(losses) + slack,
        f"the value of {label} is beyond the losses of the last epoch; stored {stored!r}, follows something between "
        f"{min(losses)!r} and {max(losses)!r}",
    )
    count = run.train_samples
    if size is None or count is None or math.ceil(count / size) != len(losses):
        ledger.skip(f"the value of {label}, but for its range: the sizes of its batches are not known")
        return
    sizes = [size] * (len(losses) - 1) + [count - size * (len(losses) - 1)]
    follows = sum(loss * weight for loss, weight in zip(losses, sizes, strict=True)) / count
    ledger.same(9, f"the value of {label}", stored, follows)


def _throughput(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    """Samples of all epochs over their seconds, both as the epochs' own throughputs tell them."""
    values, stored = [sample.value for sample in own], float(row["value"])
    ledger.hold(
        9,
        min(values) * (1 - 1e-9) <= stored <= max(values) * (1 + 1e-9),
        f"the value of {label} is beyond those of all epochs; stored {stored!r}, follows something between "
        f"{min(values)!r} and {max(values)!r}",
    )
    counts = _counted(run, own)
    if counts is None:
        ledger.skip(f"the value of {label}, but for its range: how many samples each epoch had is not known")
        return
    if any(counts):  # epochs of nothing but first steps count only where there are no others
        seconds = sum(count / value for count, value in zip(counts, values, strict=True) if count)
        ledger.same(9, f"the value of {label}", stored, sum(counts) / seconds)


def _counted(run: _Run, own: Rows) -> list[int] | None:
    """Samples of each epoch that count: without the first batch of each size, which may compile."""
    ends = [0, *(sample.step or 0 for sample in own)]
    steps = [after - before for before, after in pairwise(ends)]
    taken = [samples_of_epoch(run.document, run.train_samples, count) for count in steps]
    size = batch_size_of(run.document)
    if not run.ended or None in taken or size is None or ends[-1] > _MOST_STEPS:
        return None
    counts, is_first = list[int](), _Firsts(run.document["resumed"])
    for total, begin, end in zip(map(int, filter(None, taken)), ends, ends[1:], strict=False):
        held = [min(size, total - place * size) for place in range(end - begin)]
        firsts = [is_first(step, own) for step, own in enumerate(held, start=begin)]
        counts.append(sum(own for own, first in zip(held, firsts, strict=True) if not first))
    return counts


class _Firsts:
    """Tells the first step of each size of batch, in each process of a run: that one may compile.

    Args:
        resumed: As result.json has it; what went on from an earlier step took the place of what had gone on before.
    """

    def __init__(self, resumed: Sequence[Mapping[str, Any]]) -> None:
        self._begins: list[int] = []
        for entry in resumed:
            self._begins = [step for step in self._begins if step < entry["step"]] + [entry["step"]]
        self._sizes = set[int]()

    def __call__(self, step: int, size: int) -> bool:
        """Whether this step, told of in order, is one."""
        while self._begins and step >= self._begins[0]:
            self._begins.pop(0)
            self._sizes = set()
        first = size not in self._sizes
        self._sizes.add(size)
        return first


def _step_latency(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    values = _steady(own, run)
    if values is None:
        ledger.skip(f"the value of {label}: which steps were the first of their size is not stored")
        return
    ledger.same(9, f"the value of {label}", float(row["value"]), median(values))
    _check_interval(ledger, label, row, values)


def _held(steps: Rows, run: _Run) -> list[int] | None:
    """How many samples each step had, by its place in its epoch; None where that does not follow."""
    size, count = batch_size_of(run.document), run.train_samples
    if size is None or count is None:
        return None
    places, found = Counter[int | None](), []
    for sample in steps:
        found.append(min(size, count - places[sample.epoch] * size))
        places[sample.epoch] += 1
    return found if min(found, default=1) > 0 else None


def _steady(own: Rows, run: _Run) -> list[float] | None:
    """Steps that are not the first of their size in their process; of those, from the second epoch on."""
    taken = _held(own, run)
    if taken is None:
        return None
    is_first = _Firsts(run.document["resumed"])
    steady = [s for s, held in zip(own, taken, strict=True) if not is_first(s.step or 0, held)]
    rest = steady or own
    return [sample.value for sample in rest if sample.epoch] or [sample.value for sample in rest]


def _utilisation(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    values = [sample.value for sample in own if sample.epoch] or [sample.value for sample in own]
    ledger.same(9, f"the value of {label}", float(row["value"]), median(values))
    _check_interval(ledger, label, row, values)
    most = max(values)
    ledger.hold(8, most <= _PEAK, f"{label}: {most:.3g} % of the machine's measured peak; allowed: {_PEAK:g} %")
    # Both are of one reading of the clock: a sample's work, in shares of the peak, is the same in all steps.
    steps = run.samples.get("step_latency", ())
    taken = _held(steps, run)
    if taken is None or not steps:
        ledger.skip(f"{label} against the latencies: how many samples each step had is not known")
        return
    each = {sample.step: sample.value / held for sample, held in zip(steps, taken, strict=True)}
    works = [sample.value * each[sample.step] for sample in own]
    ledger.hold(
        8,
        max(works) <= min(works) * (1 + 1e-6),
        f"{label}: a sample's work in one step is {max(works) / min(works):.4g} times that in another, by the share of "
        "the peak and the latency; allowed: one work",
    )


def _overhead(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    """The difference of every round, and the upper end of the interval of its median."""
    from deep5.samples import median_interval

    loops = run.document["measurement"]["loops"]
    times = _sides(run.samples)
    follows = [(a - (b + c) / 2) / loops * 1e6 for a, b, c in zip(*times, strict=True)]
    ledger.hold(
        9,
        len(follows) == len(own)
        and all(math.isclose(s.value, f, rel_tol=1e-6, abs_tol=1e-6) for s, f in zip(own, follows, strict=True)),
        f"the samples of {label} do not follow from the times of candidate and baseline",
    )
    found = median_interval([sample.value for sample in own])
    ledger.same(9, f"the value of {label}", float(row["value"]), found.high)
    _check_interval(ledger, label, row, [sample.value for sample in own])


def _slowdown(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    """The non-inferiority test over the rounds' times."""
    from deep5.samples import non_inferiority

    ours, theirs, again = _sides(run.samples)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ledger.same(9, f"the samples of {label}", [s.value for s in own], ratios)
    ledger.same(9, f"the value of {label}", float(row["value"]), non_inferiority(ours, theirs, again).excess)
    _check_interval(ledger, label, row, [sample.value for sample in own])


def _sides(samples: All) -> list[list[float]]:
    return [[s.value for s in samples[name]] for name in ("candidate_time", "baseline_time", "baseline_again_time")]


_CHECKS: Mapping[str, Callable[..., None]] = {
    "training_loss": _training_loss,
    "throughput": _throughput,
    "step_latency": _step_latency,
    "utilisation": _utilisation,
    "overhead": _overhead,
    "slowdown": _slowdown,
}
