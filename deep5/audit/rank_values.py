"""Rule 9 for values of all ranks together: the contribution of each rank's samples, and the derived value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deep5.audit.batches import Batches
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.results.samples_file import SampleRow

__all__ = ["COMBINED", "SUMMED", "OfAll", "Part", "check_of_all", "part_of_rank"]

SUMMED = ("training_loss", "throughput")
"""Metrics whose value combines samples and batch sizes, for any number of ranks."""

# Tolerance for sums of some thousand products in another order.
_ROUNDING = 1e-9
# Data sets with one label per sample, so that hits are integers.
_ONE_LABEL = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")

Rows = Sequence[SampleRow]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The contribution of one rank to a value of all ranks.

    Attributes:
        low: Lower bound: the smallest sample that may contribute to the value.
        high: Upper bound: the largest one.
        total: The numerator, summed over ranks; None if it cannot be derived from what is stored.
        count: The denominator: summed over ranks, or the maximum time of all.
    """

    low: float
    high: float
    total: float | None = None
    count: float | None = None


OfAll = Mapping[str, Sequence[Part | None]]
"""By metric, the parts of all ranks in rank order; None for a rank without a contribution."""


def part_of_rank(name: str, own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """The contribution of a rank to the value of a metric.

    Args:
        name: Name of the metric, one of `SUMMED` or `COMBINED`.
        own: The rank's samples of it.
        samples: All of the rank's samples, by metric.
        batches: The rank's batch sizes.
        steps: Number of steps that the rank completed; None if unknown.

    Returns:
        The part; None if the rank has no sample that could contribute to the value.
    """
    return _PARTS[name](own, samples, batches, steps) if own else None


def _training_loss(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """Loss of the last epoch, weighted by batch size; batches without a sample of this rank do not count."""
    losses = [sample.value for sample in own if sample.epoch == own[-1].epoch]
    size, count = batches.size, batches.train_samples
    if size is None or count is None or batches.mixed or -(-count // size) != len(losses):
        return Part(low=min(losses), high=max(losses))
    full, last = batches.part(size), batches.part(count - size * (len(losses) - 1))
    sizes = [full] * (len(losses) - 1) + [last]
    met = [(loss, held) for loss, held in zip(losses, sizes, strict=True) if held]
    if not met:
        return None
    return Part(
        low=min(loss for loss, _ in met),
        high=max(loss for loss, _ in met),
        total=sum(loss * held for loss, held in met),
        count=sum(sizes),
    )


def _training_accuracy(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """Accuracy of the last epoch, weighted by its samples."""
    last = own[-1]
    if steps != last.step:
        # The run stopped within an epoch, for which there is no sample.
        return Part(low=0.0, high=100.0)
    taken = (last.step or 0) - (own[-2].step or 0 if len(own) > 1 else 0)
    sizes = batches.in_epoch(taken)
    count = 0 if sizes is None else sizes[0] * (taken - 1) + sizes[1]
    right = last.value * count / 100
    # A sequence has several labels, and ranks may have different numbers per sample.
    known = parts_of(batches.document).get("dataset") in _ONE_LABEL or abs(right - round(right)) < 1e-6
    if not count or not known:
        return Part(low=last.value, high=last.value)
    return Part(low=last.value, high=last.value, total=100 * right, count=count)


def _throughput(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """Samples of all epochs and their seconds, both derived from the per-epoch throughputs."""
    values = [sample.value for sample in own]
    counts, low, high = batches.counted(own), min(values), max(values)
    if counts is None:
        return Part(low=low, high=high)
    # Epochs that only have first steps count only if there are no others.
    seconds = sum(count / value for count, value in zip(counts, values, strict=True) if count)
    return Part(low=low, high=high, total=sum(counts), count=seconds)


def _peak_memory(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    most = max(sample.value for sample in own)
    return Part(low=most, high=most)


def _communication_volume(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    total = sum(sample.value for sample in own)
    return Part(low=total, high=total, total=total)


def _communication_share(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """The share of each step, weighted by the step's time, if the latencies provide it."""
    low, high = min(sample.value for sample in own), max(sample.value for sample in own)
    took = {sample.step: sample.value for sample in samples.get("step_latency", ())}
    if not all(sample.step in took for sample in own):
        return Part(low=low, high=high)
    waited = sum(sample.value * took[sample.step] for sample in own)
    return Part(low=low, high=high, total=waited, count=sum(took[sample.step] for sample in own))


def _communication_overlap(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """The overlap of each step, weighted by its communication time, of which the waited time is the rest."""
    low, high = min(sample.value for sample in own), max(sample.value for sample in own)
    waited = _waited_of(samples)
    if not all(sample.step in waited and sample.value < 100 for sample in own):
        return Part(low=low, high=high)
    took = [waited[sample.step] / (1 - sample.value / 100) for sample in own]
    return Part(
        low=low,
        high=high,
        total=sum(sample.value * each for sample, each in zip(own, took, strict=True)),
        count=sum(took),
    )


def _waited_of(samples: Mapping[str, Rows]) -> dict[int | None, float]:
    """Waiting time of a rank by step, if share and latency provide it: in percent of the latency's unit."""
    took = {sample.step: sample.value for sample in samples.get("step_latency", ())}
    shares = samples.get("communication_share", ())
    return {sample.step: sample.value * took[sample.step] for sample in shares if sample.step in took}


def _staleness(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    ages = [sample.value for sample in own]
    return Part(low=min(ages), high=max(ages), total=sum(ages), count=len(ages))


def _load_imbalance(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    return Part(low=min(sample.value for sample in own), high=max(sample.value for sample in own))


def check_of_all(ledger: Ledger, label: str, stored: float, name: str, parts: Sequence[Part | None]) -> None:
    """Compare a value of all ranks with their contributions.

    Args:
        ledger: Receives the findings.
        label: Label of the metric.
        stored: Its value.
        name: Name of the metric, one of `SUMMED` or `COMBINED`.
        parts: Parts of all ranks, in rank order.
    """
    own = [part for part in parts if part is not None]
    if ledger.hold(9, bool(own), f"{label} has a value and no samples"):
        _JOINED[name](ledger, label, stored, own, len(parts))


def _between(ledger: Ledger, label: str, stored: float, low: float, high: float, what: str) -> None:
    slack = _ROUNDING * max(abs(low), abs(high))
    # NaN if the training diverged.
    ledger.hold(
        9,
        not low - slack > stored and not stored > high + slack,
        f"the value of {label} is beyond {what}; stored {stored!r}, recomputed: {low!r} to {high!r}",
    )


def _mean(what: str, unknown: str) -> Callable[..., None]:
    """A mean over all ranks, which is between their samples."""

    def check(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
        _between(ledger, label, stored, min(part.low for part in parts), max(part.high for part in parts), what)
        sums = _sums(parts)
        if sums is None:
            ledger.skip(f"the value of {label}, except its range: {unknown}")
        elif sums[1]:
            ledger.same(9, f"the value of {label}", stored, sums[0] / sums[1])

    return check


def _sums(parts: Sequence[Part]) -> tuple[float, float] | None:
    found = [(part.total, part.count) for part in parts if part.total is not None and part.count is not None]
    if len(found) < len(parts):
        return None
    return sum(total for total, _ in found), sum(count for _, count in found)


def _of_slowest(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    """The samples of all ranks, divided by the time of the slowest rank."""
    low, high = min(part.low for part in parts), sum(part.high for part in parts)
    _between(ledger, label, stored, low, high, "those of all epochs")
    sums = _sums(parts)
    if sums is None:
        ledger.skip(f"the value of {label}, except its range: the number of samples per epoch is not known")
    elif (longest := max(part.count or 0.0 for part in parts)) > 0:
        ledger.same(9, f"the value of {label}", stored, sums[0] / longest)


def _largest(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    ledger.same(9, f"the value of {label}", stored, max(part.high for part in parts))


def _sum(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    ledger.same(9, f"the value of {label}, by all ranks", stored, sum(part.total or 0.0 for part in parts))


def _imbalance(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    """All ranks report the same value; if only one rank works, it works as many times the mean as there are ranks."""
    for part in parts:
        ledger.same(9, f"the value of {label}, as each rank received it", [stored, stored], [part.low, part.high])
    _between(ledger, label, stored, 0.0, 100.0 * (ranks - 1), f"what {ranks} ranks allow")
    ledger.skip(f"the value of {label}, except its range: the working times of single ranks are not stored")


_PARTS: Mapping[str, Callable[[Rows, Mapping[str, Rows], Batches, int | None], Part | None]] = {
    "training_loss": _training_loss,
    "throughput": _throughput,
    "training_accuracy": _training_accuracy,
    "peak_memory": _peak_memory,
    "communication_volume": _communication_volume,
    "communication_share": _communication_share,
    "communication_overlap": _communication_overlap,
    "staleness": _staleness,
    "load_imbalance": _load_imbalance,
}
COMBINED = tuple(_PARTS)
"""Metrics whose value is of all ranks together."""

_JOINED: Mapping[str, Callable[..., None]] = {
    "training_loss": _mean("the losses of the last epoch", "the sizes of its batches are not known"),
    "throughput": _of_slowest,
    "training_accuracy": _mean("those of the ranks", "the number of labels per rank is not known"),
    "peak_memory": _largest,
    "communication_volume": _sum,
    "communication_share": _mean("those of the steps", "the times of the steps are not stored"),
    "communication_overlap": _mean("those of the steps", "the communication times of the steps are not stored"),
    "staleness": _mean("those of the updates", "every update has one"),
    "load_imbalance": _imbalance,
}
