"""Medians, rates and shares of operators, derived from their times independently of `deep5.bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from deep5.audit.order_statistics import CONFIDENCE, median_ends

__all__ = ["middle", "rates"]


def middle(processes: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Median, its interval, and the number of samples, with the names of operators.json.

    Samples of one process depend on each other: with several processes, each counts by its median.

    Args:
        processes: Seconds per call, by process.
    """
    values = processes[0] if len(processes) == 1 else [median(times) for times in processes if times]
    ends = median_ends(values)
    low, high = (None, None) if ends is None else ends
    return {
        "median_s": median(values),
        "low_s": low,
        "high_s": high,
        "confidence": None if ends is None else CONFIDENCE,
        "samples": sum(len(times) for times in processes),
    }


def rates(
    seconds: float, operations: int | None, moved_bytes: int | None, roofline: Mapping[str, Any]
) -> dict[str, float | None]:
    """Rates of a call and their shares of the peaks, with the names of operators.json; None if unknown.

    By the roofline model, o operations on b bytes take at least o / P_o and at least b / P_b seconds, where P_o and P_b
    are the peaks. The share of the roofline is the larger of the two, divided by the measured time.

    Args:
        seconds: Seconds per call.
        operations: Operations of a call.
        moved_bytes: Bytes that a call moves.
        roofline: The peaks `flop_s`, None if unknown, and `byte_s`.

    References:
        Williams, Waterman and Patterson, Roofline: an insightful visual performance model, CACM 52(4), 2009.
    """
    found: dict[str, float | None] = dict.fromkeys(("gflop_s", "gbyte_s", "share_of_peak", "share_of_roofline"))
    if moved_bytes:
        found["gbyte_s"] = moved_bytes * 1e-9 / seconds
    if operations is None:
        return found
    found["gflop_s"] = operations * 1e-9 / seconds
    if roofline["flop_s"] is None:
        return found
    least_s = operations / roofline["flop_s"]
    found["share_of_peak"] = least_s / seconds
    if moved_bytes and operations:
        found["share_of_roofline"] = max(least_s, moved_bytes / roofline["byte_s"]) / seconds
    return found
