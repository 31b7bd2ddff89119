"""Binomial tree: reduce to rank 0, then broadcast."""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator, Reduction
from deep5.distributed.collectives.messages import Messages

__all__ = ["binomial_tree", "binomial_tree_sent"]


def binomial_tree(
    communicator: Communicator, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
) -> None:
    """Combine the buffers of all P ranks in place: 2 ceil(log2 P) steps, each with a message of the whole buffer.

    Works for any number of ranks. The result is bit-identical on all ranks: rank 0 computes it and the others get a
    copy.

    Args:
        communicator: Connects the participating ranks.
        buffer: C-contiguous, the same number of elements and dtype on every rank.
        op: Reduction.
        timeout_s: Time limit of the whole call.

    Raises:
        CommunicationError: The call timed out, or another rank is lost.
        UsageError: The buffer or op is invalid.

    References:
        Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, International
        Journal of High Performance Computing Applications 19(1), 2005, sections 4.2 and 4.4.
    """
    messages = Messages(communicator, buffer, op, timeout_s)
    rank, whole = messages.rank, buffer.size
    children = _children(rank, messages.size)
    received = messages.room(whole if children else 0)
    for child in children:
        messages.wait(messages.receive_start(received, child))
        messages.lower_first(0, whole, received)
    if rank:
        parent = rank & (rank - 1)
        messages.send(0, whole, parent)
        messages.receive(0, whole, parent)
    # The child with the largest subtree first: it has the longest path.
    messages.wait(*[messages.send_start(0, whole, child) for child in reversed(children)])


def _children(rank: int, ranks: int) -> list[int]:
    """Ranks whose number is this one's with one more bit set below its lowest set bit, nearest first."""
    found, distance = [], 1
    while rank + distance < ranks and not rank & distance:
        found.append(rank + distance)
        distance *= 2
    return found


def binomial_tree_sent(rank: int, ranks: int, elements: int) -> int:
    """Elements that a rank sends: the buffer to its parent, if it has one, and to each child."""
    return ((rank > 0) + len(_children(rank, ranks))) * elements
