"""Rule 8: the time between two readings of a comparison is the sample: scaled seconds leave a gap, or do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.timed_samples import TimedSample
from deep5.audit.verdict_rows import BUSY

__all__ = ["Key", "check_on_clock"]

Key = tuple[str, str, int]
"""Candidate, workload and number of the process."""

Series = Mapping[Key, Sequence[TimedSample]]

# Maximum time per sample spent on other work than timing, and the minimum share that is timed.
_BESIDE_S, _SHARE = 5e-3, 0.75
# Training does nothing between two samples but decide whether to end: 0.03 % of a sample, in the median of a process of
# any comparison seen, next to other programs too.
_BETWEEN_S, _BETWEEN = 3e-4, 0.01
# For training, the maximum share of single samples that are much shorter than their interval: the system may preempt
# the process exactly between two readings, but rarely does; in some hundred comparisons next to other programs it never
# did. Inference checks its samples between readings, which may take as long as a sample.
_FAR_S, _FAR, _RARE = 1e-2, 0.5, 0.01
# The same, and a number, where the process reports that other programs used the processors, which requires a warning.
_RARE_BUSY, _FEW_BUSY = 0.05, 2
# Maximum ratio of a sample to the time between its readings, which are microseconds apart. A partial batch counts more
# than it took; where the batches are not known, it was at least half full.
_LONGER, _UNKNOWN = 1.001, 2.0
_INFERENCE = 1.02
# In a shorter series, the median may be a single odd sample.
_SERIES = 5


def check_on_clock(ledger: Ledger, document: Mapping[str, Any], series: Series) -> None:
    """Compare each process's samples with the time between their readings.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
        series: The samples of each process, in order.
    """
    if document["kind"] == "operators":
        ledger.skip("samples against the time between them, for operators: workloads take turns")
        return
    for key, own in series.items():
        taken = _taken(document, own)
        known = taken is not None or document["kind"] == "inference"
        seconds = [s.seconds * s.calls for s in own] if taken is None else taken
        gaps = [
            (after.time_s - before.time_s, busy)
            for (before, after), busy in zip(pairwise(own), seconds[1:], strict=True)
            if before.phase == "steady"
        ]
        if not known:
            ledger.skip("samples against the time between them: the sizes of the batches are not known")
        name = f"{key[0]}, {key[1]}, process {key[2]}"
        if document["kind"] == "training":
            _check_far(ledger, name, gaps, document["processes"], key[2])
        _check_gaps(ledger, name, gaps, document["kind"], known=known)


def _check_far(
    ledger: Ledger, name: str, gaps: Sequence[tuple[float, float]], processes: Sequence[Mapping[str, Any]], number: int
) -> None:
    """Single samples that are much shorter than the time between their readings are rare."""
    far = [gap for gap, busy in gaps if gap - busy > max(_FAR_S, _FAR * gap)]
    machine = processes[number]["machine"] if 0 <= number < len(processes) else None
    shared = ((machine or {}).get("others_share") or 0.0) >= BUSY
    most = max(_FEW_BUSY, _RARE_BUSY * len(gaps)) if shared else _RARE * len(gaps)
    ledger.hold(
        8,
        len(far) <= most,
        f"{name}: {len(far)} of {len(gaps)} samples took less than half of the time between their readings; "
        f"allowed: {most:.3g}",
    )


def _check_gaps(ledger: Ledger, name: str, gaps: Sequence[tuple[float, float]], kind: str, *, known: bool) -> None:
    training = kind != "inference"
    if len(gaps) < _SERIES:
        return
    off = median(gap - busy for gap, busy in gaps)
    length = median(gap for gap, _ in gaps)
    allowed = _BETWEEN_S + _BETWEEN * length if training and known else max(_BESIDE_S, (1 - _SHARE) * length)
    ledger.hold(
        8,
        off <= allowed,
        f"{name}: of {length:.3g} s between two readings {off:.3g} s are not timed; allowed: {allowed:.3g} s",
    )
    longer = median(busy / gap if gap > 0 else float("inf") for gap, busy in gaps)
    most = (_LONGER if training else _INFERENCE) if known else _UNKNOWN
    ledger.hold(
        8,
        longer <= most,
        f"{name}: its samples took longer than the time between their readings (by {longer:.4g}); allowed: {most:g}",
    )


def _taken(document: Mapping[str, Any], own: Sequence[TimedSample]) -> list[float] | None:
    """The seconds of each sample of a training as read from the clock, from those in terms of full batches.

    None where the sizes of the batches cannot be derived from the numbers of samples.
    """
    row = next((row for row in document["candidates"] if row["label"] == own[0].candidate), None)
    if document["kind"] != "training" or row is None or row["observed"] is None:
        return None
    parts = parts_of(document) | row["recipe"]
    count, options = row["observed"].get("train_samples"), parts.get("train_sampler_kwargs") or {}
    size = next((r["batch_size"] for r in document["results"] if r["candidate"] == own[0].candidate), None)
    plain = parts.get("train_sampler", "shuffle") in ("shuffle", "ordered") and options.keys() <= {"drop_last", "seed"}
    if not plain or parts.get("accumulate", 1) != 1:
        return None
    if not isinstance(count, int) or not isinstance(size, int) or count < 1 or size < 1:
        return None
    whole, rest = divmod(count, size)
    steps = whole + (rest > 0 and not (options.get("drop_last") and whole))
    if not steps:
        return None
    found, at = [], 0
    for sample in own:
        seen = _seen(at + sample.calls, steps, count, size) - _seen(at, steps, count, size)
        found.append(sample.seconds * seen / size)
        at += sample.calls
    return found


def _seen(at: int, steps: int, count: int, size: int) -> int:
    """Samples in the first `at` steps, of which each epoch has `steps`."""
    epochs, rest = divmod(at, steps)
    return epochs * min(count, steps * size) + min(rest * size, count)
