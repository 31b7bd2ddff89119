"""Rule 8: steps, epochs and times of a training's samples agree between its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from deep5.audit.batches import Batches
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

__all__ = ["check_positions"]

# Metrics with a sample per step; per evaluation; and per epoch, also of one that an event ended.
_STEPS = ("training_loss", "step_latency")
_EVALUATIONS = ("test_accuracy", "test_loss", "epochs_to_accuracy", "time_to_accuracy")
_EPOCHS = ("wall_clock_time", "throughput")
# Of these only the step is known.
_TIMELESS = ("step_latency", "throughput")
# Times of one clock are sums of nanoseconds in float64.
_TICK_S = 1e-6

Samples = Mapping[str, Sequence[SampleRow]]


def check_positions(ledger: Ledger, document: Mapping[str, Any], samples: Samples, batches: Batches) -> None:
    """Check the steps, epochs and times of a finished training.

    Args:
        ledger: Receives the findings.
        document: result.json.
        samples: Rows of samples.csv, by metric.
        batches: The batch sizes of this rank.
    """
    rows = document["metrics"]
    kinds = {label: row["name"] for label, row in zip(metric_labels(rows), rows, strict=True)}
    stopped = any(said.startswith("stopped:") for said in document["reasons"])
    found = {label: own for label, own in samples.items() if own and label in kinds}
    per_step = {label: own for label, own in found.items() if kinds[label] in _STEPS}
    ends: dict[int, int] = {}
    for label, own in found.items():
        if kinds[label] in (*_EVALUATIONS, *_EPOCHS):
            _check_ends(ledger, label, own, ends, stopped=stopped and kinds[label] in _EPOCHS)
        if kinds[label] in _TIMELESS:
            timed = [sample for sample in own if sample.time_s is not None]
            ledger.hold(8, not timed, f"{label}: its samples have times; allowed: none, since it reads a duration")
    _check_steps(ledger, per_step, ends, stopped=stopped)
    _check_sizes(ledger, document, ends, batches)
    losses = next((own for label, own in per_step.items() if kinds[label] == "training_loss"), ())
    times = [sample.time_s for sample in losses]
    if losses and [sample.step for sample in losses] == list(range(len(losses))):
        for label, own in found.items():
            if kinds[label] in (*_EVALUATIONS, "wall_clock_time"):
                _check_between(ledger, label, own, times)


def _check_ends(ledger: Ledger, label: str, own: Sequence[SampleRow], ends: dict[int, int], *, stopped: bool) -> None:
    """Epochs count from 1, and end at the same step in all metrics; an interrupted one has no number."""
    epochs, steps = [sample.epoch for sample in own], [sample.step for sample in own]
    due = list(range(1, len(own) + 1))
    early = stopped and epochs == [*due[:-1], len(own) - 1]
    ledger.hold(8, epochs == due or early, f"{label}: its epochs are {epochs!r:.80}; allowed: 1 to {len(own)}")
    known = {epoch: step for epoch, step in zip(epochs, steps, strict=True) if epoch is not None and step is not None}
    if early:
        known = {epoch: step for epoch, step in zip(epochs[:-1], steps[:-1], strict=True) if epoch and step}
    for epoch, step in known.items():
        first = ends.setdefault(epoch, step)
        ledger.hold(
            8, step == first, f"{label}: epoch {epoch} ended at step {step}; by another metric: at step {first}"
        )
    ledger.hold(
        8, None not in steps and all(a is None or b is None or a <= b for a, b in pairwise(steps)), f"{label}: no steps"
    )


def _check_steps(
    ledger: Ledger, per_step: Mapping[str, Sequence[SampleRow]], ends: Mapping[int, int], *, stopped: bool
) -> None:
    """Steps count from 0 without a gap, to the end of the last epoch, and change the epoch where it ends."""
    last = max(ends.values(), default=None)
    counts = {label: len(own) for label, own in per_step.items()}
    ledger.hold(
        8, len(set(counts.values())) <= 1, f"metrics of each step have different numbers of samples: {counts!r:.100}"
    )
    for label, own in per_step.items():
        ledger.hold(
            8,
            [sample.step for sample in own] == list(range(len(own))),
            f"{label}: steps are missing or out of order; allowed: 0 to {len(own) - 1}",
        )
        if last is not None:
            right = len(own) >= last if stopped else len(own) == last
            ledger.hold(8, right, f"{label} has {len(own)} samples; the run made {last} steps by its other metrics")
        for epoch, end in ends.items():
            before = sum(sample.epoch is not None and sample.epoch < epoch for sample in own)
            ledger.hold(
                8, before == end, f"{label}: {before} steps are of the first {epoch} epochs; by other metrics: {end}"
            )


def _check_sizes(ledger: Ledger, document: Mapping[str, Any], ends: Mapping[int, int], batches: Batches) -> None:
    """An epoch has as many steps as its data set has batches."""
    size, count = batches.size, batches.train_samples
    if size is None or count is None or batches.mixed or document["resumed"] or not ends:
        ledger.skip("the steps of an epoch: the sizes of its batches are not known")
        return
    dropped = bool((parts_of(document).get("train_sampler_kwargs") or {}).get("drop_last"))
    steps = max(1, count // size) if dropped else -(-count // size)
    taken = [b - a for a, b in pairwise([0, *(ends[epoch] for epoch in sorted(ends))])]
    ledger.hold(
        8,
        set(taken) == {steps} and sorted(ends) == list(range(1, len(ends) + 1)),
        f"epochs have {sorted(set(taken))!r:.60} steps; {count} samples in batches of {size} are {steps}",
    )


def _check_between(ledger: Ledger, label: str, own: Sequence[SampleRow], times: Sequence[float | None]) -> None:
    """A sample at the end of an epoch was taken between the last step before it and the next one."""
    for sample in own:
        step, at = sample.step, sample.time_s
        if step is None or at is None or not 0 < step <= len(times):
            continue
        before, after = times[step - 1], times[step] if step < len(times) else None
        ledger.hold(
            8,
            (before is None or at >= before - _TICK_S) and (after is None or at <= after + _TICK_S),
            f"{label}: a sample was taken at {at:.6g} s after step {step}, which ended at {before} s, and the next at "
            f"{after} s; allowed: a time in between",
        )
