"""Rule 9 for values of all ranks together: what the samples of each rank add to one, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deep5.audit.batches import Batches
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.results.samples_file import SampleRow

__all__ = ["COMBINED", "SUMMED", "OfAll", "Part", "check_of_all", "part_of_rank"]

SUMMED = ("training_loss", "throughput")
"""Metrics whose value is put together from samples and the sizes of batches, whatever the number of ranks."""

# Sums of some thousand products, in another order.
_ROUNDING = 1e-9
# Data sets whose samples have one label each, so that hits are whole numbers of samples.
_ONE_LABEL = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")

Rows = Sequence[SampleRow]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank adds to a value of all.

    Attributes:
        low: The smallest sample that the value may come from.
        high: The largest one.
        total: What is summed over ranks; None where it does not follow from what is stored.
        count: What it is divided by: a sum over ranks, or the longest time of all.
    """

    low: float
    high: float
    total: float | None = None
    count: float | None = None


OfAll = Mapping[str, Sequence[Part | None]]
"""By metric, the parts of all ranks in their order; None for one that adds nothing."""


def part_of_rank(name: str, own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """What a rank adds to the value of a metric.

    Args:
        name: Of the metric, one of `SUMMED` or `COMBINED`.
        own: The rank's samples of it.
        samples: All of the rank's, by metric.
        batches: The rank's.
        steps: That it has done; None where nobody says it.

    Returns:
        The part; None where the rank has no sample that the value could come from.
    """
    return _PARTS[name](own, samples, batches, steps) if own else None


def _training_loss(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """Of the last epoch, weighted by the sizes of batches; where this rank had no sample, it counts for nothing."""
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
    """Of the last epoch, weighted by its samples."""
    last = own[-1]
    if steps != last.step:
        # It was stopped within an epoch, of which there is no sample.
        return Part(low=0.0, high=100.0)
    taken = (last.step or 0) - (own[-2].step or 0 if len(own) > 1 else 0)
    sizes = batches.in_epoch(taken)
    count = 0 if sizes is None else sizes[0] * (taken - 1) + sizes[1]
    right = last.value * count / 100
    # A sequence has several labels, of which one rank may have more a sample than another.
    known = parts_of(batches.document).get("dataset") in _ONE_LABEL or abs(right - round(right)) < 1e-6
    if not count or not known:
        return Part(low=last.value, high=last.value)
    return Part(low=last.value, high=last.value, total=100 * right, count=count)


def _throughput(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """Samples of all epochs and their seconds, both as the epochs' own throughputs tell them."""
    values = [sample.value for sample in own]
    counts, low, high = batches.counted(own), min(values), max(values)
    if counts is None:
        return Part(low=low, high=high)
    # Epochs of nothing but first steps count only where there are no others.
    seconds = sum(count / value for count, value in zip(counts, values, strict=True) if count)
    return Part(low=low, high=high, total=sum(counts), count=seconds)


def _peak_memory(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    most = max(sample.value for sample in own)
    return Part(low=most, high=most)


def _communication_volume(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    total = sum(sample.value for sample in own)
    return Part(low=total, high=total, total=total)


def _communication_share(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """The share of each step, weighted by what the step took, where the latencies tell it."""
    low, high = min(sample.value for sample in own), max(sample.value for sample in own)
    took = {sample.step: sample.value for sample in samples.get("step_latency", ())}
    if not all(sample.step in took for sample in own):
        return Part(low=low, high=high)
    waited = sum(sample.value * took[sample.step] for sample in own)
    return Part(low=low, high=high, total=waited, count=sum(took[sample.step] for sample in own))


def _communication_overlap(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    """The overlap of each step, weighted by what its communication took: what was waited is so much less than all."""
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
    """What a rank waited in its steps, by step, where share and latency tell it: in percent of the latency's unit."""
    took = {sample.step: sample.value for sample in samples.get("step_latency", ())}
    shares = samples.get("communication_share", ())
    return {sample.step: sample.value * took[sample.step] for sample in shares if sample.step in took}


def _staleness(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    ages = [sample.value for sample in own]
    return Part(low=min(ages), high=max(ages), total=sum(ages), count=len(ages))


def _load_imbalance(own: Rows, samples: Mapping[str, Rows], batches: Batches, steps: int | None) -> Part | None:
    return Part(low=min(sample.value for sample in own), high=max(sample.value for sample in own))


def check_of_all(ledger: Ledger, label: str, stored: float, name: str, parts: Sequence[Part | None]) -> None:
    """Hold a value of all ranks against what each of them adds to it.

    Args:
        ledger: Takes the findings.
        label: Of the metric.
        stored: Its value.
        name: Of the metric, one of `SUMMED` or `COMBINED`.
        parts: Of all ranks, in their order.
    """
    own = [part for part in parts if part is not None]
    if ledger.hold(9, bool(own), f"{label} has a value and no samples"):
        _JOINED[name](ledger, label, stored, own, len(parts))


def _between(ledger: Ledger, label: str, stored: float, low: float, high: float, what: str) -> None:
    slack = _ROUNDING * max(abs(low), abs(high))
    # Of a training that diverged, these are no numbers.
    ledger.hold(
        9,
        not low - slack > stored and not stored > high + slack,
        f"the value of {label} is beyond {what}; stored {stored!r}, follows something between {low!r} and {high!r}",
    )


def _mean(what: str, unknown: str) -> Callable[..., None]:
    """A mean over all ranks, which is between their samples."""

    def check(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
        _between(ledger, label, stored, min(part.low for part in parts), max(part.high for part in parts), what)
        sums = _sums(parts)
        if sums is None:
            ledger.skip(f"the value of {label}, but for its range: {unknown}")
        elif sums[1]:
            ledger.same(9, f"the value of {label}", stored, sums[0] / sums[1])

    return check


def _sums(parts: Sequence[Part]) -> tuple[float, float] | None:
    found = [(part.total, part.count) for part in parts if part.total is not None and part.count is not None]
    if len(found) < len(parts):
        return None
    return sum(total for total, _ in found), sum(count for _, count in found)


def _of_slowest(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    """The samples of all, in the time of the rank that took longest."""
    low, high = min(part.low for part in parts), sum(part.high for part in parts)
    _between(ledger, label, stored, low, high, "those of all epochs")
    sums = _sums(parts)
    if sums is None:
        ledger.skip(f"the value of {label}, but for its range: how many samples each epoch had is not known")
    elif (longest := max(part.count or 0.0 for part in parts)) > 0:
        ledger.same(9, f"the value of {label}", stored, sums[0] / longest)


def _largest(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    ledger.same(9, f"the value of {label}", stored, max(part.high for part in parts))


def _sum(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    ledger.same(9, f"the value of {label}, by all ranks", stored, sum(part.total or 0.0 for part in parts))


def _imbalance(ledger: Ledger, label: str, stored: float, parts: Sequence[Part], ranks: int) -> None:
    """Every rank was told the same; one that works alone works so many times as long as the mean of all."""
    for part in parts:
        ledger.same(9, f"the value of {label}, as each rank was told it", [stored, stored], [part.low, part.high])
    _between(ledger, label, stored, 0.0, 100.0 * (ranks - 1), f"what {ranks} ranks allow")
    ledger.skip(f"the value of {label}, but for its range: the times that a rank itself worked are not stored")


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
    "training_accuracy": _mean("those of the ranks", "how many labels each rank had is not known"),
    "peak_memory": _largest,
    "communication_volume": _sum,
    "communication_share": _mean("those of the steps", "how long the steps took is not stored"),
    "communication_overlap": _mean("those of the steps", "how long communication took in the steps is not stored"),
    "staleness": _mean("those of the updates", "every update has one"),
    "load_imbalance": _imbalance,
}
