"""Schemes: the order of a comparison's rounds, when it is evaluated, and which p-value supports a claim.

A result names the version of its scheme, so that an older one is audited and resumed under its own rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from deep5.core.errors import UsageError

__all__ = ["CURRENT", "SCHEMES", "Scheme", "scheme_of"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Rules of a comparison; order and test belong together, because what is drawn is what the test may permute.

    Attributes:
        version: Number that results are marked with.
        looks: Numbers of rounds at which a running comparison is evaluated; it ends at the first claim.
        shares: Largest p-value that supports a claim, by look; their sum bounds the probability of a false claim.
        quick_rounds: Rounds of a quick comparison.
        pairs: Whether the order is drawn for every two rounds, and reversed in the second. Otherwise each round is
            drawn by itself, and only a quick comparison has a reversed round.
        centered: Whether the test takes the mean difference of the first and the second process from each difference.
        whole_table: Whether verdicts say if they hold for the whole table.
    """

    version: int
    looks: tuple[int, ...]
    shares: tuple[float, ...]
    quick_rounds: int
    pairs: bool
    centered: bool
    whole_table: bool

    def largest_p(self, rounds: int) -> float:
        """Largest p-value at which an evaluation after `rounds` rounds claims a difference.

        The last evaluation of a comparison that ended early may come after any number of rounds; it takes the place of
        a later look.
        """
        return dict(zip(self.looks, self.shares, strict=True)).get(rounds, min(self.shares))

    def sequential_p(self, p: float, rounds: int) -> float:
        """A p-value in terms of the whole comparison: at most `sum(shares)` exactly where it supports a claim.

        The smallest over the looks of a comparison is at most t with a probability of at most t, for identical
        candidates and any t: each look has its part of t.
        """
        return min(1.0, p * sum(self.shares) / self.largest_p(rounds))

    def counts(self, mode: str, most: int) -> tuple[int, ...]:
        """Numbers of rounds after which a comparison with at most `most` rounds is evaluated."""
        return (self.quick_rounds,) if mode == "quick" else tuple(look for look in self.looks if look <= most)

    def reverses(self, mode: str) -> bool:
        """Whether every second round has the reversed order of the one before it."""
        return self.pairs or mode == "quick"


SCHEMES = {
    1: Scheme(
        version=1,
        looks=(8, 16, 24, 30),
        shares=(2 / 2**8, 3e-4, 3e-4, 1.5e-3),
        quick_rounds=1,
        pairs=True,
        centered=False,
        whole_table=False,
    ),
    # Ten rounds can claim only at 2 / 2**10 or not at all. The last look gets most of the remainder, because it finds
    # the small differences. The sum is 0.95 %.
    2: Scheme(
        version=2,
        looks=(10, 16, 24, 30),
        shares=(2 / 2**10, 5e-4, 1e-3, 6e-3),
        quick_rounds=2,
        pairs=False,
        centered=True,
        whole_table=True,
    ),
}
"""By version. Version 1 has no valid test if the noise has a period of a few processes; it remains for old results."""

CURRENT = SCHEMES[2]


def scheme_of(statistics: object) -> Scheme:
    """The scheme that the `statistics` of comparison.json name; those without one are of version 1.

    Raises:
        UsageError: The version is unknown.
    """
    version = statistics.get("scheme", 1) if isinstance(statistics, dict) else None
    if version not in SCHEMES:
        raise UsageError(f"scheme {version!r:.40} of a comparison; allowed: {', '.join(map(str, SCHEMES))}")
    return SCHEMES[version]
