"""The statistics that pytest-benchmark stores for a benchmark, by its own definitions.

References:
    pytest-benchmark 5.2, `pytest_benchmark/stats.py`; https://en.wikipedia.org/wiki/Quartile (methods 2 and 3).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import Any

__all__ = ["benchmark_statistics"]


def benchmark_statistics(data: Sequence[float], iterations: int) -> dict[str, Any]:
    """All statistics, and the data.

    Args:
        data: Seconds per call; at least one, all finite.
        iterations: Number of calls averaged in each sample.

    >>> found = benchmark_statistics([3.0, 1.0, 2.0], 1)
    >>> found["median"], found["rounds"], found["min"], found["outliers"]
    (2.0, 3, 1.0, '0;0')
    """
    ordered = sorted(data)
    total, rounds, middle = sum(data), len(data), mean(data)
    deviation = stdev(data) if rounds > 1 else 0
    q1, q3 = _quartiles(ordered)
    spread = q3 - q1
    low, high = q1 - 1.5 * spread, q3 + 1.5 * spread
    far = sum(value < middle - deviation or value > middle + deviation for value in data)
    outside = sum(value < low or value > high for value in data)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": middle,
        "stddev": deviation,
        "rounds": rounds,
        "median": median(data),
        "iqr": spread,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": ordered[min(bisect_left(ordered, low), rounds - 1)],
        "hd15iqr": ordered[min(bisect_right(ordered, high), rounds - 1)],
        "ops": rounds / total if total else 0,
        "total": total,
        "data": list(data),
        "iterations": iterations,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    rounds = len(ordered)
    if rounds == 1:
        return ordered[0], ordered[0]
    if rounds % 2 == 0:
        return median(ordered[: rounds // 2]), median(ordered[rounds // 2 :])
    number, rest = divmod(rounds, 4)
    if rest == 1:
        return (
            0.25 * ordered[number - 1] + 0.75 * ordered[number],
            0.75 * ordered[3 * number] + 0.25 * ordered[3 * number + 1],
        )
    return (
        0.75 * ordered[number] + 0.25 * ordered[number + 1],
        0.25 * ordered[3 * number + 1] + 0.75 * ordered[3 * number + 2],
    )
