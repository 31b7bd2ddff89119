"""Pipeline: segments are reduced along a chain of the ranks and broadcast back along it."""

from __future__ import annotations

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S, Communicator, Reduction
from deep5.core.errors import UsageError, brief
from deep5.distributed.collectives.messages import Messages

__all__ = ["SEGMENT_BYTES", "pipeline", "pipeline_sent", "segment_count"]

SEGMENT_BYTES = 1 << 17
"""Default segment size: sending a segment should take much longer than the latency of its message."""


def pipeline(
    communicator: Communicator,
    buffer: np.ndarray,
    *,
    op: Reduction = "sum",
    timeout_s: float = TIMEOUT_S,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Combine the buffers of all P ranks in place: 2(P + S - 2) steps for S segments, one segment per step.

    The last rank starts. Each rank adds its values to a segment it receives and sends it on while the next segment
    arrives. Rank 0 gets the result. It is bit-identical on all ranks: rank 0 computes it and the others get a copy.

    Args:
        communicator: Connects the participating ranks.
        buffer: C-contiguous, the same number of elements and dtype on every rank.
        op: Reduction.
        timeout_s: Time limit of the whole call.
        segment_bytes: Size of a segment, the same on every rank; at least one element.

    Raises:
        CommunicationError: The call timed out, or another rank is lost.
        UsageError: The buffer, op or segment size is invalid.

    References:
        Pjesivac-Grbovic et al., Performance Analysis of MPI Collective Operations, Cluster Computing 10(2), 2007,
        section 3, for segmented chains and their models.
    """
    messages = Messages(communicator, buffer, op, timeout_s)
    count = segment_count(buffer.size, buffer.itemsize, segment_bytes)
    if messages.size == 1 or not count:
        return
    step = -(-buffer.size // count)
    segments = [(begin, min(begin + step, buffer.size)) for begin in range(0, buffer.size, step)]
    _reduce_along(messages, segments)
    _broadcast_along(messages, segments)


def segment_count(elements: int, itemsize: int, segment_bytes: int) -> int:
    """Number of segments of a buffer; all have the same size except the last.

    Raises:
        UsageError: The segment size is not a positive integer.

    >>> segment_count(1000, 4, 1024), segment_count(0, 4, 1024), segment_count(3, 8, 1)
    (4, 0, 3)
    """
    if not is_whole(segment_bytes) or segment_bytes < 1:
        raise UsageError(f"pipeline: got segment_bytes={brief(segment_bytes)}; allowed: an integer of at least 1")
    most = max(segment_bytes // itemsize, 1)
    return -(-elements // most)


def _reduce_along(messages: Messages, segments: list[tuple[int, int]]) -> None:
    rank, last = messages.rank, messages.rank == messages.size - 1
    sent = []
    # Two scratch buffers: one is added while the other is filled.
    rooms = [messages.room(0 if last else segments[0][1]) for _ in range(2)]
    places = [rooms[number % 2][: end - begin] for number, (begin, end) in enumerate(segments)] if not last else []
    arriving = [] if last else [messages.receive_start(places[0], rank + 1)]
    for number, (begin, end) in enumerate(segments):
        if not last:
            if number + 1 < len(segments):
                arriving.append(messages.receive_start(places[number + 1], rank + 1))
            messages.wait(arriving[number])
            messages.lower_first(begin, end, places[number])
        if rank:
            sent.append(messages.send_start(begin, end, rank - 1))
    messages.wait(*sent)


def _broadcast_along(messages: Messages, segments: list[tuple[int, int]]) -> None:
    rank, sent = messages.rank, []
    arriving = [messages.receive_start(messages.flat[begin:end], rank - 1) for begin, end in segments if rank]
    for number, (begin, end) in enumerate(segments):
        if rank:
            messages.wait(arriving[number])
        if rank + 1 < messages.size:
            sent.append(messages.send_start(begin, end, rank + 1))
    messages.wait(*sent)


def pipeline_sent(rank: int, ranks: int, elements: int) -> int:
    """Elements that a rank sends: the buffer to each of its one or two neighbors, whatever the segments."""
    return ((rank > 0) + (rank + 1 < ranks)) * elements
