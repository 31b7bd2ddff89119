"""Rabenseifner's all-reduce: reduce-scatter by recursive halving, all-gather by recursive doubling."""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator, Reduction
from deep5.distributed.collectives.fold import fold, folded_sent, member_of, rank_of, unfold
from deep5.distributed.collectives.messages import Messages, bounds, power_below

__all__ = ["rabenseifner", "rabenseifner_sent"]


def rabenseifner(
    communicator: Communicator, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
) -> None:
    """Combine the buffers of all P ranks in place: 2 log2 P steps, which send a half, a quarter, … of the buffer.

    Sends as little data as the ring, in fewer steps. Partners at distance P/2, P/4, …, 1 split the part they both hold
    until each rank has the result of one of P parts; then the steps run in reverse. The result is bit-identical on all
    ranks: each part is computed on one rank and the others get a copy.

    Args:
        communicator: Connects the participating ranks; ranks in excess of a power of two are folded.
        buffer: C-contiguous, the same number of elements and dtype on every rank.
        op: Reduction.
        timeout_s: Time limit of the whole call.

    Raises:
        CommunicationError: The call timed out, or another rank is lost.
        UsageError: The buffer or op is invalid.

    References:
        Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004, section 2; Thakur, Rabenseifner and
        Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19(1), 2005, section 4.5.
    """
    messages = Messages(communicator, buffer, op, timeout_s)
    member = fold(messages)
    if member is not None:
        _halve_and_double(messages, member)
    unfold(messages)


def _halve_and_double(messages: Messages, member: int) -> None:
    members = power_below(messages.size)
    at = bounds(messages.flat.size, members)
    room = messages.room(-(-messages.flat.size // 2) + 1 if members > 1 else 0)
    distance = members // 2
    while distance:
        # Both hold 2 * `distance` parts from `first` on; this rank keeps the half that contains it.
        first = member & -(2 * distance)
        low, middle, high = at[first], at[first + distance], at[first + 2 * distance]
        partner = rank_of(member ^ distance, messages.size)
        kept, given = ((middle, high), (low, middle)) if member & distance else ((low, middle), (middle, high))
        received = room[: kept[1] - kept[0]]
        arriving = messages.receive_start(received, partner)
        messages.wait(messages.send_start(*given, partner), arriving)
        if member & distance:
            messages.higher_first(*kept, received)
        else:
            messages.lower_first(*kept, received)
        distance //= 2
    distance = 1
    while distance < members:
        first, other = member & -distance, (member ^ distance) & -distance
        partner = rank_of(member ^ distance, messages.size)
        arriving = messages.receive_start(messages.flat[at[other] : at[other + distance]], partner)
        messages.wait(messages.send_start(at[first], at[first + distance], partner), arriving)
        distance *= 2


def rabenseifner_sent(rank: int, ranks: int, elements: int) -> int:
    """Elements that a rank sends: all but its own part, then the part it holds, which doubles; plus the folding.

    2n(P - 1)/P where P is a power of two that divides n.
    """
    member, total = member_of(rank, ranks), folded_sent(rank, ranks, elements)
    if member is None:
        return total
    members = power_below(ranks)
    at, distance = bounds(elements, members), 1
    while distance < members:
        own, other = member & -distance, (member ^ distance) & -distance
        total += at[other + distance] - at[other]  # while halving
        total += at[own + distance] - at[own]  # while doubling
        distance *= 2
    return total
