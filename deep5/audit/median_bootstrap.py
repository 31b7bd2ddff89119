"""The bootstrap distribution of a median, counted in integers, and the noise floor derived from it.

Independent of `deep5.measuring.statistics`, which computes the same by incomplete beta functions: an error in one shows
as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from deep5.core.errors import UsageError

__all__ = ["floor_of_rounds", "ratio_ends"]

# Percentiles of the bootstrap that are stated as a 95 % interval: few values cover less often than they say.
_TAIL = Fraction(15, 2000)
# Two new processes differ by more than the range of those seen, raised to this power, in at most 0.8 % of cases.
_STRETCH = 1.5
_FLOOR = Fraction(95, 100)
# A document may state any number; beyond these, which no comparison reaches, counting would take minutes.
_MOST_VALUES, _MOST_DRAWS = 512, 1000

Cases = list[tuple[float, int]]
"""Values and in how many of the equally probable draws each occurs."""


def ratio_ends(logs: Sequence[float]) -> tuple[float, float]:
    """Ends of the stated 95 % interval of the median ratio.

    Args:
        logs: Logarithms of the rounds' ratios, shape (rounds,).

    Raises:
        UsageError: More than 512 rounds.
    """
    cases = sorted(_medians(sorted(logs), len(logs)))
    return math.exp(_reached(cases, _TAIL)), math.exp(_reached(cases, 1 - _TAIL))


def floor_of_rounds(processes: Sequence[float], rounds: int) -> float:
    """The ratio above 1 that identical candidates show in a comparison of so many rounds.

    Args:
        processes: Seconds of fresh processes of the same code, in the order in which they ran.
        rounds: Of the comparison.

    Raises:
        UsageError: More than 512 processes or 1000 rounds.
    """
    if rounds <= 2:
        # Two rounds each have to exceed the range; a single one has to exceed more than that.
        return math.pow(max(processes) / min(processes), _STRETCH if rounds == 1 else 1.0)
    pairs = [math.log(one / other) for one, other in zip(processes[0::2], processes[1::2], strict=False)]
    cases = _medians(sorted([*pairs, *(-value for value in pairs)]), rounds)
    return math.exp(_reached(sorted((abs(value), weight) for value, weight in cases), _FLOOR))


def _reached(cases: Cases, share: Fraction) -> float:
    """The first value at which so large a share of the draws is reached."""
    needed = share * sum(weight for _, weight in cases)
    total = 0
    for value, weight in cases:
        total += weight
        if total >= needed:
            return value
    return cases[-1][0]


def _medians(ordered: Sequence[float], draws: int) -> Cases:
    """Every median that so many draws with replacement can have, and in how many of all draws it occurs."""
    count = len(ordered)
    if count > _MOST_VALUES or draws > _MOST_DRAWS:
        raise UsageError(
            f"a bootstrap of {count} values in {draws} draws; allowed: at most {_MOST_VALUES} and {_MOST_DRAWS}"
        )
    half = draws // 2
    if draws % 2:
        upto = [_at_least(half + 1, k, count, draws) for k in range(count + 1)]
        return [(ordered[k], upto[k + 1] - upto[k]) for k in range(count)]
    ways = math.comb(draws, half)
    cases = []
    # At least half of the draws are among the k smallest: the lower of the two middle ones is.
    upto = [_at_least(half, k, count, draws) for k in range(count + 1)]
    for i in range(count):
        # Lower x_i and upper x_j: half of the draws are at most x_i, one of them x_i, and half at least x_j.
        lower = (i + 1) ** half - i**half
        both = [ways * lower * ((count - j) ** half - (count - 1 - j) ** half) for j in range(i + 1, count)]
        cases += [((ordered[i] + ordered[j]) / 2, weight) for j, weight in enumerate(both, i + 1)]
        cases.append((ordered[i], upto[i + 1] - upto[i] - sum(both)))
    return cases


def _at_least(least: int, smallest: int, count: int, draws: int) -> int:
    """In how many of all draws at least so many are among the smallest of the values."""
    others = count - smallest
    return sum(math.comb(draws, n) * smallest**n * others ** (draws - n) for n in range(least, draws + 1))
