"""Folding: extends algorithms for a power of two of ranks to any number, by merging excess ranks into neighbors."""

from __future__ import annotations

from deep5.distributed.collectives.messages import Messages, power_below

__all__ = ["fold", "folded_sent", "member_of", "rank_of", "unfold"]


def member_of(rank: int, ranks: int) -> int | None:
    """A rank's number among the active ranks, in rank order; None for a folded rank.

    With r ranks in excess of a power of two, the first 2r ranks form pairs: the even rank sends its values to the odd
    one and is idle until the end.

    >>> [member_of(rank, 5) for rank in range(5)]
    [None, 0, 1, 2, 3]
    """
    excess = ranks - power_below(ranks)
    if rank < 2 * excess:
        return rank // 2 if rank % 2 else None
    return rank - excess


def rank_of(member: int, ranks: int) -> int:
    """The rank with this number among the active ranks.

    >>> [rank_of(member, 5) for member in range(4)]
    [1, 2, 3, 4]
    """
    excess = ranks - power_below(ranks)
    return 2 * member + 1 if member < excess else member + excess


def fold(messages: Messages) -> int | None:
    """Combine the pairs; return this rank's number among the active ranks, None if it only waits for the result.

    References:
        Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, International
        Journal of High Performance Computing Applications 19(1), 2005, section 4.5. Whole buffers are folded, not
        halves.
    """
    rank, whole = messages.rank, messages.flat.size
    if rank < 2 * (messages.size - power_below(messages.size)):
        if rank % 2 == 0:
            messages.send(0, whole, rank + 1)
        else:
            received = messages.room(whole)
            messages.wait(messages.receive_start(received, rank - 1))
            messages.higher_first(0, whole, received)
    return member_of(rank, messages.size)


def unfold(messages: Messages) -> None:
    """Copy the result to the folded ranks."""
    rank, whole = messages.rank, messages.flat.size
    if rank < 2 * (messages.size - power_below(messages.size)):
        if rank % 2 == 0:
            messages.receive(0, whole, rank + 1)
        else:
            messages.send(0, whole, rank - 1)


def folded_sent(rank: int, ranks: int, elements: int) -> int:
    """Elements that a rank sends for folding and unfolding: the whole buffer once if it belongs to a pair."""
    return elements if rank < 2 * (ranks - power_below(ranks)) else 0
