"""The signed-rank test of a comparison, counted in integers, and the significance permitted at each look.

Independent of `deep5.measuring.statistics`. The rule is that of `docs/comparing.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["LOOKS", "allowed_p", "signed_rank"]

LOOKS = (8, 16, 24, 30)
"""Numbers of rounds after which a comparison decides whether to end."""
_ALLOWED = {8: 2 / 256, 16: 3e-4, 24: 3e-4, 30: 1.5e-3}
# For a comparison that ends after another number of rounds.
_OTHERWISE = 3e-4


def allowed_p(rounds: int) -> float:
    """The largest p-value at which a difference may be claimed after this many rounds."""
    return _ALLOWED.get(rounds, _OTHERWISE)


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided exact p-value; ties share their mean rank, and zeros have the lowest ranks and no sign.

    Args:
        differences: Shape (n,).

    References:
        Wilcoxon, 1945; Pratt, 1959.
    """
    sizes = [abs(value) for value in differences]
    # Twice the mean rank: the number of smaller values, of values up to it, and one.
    doubled = {size: sum(s < size for s in sizes) + sum(s <= size for s in sizes) + 1 for size in set(sizes)}
    signed = [(doubled[abs(value)], value > 0) for value in differences if value]
    ways = Counter({0: 1})
    for rank, _ in signed:
        ways += Counter({total + rank: count for total, count in ways.items()})
    positive = sum(rank for rank, is_positive in signed if is_positive)
    extreme = min(positive, sum(rank for rank, _ in signed) - positive)
    as_far = sum(count for total, count in ways.items() if total <= extreme)
    return float(min(Fraction(1), Fraction(2 * as_far, 2 ** len(signed))))
