"""Start of the steady state, drift and outliers of a series of times, recomputed from the samples.

Independent of `deep5.measuring.statistics`; the rules are those of `docs/explanation/statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import median, quantiles

__all__ = ["drift_of", "far_out_of", "steady_from"]

_BLOCK, _LEVEL = 5, 0.02
# Under normal noise: standard deviation per median absolute deviation, and that of a median per that of a mean.
_DEVIATION, _OF_MEDIAN = 1.4826, math.sqrt(math.pi / 2)
# Minimum number of samples to show a trend, and outliers.
_FOR_TREND, _FOR_OUTLIERS = 16, 8
_TREND_P, _MOST_PAIRED = 0.01, 1000


def steady_from(times: Sequence[float]) -> tuple[int, bool]:
    """Index of the first sample that counts, and whether a steady state was reached; if not, half of the samples count.

    Args:
        times: Seconds, shape (n,), in order of time, without the first call.
    """
    half = len(times) // 2
    if len(times) < 4 * _BLOCK:
        return half, False
    tail = times[half:]
    level = median(tail)
    noise = median(abs(b - a) for a, b in pairwise(tail)) * _DEVIATION / math.sqrt(2)

    def level_of(block: Sequence[float]) -> bool:
        return abs(median(block) - level) <= max(_LEVEL * level, 3 * _OF_MEDIAN * noise / math.sqrt(len(block)))

    quarter = len(tail) // 2
    if not (level_of(tail[:quarter]) and level_of(tail[quarter:])):
        return half, False
    for begin in range(half):
        if level_of(times[begin : begin + _BLOCK]):
            return begin, True
    return half, True


def drift_of(times: Sequence[float]) -> float:
    """Change from the first to the last sample relative to their median; 0 if Kendall's test at 1 % shows none.

    Args:
        times: Seconds, shape (n,), in order of time.
    """
    from scipy.stats import kendalltau

    if len(times) < _FOR_TREND or max(times) == min(times):
        return 0.0
    if kendalltau(range(len(times)), times).pvalue > _TREND_P:
        return 0.0
    stride = -(-len(times) // _MOST_PAIRED)
    some = list(enumerate(times))[::stride]
    slope = median((late - early) / (b - a) for (a, early), (b, late) in combinations(some, 2))
    return slope * (len(times) - 1) / median(times)


def far_out_of(times: Sequence[float]) -> int:
    """Number of samples more than three interquartile ranges outside the quartiles.

    Args:
        times: Seconds, shape (n,).
    """
    if len(times) < _FOR_OUTLIERS:
        return 0
    low, _, high = quantiles(times, n=4, method="inclusive")
    width = max(high - low, 1e-3 * high)
    return sum(value < low - 3 * width or value > high + 3 * width for value in times)
