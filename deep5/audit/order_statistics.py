"""Intervals of medians, recomputed by binomial counts in exact arithmetic, independent of `deep5.measuring`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["CONFIDENCE", "excess_over_noise", "median_ends"]

CONFIDENCE = 0.95
"""The confidence of every interval that deep5 stores."""
_MISSED = Fraction(5, 100)
# Below six samples even the whole range covers the median in fewer than 95 % of cases.
_FEWEST = 6


def median_ends(samples: Sequence[float]) -> tuple[float, float] | None:
    """Ends of the 95 % interval of the median by order statistics; None for fewer than six samples.

    The interval from the k-th smallest to the k-th largest sample misses the median in 2 (C(n, 0) + … + C(n, k - 1)) of
    2^n cases; k is the largest rank for which that is at most 5 %.

    Args:
        samples: Shape (n,), any unit; may contain infinities.
    """
    count = len(samples)
    if count < _FEWEST:
        return None
    rank, below = 0, 0
    while 2 * (below + math.comb(count, rank)) <= _MISSED * 2**count:
        below += math.comb(count, rank)
        rank += 1
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def excess_over_noise(candidate: Sequence[float], baseline: Sequence[float], again: Sequence[float]) -> float | None:
    """Upper end of the interval of candidate / baseline, minus half the width of that of the baseline against itself.

    Args:
        candidate: Seconds per round, shape (n,).
        baseline: Seconds of the same rounds.
        again: Seconds of the same rounds for the second instance of the baseline.

    Returns:
        The excess; None for fewer than six rounds.
    """
    ends = median_ends([one / other for one, other in zip(candidate, baseline, strict=True)])
    noise = median_ends([one / other for one, other in zip(again, baseline, strict=True)])
    return None if ends is None or noise is None else ends[1] - (noise[1] - noise[0]) / 2
