"""The bootstrap distribution of a median, counted in integers, and the noise floor derived from it.

Independent of `deep5.measuring.statistics`, which computes the same by incomplete beta functions: an error in one shows
as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["floor_of_rounds", "ratio_ends"]

# Tail percentile of the bootstrap for the stated 95 % interval: with few values, coverage is below the nominal one.
_TAIL = Fraction(15, 2000)
# Two new processes differ by more than the observed range raised to this power in at most 0.8 % of cases.
_STRETCH = 1.5
_FLOOR = Fraction(95, 100)


def ratio_ends(logs: Sequence[float]) -> tuple[float, float]:
    """Ends of the stated 95 % interval of the median ratio.

    Args:
        logs: Logarithms of the rounds' ratios, shape (rounds,).
    """
    cases = sorted(_medians(sorted(logs), len(logs)))
    return math.exp(_reached(cases, _TAIL)), math.exp(_reached(cases, 1 - _TAIL))


def floor_of_rounds(processes: Sequence[float], rounds: int) -> float:
    """The ratio above 1 that identical candidates show in a comparison of `rounds` rounds.

    Args:
        processes: Seconds of fresh processes of the same code, in the order in which they ran.
        rounds: Number of rounds of the comparison.
    """
    if rounds == 1:
        return math.pow(max(processes) / min(processes), _STRETCH)
    pairs = [math.log(one / other) for one, other in zip(processes[0::2], processes[1::2], strict=False)]
    cases = _medians(sorted([*pairs, *(-value for value in pairs)]), rounds)
    return math.exp(_reached(sorted((abs(value), weight) for value, weight in cases), _FLOOR))


def _reached(cases: Sequence[tuple[float, Fraction]], share: Fraction) -> float:
    """The first value at which the cases reach this share."""
    total = Fraction(0)
    for value, weight in cases:
        total += weight
        if total >= share:
            return value
    return cases[-1][0]


def _medians(ordered: Sequence[float], draws: int) -> list[tuple[float, Fraction]]:
    """Every possible median of `draws` draws with replacement, with its probability."""
    count = len(ordered)
    every = count**draws
    if draws % 2:
        # At most x_k if more than half of the draws are among the k smallest.
        upto = [
            sum(math.comb(draws, n) * k**n * (count - k) ** (draws - n) for n in range(draws // 2 + 1, draws + 1))
            for k in range(count + 1)
        ]
        return [(ordered[k], Fraction(upto[k + 1] - upto[k], every)) for k in range(count)]
    half = draws // 2
    cases = []
    for i in range(count):
        # Both middle draws are x_i: fewer than half are smaller, and fewer than half are larger.
        same = sum(
            math.comb(draws, a) * math.comb(draws - a, b) * i**a * (count - 1 - i) ** b
            for a in range(half)
            for b in range(half)
        )
        cases.append((ordered[i], Fraction(same, every)))
        # The lower one is x_i and the upper one x_j: half are at most x_i, one of them x_i, and half at least x_j.
        lower = (i + 1) ** half - i**half
        for j in range(i + 1, count):
            upper = (count - j) ** half - (count - 1 - j) ** half
            middle = (ordered[i] + ordered[j]) / 2
            cases.append((middle, Fraction(math.comb(draws, half) * lower * upper, every)))
    return cases
