"""Recursive doubling: whole buffers are exchanged with partners at distances 1, 2, 4, …"""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator, Reduction
from deep5.distributed.collectives.fold import fold, folded_sent, member_of, rank_of, unfold
from deep5.distributed.collectives.messages import Messages, power_below

__all__ = ["recursive_doubling", "recursive_doubling_sent"]


def recursive_doubling(
    communicator: Communicator, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
) -> None:
    """Combine the buffers of all P ranks in place: log2 P steps, each with a message of the whole buffer.

    The minimum number of steps, so it suits small buffers. The result is bit-identical on all ranks: both partners
    combine the same two buffers, that of the lower ranks first, so that after k steps a group of 2**k ranks holds the
    same values.

    Args:
        communicator: Connects the participating ranks; ranks in excess of a power of two are folded.
        buffer: C-contiguous, the same number of elements and dtype on every rank.
        op: Reduction.
        timeout_s: Time limit of the whole call.

    Raises:
        CommunicationError: The call timed out, or another rank is lost.
        UsageError: The buffer or op is invalid.

    References:
        Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, International
        Journal of High Performance Computing Applications 19(1), 2005, section 4.5.
    """
    messages = Messages(communicator, buffer, op, timeout_s)
    member, whole = fold(messages), buffer.size
    if member is not None:
        received, distance = messages.room(whole), 1
        while distance < power_below(messages.size):
            partner = rank_of(member ^ distance, messages.size)
            arriving = messages.receive_start(received, partner)
            messages.wait(messages.send_start(0, whole, partner), arriving)
            if member & distance:
                messages.higher_first(0, whole, received)
            else:
                messages.lower_first(0, whole, received)
            distance *= 2
    unfold(messages)


def recursive_doubling_sent(rank: int, ranks: int, elements: int) -> int:
    """Elements that a rank sends: the buffer log2 Q times, where Q is the power of two below P; plus the folding."""
    steps = 0 if member_of(rank, ranks) is None else power_below(ranks).bit_length() - 1
    return steps * elements + folded_sent(rank, ranks, elements)
