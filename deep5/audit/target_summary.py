"""Times to a target over the seeds, summarized independently of `deep5.results.time_to_target`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from deep5.audit.order_statistics import CONFIDENCE, median_ends
from deep5.results.time_to_target import Reached

__all__ = ["target_summary"]


def target_summary(reached: Mapping[int, Reached], *, timed: bool = True) -> dict[str, Any]:
    """What study.json states about a candidate's way to the target.

    Args:
        reached: The cost of each run by seed; infinite if it did not reach the target.
        timed: Whether runs followed each other on one machine; otherwise it states no seconds.
    """
    measures = {
        "seconds": {seed: own.seconds for seed, own in reached.items()},
        "epochs": {seed: own.epochs for seed, own in reached.items()},
        "steps": {seed: own.steps for seed, own in reached.items()},
    }
    if not timed:
        del measures["seconds"]
    found: dict[str, Any] = {}
    for name, values in measures.items():
        ends = median_ends(list(values.values()))
        interval = None
        if ends is not None:
            interval = {"low": _written(ends[0]), "high": _written(ends[1]), "confidence": CONFIDENCE}
        found[name] = {
            "values": {str(seed): _written(value) for seed, value in values.items()},
            "median": _written(median(values.values())) if values else None,
            "interval": interval,
        }
    found["reasons"] = {str(seed): own.reason for seed, own in reached.items() if own.reason is not None}
    return found


def _written(value: float) -> float | str:
    """JSON has no infinity."""
    return "inf" if value == math.inf else value
