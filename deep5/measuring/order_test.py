"""The test of a comparison by its drawn order, and which p-values of a table hold together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from deep5.measuring.scheme import CURRENT, Scheme

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["holm", "order_p", "signed_rank_p"]

_WHOLE_TABLE = 0.05


def order_p(ratios: Sequence[float], first: Sequence[bool] | None, scheme: Scheme = CURRENT) -> float:
    """Exact two-sided p-value of a difference between two candidates, from the order that was drawn in each round.

    If the candidates are identical, the times of a round's first and second process do not depend on which of them came
    first, and that was a coin toss. The signed-rank test is applied to the sign of the toss times (log first - log
    second - the mean of these differences over the rounds). Its distribution over the tosses is that of the signed-rank
    statistic, for any noise, and the mean cancels what the position or a trend does to every round. In the direction of
    the tosses this is the ratio, shifted by the mean where the candidate came second.

    Args:
        ratios: Logarithms of candidate time / baseline time, by round.
        first: Whether the candidate's process ran first, by round; None: unknown, and no mean is taken. The test is as
            exact, and finds less under a trend.
        scheme: Rules of the comparison; without `centered`, no mean is taken.

    References:
        Fisher, The Design of Experiments, 1935, section 21 (a test by the randomization that was carried out).
    """
    if first is None or not scheme.centered:
        return signed_rank_p(ratios)
    signs = [1.0 if value else -1.0 for value in first]
    differences = [sign * ratio for sign, ratio in zip(signs, ratios, strict=True)]
    mean = math.fsum(differences) / len(differences)
    return signed_rank_p([sign * (value - mean) for sign, value in zip(signs, differences, strict=True)])


def signed_rank_p(differences: Sequence[float]) -> float:
    """Two-sided exact p-value of the signed-rank test: probability that random signs are at least as one-sided.

    Ties share the mean of their ranks. A zero difference takes part in the ranking and has no sign. The distribution is
    therefore that of the given differences.

    Args:
        differences: Shape (n,), such as logarithms of ratios.

    References:
        Wilcoxon, 1945; Pratt, Remarks on Zeros and Ties in the Wilcoxon Signed Rank Procedures, 1959.

    >>> signed_rank_p([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    0.0078125
    """
    import numpy as np
    from scipy.stats import rankdata

    values = np.asarray(differences, np.float64)
    # Doubled, shared ranks are integers too.
    ranks = np.rint(2 * rankdata(np.abs(values))).astype(int)
    ranks, signs = ranks[values != 0], np.sign(values[values != 0])
    positive = int(ranks[signs > 0].sum())
    shares = _shares_of_sums(tuple(sorted(ranks.tolist())))
    return min(1.0, 2 * float(shares[min(positive, shares.size - 1 - positive)]))


@lru_cache(maxsize=64)
def _shares_of_sums(ranks: tuple[int, ...]) -> NDArray[np.float64]:
    """By sum, the share of all subsets of the ranks with at most that sum."""
    import numpy as np

    ways = np.zeros(sum(ranks) + 1)
    ways[0] = 1.0
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    shares: NDArray[np.float64] = np.cumsum(ways) / ways.sum()
    return shares


def holm(values: Sequence[float | None]) -> list[bool]:
    """Which p-values of a table hold together: no more than 5 % of tables have a wrong one among them.

    Args:
        values: One per comparison, each valid by itself; None: without a test.

    References:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.

    >>> holm([0.001, 0.06, None, 0.02])
    [True, False, False, True]
    """
    holds = [False] * len(values)
    tested = sorted((value, place) for place, value in enumerate(values) if value is not None)
    for number, (value, place) in enumerate(tested):
        if value > _WHOLE_TABLE / (len(tested) - number):
            break
        holds[place] = True
    return holds
