"""Seeds and orders, derived again from a run's seed: the hash input, and the shuffle of a round.

Independent of `deep5.core.seeds` and of the code that draws the order of a comparison.
"""

from __future__ import annotations

import hashlib

__all__ = ["order_in_round", "seed_for"]


def seed_for(seed: int, *purpose: str | int) -> int:
    """The upper 63 bits of the first 8 bytes of SHA-256 of `seed/purpose/…`."""
    digest = hashlib.sha256("/".join(map(str, (seed, *purpose))).encode()).hexdigest()
    return int(digest[:16], 16) // 2


def order_in_round(seed: int, number: int, count: int, *, mirrored: bool) -> list[int]:
    """The order of the candidates in a round: drawn for it, or for every two rounds and reversed in the second.

    Args:
        seed: Seed of the comparison.
        number: Number of the round, from 0.
        count: Number of candidates.
        mirrored: Whether two rounds share what is drawn.
    """
    from numpy.random import Generator, Philox

    pair, second = divmod(number, 2) if mirrored else (number, 0)
    order = [
        int(place) for place in Generator(Philox(seed_for(seed, "comparison order", pair, count))).permutation(count)
    ]
    return order[::-1] if second else order
