"""`Messages`: sends, receives and combines parts of one buffer under one time limit; algorithms are built on it."""

from __future__ import annotations

from time import monotonic

import numpy as np

from deep5.core.buffers import Reduction, check_buffer
from deep5.core.communicator import Communicator, Request
from deep5.core.errors import UsageError, brief

__all__ = ["COMBINE", "TAG", "Messages", "bounds", "power_below"]

TAG = 32101
"""Tag of all messages of these algorithms; high, so that it does not collide with callers who use low tags."""

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
"""The NumPy function of each reduction."""


def bounds(elements: int, parts: int) -> list[int]:
    """Boundaries of the parts of a buffer: part i is [bounds[i], bounds[i + 1]); sizes differ by at most one.

    >>> bounds(10, 4), bounds(2, 3)
    ([0, 2, 5, 7, 10], [0, 0, 1, 2])
    """
    return [elements * place // parts for place in range(parts + 1)]


def power_below(ranks: int) -> int:
    """The largest power of two not above a number of ranks.

    >>> [power_below(ranks) for ranks in (1, 2, 3, 4, 7)]
    [1, 2, 2, 4, 4]
    """
    return 1 << (ranks.bit_length() - 1)


class Messages:
    """The messages of one call of one algorithm on one rank.

    A part is given by its first element and the one after its last. Empty parts are not sent. Messages between two
    ranks arrive in the order in which they were sent, so one tag is enough.

    Args:
        communicator: Connects the participating ranks; no message with `TAG` may be in flight on it.
        buffer: C-contiguous, any shape, any numeric dtype; modified in place.
        op: Reduction.
        timeout_s: Time limit of all waits together.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        flat: The buffer as a vector; the same memory.

    Raises:
        UsageError: The buffer or op is invalid, or the time limit is not a positive number.
    """

    def __init__(self, communicator: Communicator, buffer: np.ndarray, op: Reduction, timeout_s: float) -> None:
        check_buffer(buffer, op=op)
        if not timeout_s > 0:
            raise UsageError(f"got timeout_s={brief(timeout_s)}; allowed: seconds, a number above 0")
        self.rank, self.size = communicator.rank, communicator.size
        self.flat = buffer.reshape(-1)
        self._communicator, self._combine = communicator, COMBINE[op]
        self._timeout_s, self._deadline = timeout_s, monotonic() + timeout_s

    def room(self, elements: int) -> np.ndarray:
        """A scratch vector of the buffer's dtype to receive into."""
        return np.empty(elements, self.flat.dtype)

    def send_start(self, begin: int, end: int, to: int) -> list[Request]:
        """Start to send a part, which must not change until the returned requests have completed."""
        return [self._communicator.send_start(self.flat[begin:end], to, tag=TAG)] if end > begin else []

    def receive_start(self, target: np.ndarray, source: int) -> list[Request]:
        """Start to receive into a vector."""
        return [self._communicator.receive_start(target, source, tag=TAG)] if target.size else []

    def wait(self, *started: list[Request]) -> None:
        """Return when all these requests have completed.

        Raises:
            CommunicationError: The call's time limit is exceeded, or another rank is lost.
        """
        for requests in started:
            for request in requests:
                request.wait(max(self._deadline - monotonic(), 0.0))

    def send(self, begin: int, end: int, to: int) -> None:
        """Send a part and wait."""
        self.wait(self.send_start(begin, end, to))

    def receive(self, begin: int, end: int, source: int) -> None:
        """Receive a part into its place and wait."""
        self.wait(self.receive_start(self.flat[begin:end], source))

    def lower_first(self, begin: int, end: int, other: np.ndarray) -> None:
        """Part := part op other: the other values are those of higher ranks."""
        part = self.flat[begin:end]
        self._combine(part, other, out=part, dtype=part.dtype)

    def higher_first(self, begin: int, end: int, other: np.ndarray) -> None:
        """Part := other op part: the other values are those of lower ranks."""
        part = self.flat[begin:end]
        self._combine(other, part, out=part, dtype=part.dtype)
