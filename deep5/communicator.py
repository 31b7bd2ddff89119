"""`Communicator`: collectives with the names of MPI on contiguous buffers, bytes and messages counted."""

from __future__ import annotations

from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np

from deep5.errors import UsageError

__all__ = ["Communicator", "Reduction", "Request", "SingleRank"]

Reduction = Literal["sum", "max", "min", "prod"]


@runtime_checkable
class Request(Protocol):
    """An operation that was started."""

    def wait(self, timeout_s: float) -> None:
        """Return when it has finished; an error after `timeout_s` seconds."""
        ...


@runtime_checkable
class Communicator(Protocol):
    """Ranks that exchange contiguous buffers. Every wait takes a limit; nothing is pickled.

    Attributes:
        rank: This process, from 0.
        size: How many there are.
        sent_bytes: What this rank handed over to others so far.
        messages: How many operations did.
    """

    rank: int
    size: int
    sent_bytes: int
    messages: int

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = 60.0) -> None:
        """Combine the buffers of all ranks; every rank gets the result in place."""
        ...

    def all_reduce_start(self, buffer: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`all_reduce` without waiting; the buffer is not to be touched before the request has finished."""
        ...

    def broadcast(self, buffer: np.ndarray, *, root: int = 0, timeout_s: float = 60.0) -> None:
        """Every rank gets the root's buffer in place."""
        ...

    def all_gather(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = 60.0) -> None:
        """Every rank gets all buffers in `out`, shape (size, *buffer.shape)."""
        ...

    def reduce_scatter(
        self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum", timeout_s: float = 60.0
    ) -> None:
        """Combine, and give each rank its own part: `buffer` is (size, *out.shape)."""
        ...

    def barrier(self, *, timeout_s: float = 60.0) -> None:
        """Return when every rank has come here."""
        ...


class _Finished:
    def wait(self, timeout_s: float) -> None:
        """Already done."""


class SingleRank:
    """The communicator of a run with one process: every collective is the identity and sends nothing.

    >>> import numpy as np
    >>> total = np.array([3.0]); SingleRank().all_reduce(total); float(total[0])
    3.0
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.sent_bytes = self.messages = 0

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = 60.0) -> None:
        """The combination of one buffer is that buffer."""
        _check(buffer, op=op)

    def all_reduce_start(self, buffer: np.ndarray, *, op: Reduction = "sum") -> Request:
        """Finished at once."""
        _check(buffer, op=op)
        return _Finished()

    def broadcast(self, buffer: np.ndarray, *, root: int = 0, timeout_s: float = 60.0) -> None:
        """The root has the buffer already.

        Raises:
            UsageError: A root that is not there.
        """
        _check(buffer)
        if root != 0:
            raise UsageError(f"broadcast from root {root}; allowed: 0, the only rank")

    def all_gather(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = 60.0) -> None:
        """Copy the one buffer."""
        _check(buffer, out)
        out.reshape(-1)[...] = buffer.reshape(-1)

    def reduce_scatter(
        self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum", timeout_s: float = 60.0
    ) -> None:
        """Copy the one buffer."""
        _check(buffer, out, op=op)
        out.reshape(-1)[...] = buffer.reshape(-1)

    def barrier(self, *, timeout_s: float = 60.0) -> None:
        """Nobody to wait for."""


def _check(*buffers: np.ndarray, op: str = "sum") -> None:
    if op not in get_args(Reduction):
        raise UsageError(f"unknown reduction {op!r}; allowed: {', '.join(get_args(Reduction))}")
    for buffer in buffers:
        if not isinstance(buffer, np.ndarray) or not buffer.flags.c_contiguous:
            raise UsageError(f"got {type(buffer).__name__} as a buffer; allowed: a C-contiguous NumPy array")
    if len(buffers) == 2 and (buffers[0].size != buffers[1].size or buffers[0].dtype != buffers[1].dtype):
        raise UsageError(
            f"got buffers of {buffers[0].dtype}[{buffers[0].size}] and {buffers[1].dtype}[{buffers[1].size}]; "
            "allowed: the same dtype and as many elements as all ranks together have"
        )
