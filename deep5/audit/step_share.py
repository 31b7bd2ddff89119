"""Rule 8: the times of a training's steps account for the time between the losses of two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import PLAYED, parts_of
from deep5.core.plugins import registered
from deep5.core.quantities import percent
from deep5.results.samples_file import SampleRow

__all__ = ["check_step_share"]

# In a shorter series, the median may be a single odd step.
_SERIES = 5
# The minimum share of the time between two losses that step times account for, where the rest is data and deep5's own
# events and metrics, or the time that the rest may take in any case.
_SHARE, _BESIDE_S = 0.05, 2e-3
# The same on a processor, with data in memory that nothing transforms: the lowest share in the median of
# some forty such runs is 0.85, and the longest time of the rest 0.2 ms.
_PLAIN_SHARE, _PLAIN_BESIDE_S = 0.5, 2e-4
# Before the first step come the order of the samples and one batch; a busy machine may delay them.
_BEFORE_S = 1.0
# Events that take no longer, if they are the recipe's.
_LIGHT = {
    "csv_logger", "early_stopping", "progress_bar", "scheduled", "stop_after", "stop_at_accuracy", "stop_on_nan",
    "tensorboard_logger",
}  # fmt: skip
# Events, metrics and data that take next to nothing in a step.
_IDLE = {"early_stopping", "progress_bar", "stop_after", "stop_at_accuracy"}
_READ = {
    "test_accuracy", "test_loss", "training_loss", "wall_clock_time", "time_to_accuracy", "epochs_to_accuracy",
    "throughput", "step_latency", "peak_memory", "utilisation",
}  # fmt: skip
_IN_MEMORY = (
    "synthetic", "block_model", "clicks", "digits", "karate_club", "mnist", "fashion_mnist", "cifar10", "cifar100",
)  # fmt: skip
_BESIDES = ("train_transforms", "prefetch", "scheme")


def check_step_share(
    ledger: Ledger, document: Mapping[str, Any], latencies: Sequence[SampleRow], losses: Sequence[SampleRow]
) -> None:
    """Compare the steps with the times of the losses, of which each was read at the end of its step.

    Args:
        ledger: Receives the findings.
        document: result.json of a finished training run.
        latencies: Samples of the step latency, one per step.
        losses: Those of the training loss, of the same steps.
    """
    ends = [s.time_s or 0.0 for s in losses]
    steps = list(zip(latencies[1:], pairwise(ends), strict=True))
    wrong = [step.step for step, (before, after) in steps if step.value / 1e3 > after - before + 1e-6]
    ledger.hold(8, not wrong, f"the steps {wrong[:5]} took longer than the time between their losses")
    plain = _is_plain(document)
    first_s = latencies[0].value / 1e3
    ledger.hold(
        8,
        first_s <= ends[0] + 1e-6 and (not plain or ends[0] - first_s <= max(_BEFORE_S, _PLAIN_SHARE * ends[0])),
        f"the first step took {first_s:.4g} s, and ended {ends[0]:.4g} s after training began; allowed: most of it",
    )
    # The first step of an epoch follows the evaluation.
    within = [
        (step.value / 1e3, after - before)
        for (step, (before, after)), last in zip(steps, latencies, strict=False)
        if step.epoch == last.epoch and after > before
    ]
    if len(within) < _SERIES:
        return
    if _slow_hooks(document, len(losses)):
        ledger.skip(
            "the step times compared with the losses' times: other events, metrics, checkpoints or an agent take any"
        )
        return
    share, beside = (median(own) for own in zip(*((step / gap, gap - step) for step, gap in within), strict=True))
    least, most_s = (_PLAIN_SHARE, _PLAIN_BESIDE_S) if plain else (_SHARE, _BESIDE_S)
    ledger.hold(
        8,
        share >= least or beside <= most_s,
        f"of the time between the losses of two steps {percent(share, 2)} are step time; allowed: at least "
        f"{percent(least)}, the rest for data and events",
    )


def _names(document: Mapping[str, Any]) -> set[Any]:
    events = (document["components"] or {}).get("events") or ()
    return {event.get("event") if isinstance(event, Mapping) else event for event in events}


def _is_plain(document: Mapping[str, Any]) -> bool:
    """Whether between two steps nothing happens but the copy of a batch, and some numbers are stored."""
    parts = parts_of(document)
    return (
        str((document["framework"] or {}).get("device")) == "cpu"
        and parts.get("dataset") in _IN_MEMORY
        and parts.get("train_sampler", "shuffle") in ("shuffle", "ordered")
        and not any(parts.get(key) for key in _BESIDES)
        and int(document.get("ranks", 1)) == 1
        and not document["resumed"]
        and not (document["checkpoints"] or {}).get("written", 0)
        and _names(document) <= _IDLE
        and {row["name"] for row in document["metrics"]} <= _READ
    )


def _slow_hooks(document: Mapping[str, Any], steps: int) -> bool:
    """Whether something else than deep5's light events runs in many steps, or an agent plays: it may take any time."""
    written = (document["checkpoints"] or {}).get("written", 0)
    known = registered("metrics")
    own = {row["name"] for row in document["metrics"]}
    return (
        parts_of(document).get("train_sampler") in PLAYED
        or not _names(document) <= {*_LIGHT, "checkpointer"}
        or 4 * written > steps
        or any(name not in known or not known[name].value.startswith("deep5.") for name in own)
    )
