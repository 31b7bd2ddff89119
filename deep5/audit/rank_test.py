"""The test of a comparison by its drawn order, counted in integers, and the rules of each scheme.

Independent of `deep5.measuring.statistics` and `deep5.measuring.scheme`. The rules are those of
`docs/explanation/statistics.md`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

__all__ = ["Rules", "allowed_p", "order_test", "rules_of", "signed_rank"]


class Rules(NamedTuple):
    """What a comparison's scheme requires.

    Attributes:
        allowed: Largest p-value of a claim, by the number of rounds of each evaluation.
        quick_rounds: Rounds of a quick comparison.
        tossed: Whether each round has its own order, and the test follows it; otherwise one order for two rounds.
    """

    allowed: Mapping[int, float]
    quick_rounds: int
    tossed: bool

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of rounds after which a comparison decides whether to end."""
        return tuple(self.allowed)


_RULES = {
    1: Rules({8: 2 / 256, 16: 3e-4, 24: 3e-4, 30: 1.5e-3}, 1, tossed=False),
    2: Rules({10: 2 / 1024, 16: 5e-4, 24: 1e-3, 30: 6e-3}, 2, tossed=True),
}


def rules_of(document: Mapping[str, Any]) -> Rules:
    """The rules of a comparison; one that names no scheme is of the first."""
    return _RULES[document["statistics"].get("scheme", 1)]


def allowed_p(rules: Rules, rounds: int) -> float:
    """The largest p-value at which a difference may be claimed after this many rounds.

    A comparison may end after any number of rounds.
    """
    return rules.allowed.get(rounds, min(rules.allowed.values()))


def order_test(logs: Sequence[float], earlier: Sequence[bool], rules: Rules) -> float:
    """Two-sided exact p-value of the logarithms of ratios, given which of two candidates ran earlier in each round."""
    if not rules.tossed:
        return signed_rank(logs)
    gains = [log if was else -log for log, was in zip(logs, earlier, strict=True)]
    usual = math.fsum(gains) / len(gains)
    return signed_rank([(gain - usual) if was else (usual - gain) for gain, was in zip(gains, earlier, strict=True)])


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
