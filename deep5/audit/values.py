"""Rules 8, 9 and 12: the samples of a run are complete and in order, and every metric's value follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from deep5.audit.batches import Batches
from deep5.audit.collective_values import OF_ONE_SIZE, check_of_one_size, is_series
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.order_statistics import excess_over_noise, median_ends
from deep5.audit.rank_values import COMBINED, SUMMED, OfAll, check_of_all
from deep5.audit.rounds import SIDES
from deep5.audit.verdict_rows import BUSY
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

__all__ = ["check_order", "check_values"]

# Two metrics read the clock one after the other after an evaluation: on a busy machine the difference is a share of the
# time between two evaluations.
_BETWEEN_S, _BETWEEN_SHARE = 0.05, 0.25

Rows = Sequence[SampleRow]
All = Mapping[str, Rows]

# Metrics grouped by how their value follows from their own samples.
_LAST = (
    "test_accuracy", "test_loss", "wall_clock_time", "final_test_accuracy", "generalisation_gap", "training_accuracy",
    "top_k", "confusion_matrix", "cost", "energy", "operator_coverage", "right_results", "phoneme_error_rate",
    "word_error_rate", "bleu", "chrf", "mean_return", "bits_per_byte", "perplexity", "f1", "roc_auc",
    "failed_requests", "goodput", "highest_rate", "latency_percentile", "request_throughput",
    "frechet_distance",
)  # fmt: skip
_LARGEST = ("peak_memory", "repeatability", "sampling_bias", "misplaced_pages", "pixel_difference")
# Other metrics for which no interval is derived.
_SIMPLE = ("training_loss", "throughput", "time_to_accuracy", "epochs_to_accuracy")
# In percent: clocks vary, and the peak is measured once.
_PEAK = 105.0
# So many other processes may have shared a processor while the peak was measured, where the run reports its load.
_SHARED = 20.0
# Confidence of the intervals that are derived again.
_CONFIDENCE = 0.95
_MIDDLE = (
    *("operator_time", "bare_ratio", "operator_cost"),
    *("images_per_second", "ideal_images_per_second", "loading_share"),
)
# Metrics of a recorded loop whose values `deep5.audit.recorded` checks, and its samples that are no metric's.
_RECORDED = ("step_latency", "training_loss", "throughput")
_SIZES = "batch_size"
# Metrics evaluated once per epoch, whose value is that of the epoch that the recipe names: the last.
_JUDGED = (
    "test_accuracy",
    "test_loss",
    "top_k",
    "mean_average_precision",
    "mean_return",
    "bits_per_byte",
    "perplexity",
    "f1",
    "roc_auc",
    "label_error_rate",
)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The inputs for a value other than its own samples."""

    document: Mapping[str, Any]
    samples: All
    batches: Batches
    of_all: OfAll | None

    @property
    def ended(self) -> bool:
        """Whether the run finished; otherwise metrics have the values reached until it stopped."""
        return bool(self.document["status"] == "success")

    @property
    def recorded(self) -> bool:
        """Whether the loop is not deep5's."""
        return self.document.get("recorded") is not None


def check_values(
    ledger: Ledger, document: Mapping[str, Any], samples: All, batches: Batches, of_all: OfAll | None
) -> None:
    """Compare a run's metrics with its samples.

    Args:
        ledger: Receives the findings.
        document: result.json.
        samples: Rows of samples.csv, by metric.
        batches: Batch sizes of the rank of these samples: the first.
        of_all: The contribution of each rank to the values of all; None if samples of other ranks are missing.
    """
    run = _Run(document=document, samples=samples, batches=batches, of_all=of_all)
    rows = document["metrics"]
    labels = metric_labels(rows)
    for label, own in samples.items():
        check_order(ledger, label, own)
    for label, row in zip(labels, rows, strict=True):
        own = samples.get(label, [])
        if not run.ended and not row["samples"] and row["value"] is None:
            continue  # the run was killed; the samples were written after the document
        if ledger.hold(
            8, len(own) == row["samples"], f"{label}: there are {len(own)} samples; stored: {row['samples']}"
        ):
            wrong = {sample.unit for sample in own} - {row["unit"]}
            ledger.hold(8, not wrong, f"{label}: samples are in {', '.join(wrong)}; the metric is in {row['unit']}")
        with ledger.part(9, f"the value of {label}"):
            _check_value(ledger, label, row, own, run)
    known = {*labels, *SIDES}
    if run.recorded:
        known.add(_SIZES)
    if "collective" in parts_of(document):
        known |= {label for label in samples if is_series(label)}
    odd = [label for label in samples if label not in known and not label.startswith("time[")]
    ledger.hold(8, not odd, f"there are samples of {', '.join(odd)[:100]}, which is not a metric of the recipe")


def check_order(ledger: Ledger, label: str, own: Rows) -> None:
    """Rule 8: the samples of a metric are complete and in order.

    Args:
        ledger: Receives the findings.
        label: Label of the metric.
        own: Its samples.
    """
    ledger.hold(
        8,
        [sample.index for sample in own] == list(range(len(own))),
        f"{label}: samples are missing, duplicated, or out of order: their indices are not 0 to {len(own) - 1}",
    )
    for what in ("step", "epoch", "time_s"):
        values = [getattr(sample, what) for sample in own if getattr(sample, what) is not None]
        ledger.hold(8, len(values) in (0, len(own)), f"{label}: some samples have no {what}")
        ledger.hold(
            8,
            all(a <= b for a, b in pairwise(values)),
            f"{label}: samples are out of order: their {what} decreases",
        )
        if what == "time_s" and values:
            ledger.hold(8, all(map(math.isfinite, values)) and values[0] >= 0, f"{label}: invalid times")


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
            f"{label} has an interval; allowed: none, since its value is a single reading",
        )
    if stored is None:
        ledger.hold(9, interval is None, f"{label} has an interval and no value; allowed: both or neither")
        ledger.hold(
            9,
            bool(row["missing"]) or not own or not run.ended,
            f"{label} has {len(own)} samples and no value; allowed: a value, or the reason for its absence",
        )
        return
    name, values = row["name"], [sample.value for sample in own]
    if run.recorded and run.ended and name in _RECORDED:
        pass  # by its steps, in `deep5.audit.recorded`
    elif name in SUMMED or (name in COMBINED and run.batches.ranks > 1):
        if not run.ended and run.batches.ranks > 1:
            ledger.skip(f"the value of {label}: the run ended before its ranks combined theirs")
        elif run.of_all is None or label not in run.of_all:
            ledger.skip(f"the value of {label}: not all ranks have samples")
        else:
            check_of_all(ledger, label, stored, name, run.of_all[label])
    elif name in ("time_to_accuracy", "epochs_to_accuracy"):
        _check_target(ledger, label, row, own, run.samples)
    elif name in _JUDGED or name in _LAST:
        if not ledger.hold(9, bool(values), f"{label} has a value and no samples"):
            return
        best = max(values) if row["direction"] == "higher" else min(values)
        rule = 12 if name in _JUDGED and stored == best != values[-1] else 9
        which = ": that of the best epoch, not the last" if rule == 12 else ""
        ledger.same(rule, f"the value of {label}{which}", stored, values[-1])
        if name in _JUDGED:
            _check_epochs(ledger, label, own, run)
    elif name in _LARGEST:
        ledger.same(9, f"the value of {label}", stored, max(values))
    elif name in _MIDDLE:
        ledger.same(9, f"the value of {label}", stored, median(values))
        _check_interval(ledger, label, row, values)
    elif name in OF_ONE_SIZE:
        check_of_one_size(ledger, label, row, own, run.document, run.samples)
    elif (check := _CHECKS.get(name)) is not None:
        check(ledger, label, row, own, run)
    else:
        ledger.skip(f"the value of {name}: the audit has no formula for it")


def _check_epochs(ledger: Ledger, label: str, own: Rows, run: _Run) -> None:
    """Every epoch was evaluated, up to the one that the recipe names."""
    if run.recorded:
        return  # a loop evaluates when it likes
    epochs, requested = [sample.epoch for sample in own], parts_of(run.document).get("epochs")
    stopped = any(reported.startswith("stopped:") for reported in run.document["reasons"])
    ledger.hold(
        12,
        epochs == list(range(1, len(epochs) + 1)),
        f"{label}: the evaluations skip epochs: {epochs!r:.80}",
    )
    if isinstance(requested, int) and not stopped and run.ended:
        ledger.hold(
            12,
            len(epochs) == requested,
            f"{label} is evaluated after {len(epochs)} epochs; the recipe names {requested}, and no reason states that "
            "it was stopped",
        )


def _check_target(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, samples: All) -> None:
    """The first declared evaluation that reached the target; for the time, by the corresponding accuracies."""
    target, timed = float(row["parameters"]["target"]), row["name"] == "time_to_accuracy"
    accuracies = samples.get("test_accuracy") or samples.get("epochs_to_accuracy") or (() if timed else own)
    if not accuracies:
        ledger.skip(f"the value of {label}: the accuracies from which it follows are not stored")
        return
    place = next((place for place, sample in enumerate(accuracies) if sample.value >= target), None)
    upto = accuracies if place is None else accuracies[: place + 1]
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
        ledger.same(8, f"the accuracies of {label}", [s.value for s in own], [s.value for s in accuracies])
        follows = math.inf if place is None else float(accuracies[place].epoch or 0)
    what = f"the value of {label}: the first evaluation that reached {target:g}"
    ledger.same(12, what, float(row["value"]), follows)


def _check_interval(ledger: Ledger, label: str, row: Mapping[str, Any], values: Sequence[float]) -> None:
    found = median_ends(values)
    if found is None:
        ledger.same(9, f"the interval of {label}", row["interval"], None)
        return
    stored = row["interval"] or {"low": None, "high": None}
    ledger.same(9, f"the interval of {label}", [stored["low"], stored["high"]], list(found))


def _step_latency(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    values = run.batches.steady(own)
    if values is None:
        ledger.skip(f"the value of {label}: the first steps of each size are not marked")
        return
    ledger.same(9, f"the value of {label}", float(row["value"]), median(values))
    _check_interval(ledger, label, row, values)


def _utilisation(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    values = [sample.value for sample in own if sample.epoch] or [sample.value for sample in own]
    ledger.same(9, f"the value of {label}", float(row["value"]), median(values))
    _check_interval(ledger, label, row, values)
    share = (run.document["resources"] or {}).get("others_share") or 0.0
    most, allowed = max(values), _PEAK * (_SHARED if share >= BUSY else 1.0)
    ledger.hold(8, most <= allowed, f"{label}: {most:.3g} % of the machine's measured peak; allowed: {allowed:g} %")
    # Both come from one clock reading: the work per sample, as a share of the peak, is the same in all steps.
    steps = run.samples.get("step_latency", ())
    taken = run.batches.held(steps)
    if taken is None or not steps:
        ledger.skip(f"{label} compared with the latencies: the number of samples per step is not known")
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
    loops = run.document["measurement"]["loops"]
    times = _sides(run.samples)
    follows = [(a - (b + c) / 2) / loops * 1e6 for a, b, c in zip(*times, strict=True)]
    ledger.hold(
        9,
        len(follows) == len(own)
        and all(math.isclose(s.value, f, rel_tol=1e-6, abs_tol=1e-6) for s, f in zip(own, follows, strict=True)),
        f"the samples of {label} do not follow from the times of candidate and baseline",
    )
    found = median_ends([sample.value for sample in own])
    ledger.same(9, f"the value of {label}", float(row["value"]), found and found[1])
    _check_interval(ledger, label, row, [sample.value for sample in own])


def _slowdown(ledger: Ledger, label: str, row: Mapping[str, Any], own: Rows, run: _Run) -> None:
    """The non-inferiority test over the rounds' times."""
    ours, theirs, again = _sides(run.samples)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ledger.same(9, f"the samples of {label}", [s.value for s in own], ratios)
    ledger.same(9, f"the value of {label}", float(row["value"]), excess_over_noise(ours, theirs, again))
    _check_interval(ledger, label, row, [sample.value for sample in own])


def _sides(samples: All) -> list[list[float]]:
    return [[s.value for s in samples[side]] for side in SIDES]


_CHECKS: Mapping[str, Callable[..., None]] = {
    "step_latency": _step_latency,
    "utilisation": _utilisation,
    "overhead": _overhead,
    "slowdown": _slowdown,
}
