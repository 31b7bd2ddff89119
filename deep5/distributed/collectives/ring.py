"""Ring all-reduce: reduce-scatter and all-gather, each with messages to one neighbor only."""

from __future__ import annotations

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator, Reduction
from deep5.distributed.collectives.messages import Messages, bounds

__all__ = ["ring", "ring_sent"]


def ring(
    communicator: Communicator, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
) -> None:
    """Combine the buffers of all P ranks in place: 2(P - 1) steps, each with a message of 1/P of the buffer.

    Part p starts at rank p and goes around once; each rank adds its values. The last rank, p - 1, holds the part's
    result, which then goes around once more. The result is bit-identical on all ranks: each part is combined in one
    order, on one rank at a time, and the others get a copy.

    Args:
        communicator: Connects the participating ranks.
        buffer: C-contiguous, the same number of elements and dtype on every rank.
        op: Reduction.
        timeout_s: Time limit of the whole call.

    Raises:
        CommunicationError: The call timed out, or another rank is lost.
        UsageError: The buffer or op is invalid.

    References:
        Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, Journal of Parallel
        and Distributed Computing 69(2), 2009.
    """
    messages = Messages(communicator, buffer, op, timeout_s)
    rank, ranks, at = messages.rank, messages.size, bounds(buffer.size, messages.size)
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    room = messages.room(-(-buffer.size // ranks))
    for step in range(ranks - 1):
        mine, next_ = (rank - step) % ranks, (rank - step - 1) % ranks
        received = room[: at[next_ + 1] - at[next_]]
        arriving = messages.receive_start(received, before)
        messages.wait(messages.send_start(at[mine], at[mine + 1], following), arriving)
        messages.higher_first(at[next_], at[next_ + 1], received)
    for step in range(ranks - 1):
        mine, next_ = (rank + 1 - step) % ranks, (rank - step) % ranks
        arriving = messages.receive_start(messages.flat[at[next_] : at[next_ + 1]], before)
        messages.wait(messages.send_start(at[mine], at[mine + 1], following), arriving)


def ring_sent(rank: int, ranks: int, elements: int) -> int:
    """Elements that a rank sends: all parts but one, twice; 2n(P - 1)/P if the parts are equal.

    It never sends part rank + 1 while parts are combined, because it holds that part's result, nor part rank + 2
    afterwards, because that part has gone around.
    """
    if ranks == 1:
        return 0
    at = bounds(elements, ranks)
    left_out = [(rank + 1) % ranks, (rank + 2) % ranks]
    return 2 * elements - sum(at[part + 1] - at[part] for part in left_out)
