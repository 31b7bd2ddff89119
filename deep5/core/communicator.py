"""`Communicator`: collectives with the names of MPI on contiguous buffers, bytes and messages counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from deep5.core.buffers import Reduction, check_buffer, check_pair, check_written
from deep5.core.errors import UsageError

__all__ = [
    "TIMEOUT_S",
    "Communicator",
    "Reduction",
    "Request",
    "SingleRank",
]


TIMEOUT_S = 60.0
"""How long a wait may take where nobody says otherwise."""


@runtime_checkable
class Request(Protocol):
    """An operation that was started."""

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when it has finished.

        Raises:
            CommunicationError: It has not within `timeout_s` seconds, or another rank is lost.
        """
        ...

    def done(self) -> bool:
        """Whether it has finished; returns at once."""
        ...


@runtime_checkable
class Communicator(Protocol):
    """Ranks that exchange contiguous buffers. Every wait takes a limit; nothing is pickled.

    Every rank calls the same collectives in the same order, with buffers of the same size and dtype. Buffers are
    C-contiguous NumPy arrays of numbers. A collective `x` has a form `x_start` that returns at once with a `Request`;
    its buffers are not to be touched before that has finished. Those that were started are a queue of their own: they
    are carried out in the order in which they were started, whatever blocking ones come between.

    Attributes:
        rank: This process, from 0.
        size: How many there are.
        sent_bytes: What this rank handed over for others so far: the bytes of its buffer, once a call, however many
            copies of them the library sends. One who only receives (a broadcast, say) hands over none.
        messages: How many operations did, those without a byte left out; a barrier is none.
        waited_ns: Nanoseconds that calls and waits took, as this rank's caller saw them.
        hidden_ns: Nanoseconds in which collectives that were started were under way while the caller was in none of
            these calls and waits, from `count_hidden` on; before that, nothing is added. With `waited_ns` it makes up
            the time that communication took. Messages are not in it: nobody sees one arrive who does not wait for it.
    """

    rank: int
    size: int
    sent_bytes: int
    messages: int
    waited_ns: int
    hidden_ns: int

    def count_hidden(self) -> bool:
        """Count `hidden_ns` from here on, by this rank itself; nothing can be under way yet.

        Returns:
            Whether the communicator knows when what was started has ended; where it does not, nothing is counted.
        """
        ...

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks; every rank gets the same result, to the bit, in place."""
        ...

    def all_reduce_start(self, buffer: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`all_reduce` without waiting."""
        ...

    def reduce(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks; the root gets the result in place, the others' are as they were."""
        ...

    def reduce_start(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum") -> Request:
        """`reduce` without waiting."""
        ...

    def broadcast(self, buffer: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Every rank gets the root's buffer in place."""
        ...

    def broadcast_start(self, buffer: np.ndarray, *, root: int = 0) -> Request:
        """`broadcast` without waiting."""
        ...

    def reduce_scatter(
        self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Combine, and give each rank its own part: `buffer` has the elements of (size, *out.shape)."""
        ...

    def reduce_scatter_start(self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`reduce_scatter` without waiting."""
        ...

    def all_gather(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Every rank gets all buffers in `out`, which has the elements of (size, *buffer.shape)."""
        ...

    def all_gather_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """`all_gather` without waiting."""
        ...

    def gather(
        self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """The root gets all buffers in `out`, which has the elements of (size, *buffer.shape); None elsewhere."""
        ...

    def gather_start(self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0) -> Request:
        """`gather` without waiting."""
        ...

    def scatter(
        self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Each rank gets its part of the root's buffer of (size, *out.shape); elsewhere that is None."""
        ...

    def scatter_start(self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0) -> Request:
        """`scatter` without waiting."""
        ...

    def all_to_all(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Part r of this rank's buffer becomes part `rank` of rank r's `out`; both have `size` equal parts."""
        ...

    def all_to_all_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """`all_to_all` without waiting."""
        ...

    def send(self, buffer: np.ndarray, to: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Hand the buffer over to another rank; it may be changed when this returns."""
        ...

    def send_start(self, buffer: np.ndarray, to: int, *, tag: int = 0) -> Request:
        """`send` without waiting."""
        ...

    def receive(self, buffer: np.ndarray, source: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Take the next message of that tag from another rank, which has the buffer's size in bytes."""
        ...

    def receive_start(self, buffer: np.ndarray, source: int, *, tag: int = 0) -> Request:
        """`receive` without waiting."""
        ...

    def exchange(
        self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Send the buffer to each neighbour and get theirs in `out`, in the order of `neighbours`.

        Args:
            buffer: This rank's.
            out: Has the elements of (len(neighbours), *buffer.shape).
            neighbours: Other ranks, each once; who is a neighbour of this rank names it as one in the same call. What
                the others do does not matter.
            timeout_s: Limit of the wait.
        """
        ...

    def exchange_start(self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int]) -> Request:
        """`exchange` without waiting. It is made of messages of tag 0, which are taken in the order of their start."""
        ...

    def barrier(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Return when every rank has come here."""
        ...

    def barrier_start(self) -> Request:
        """`barrier` without waiting."""
        ...

    def split(self, color: int, *, key: int | None = None) -> Communicator:
        """A communicator of all ranks that give the same color; every rank calls it.

        Args:
            color: A whole number from 0.
            key: Ranks of the new one are in this order; None: as here.
        """
        ...

    def close(self) -> None:
        """Give up what the communicator holds; called by every rank, when nothing is under way."""
        ...


class _Finished:
    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Already done."""

    def done(self) -> bool:
        """It is."""
        return True


_FINISHED = _Finished()


class SingleRank:
    """The communicator of a run with one process: every collective is the identity and sends nothing.

    >>> import numpy as np
    >>> total = np.array([3.0]); SingleRank().all_reduce(total); float(total[0])
    3.0
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.sent_bytes = self.messages = self.waited_ns = self.hidden_ns = 0

    def count_hidden(self) -> bool:
        """Nothing is ever under way."""
        return True

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """The combination of one buffer is that buffer."""
        check_buffer(buffer, op=op)
        check_written(buffer)

    def all_reduce_start(self, buffer: np.ndarray, *, op: Reduction = "sum") -> Request:
        """Finished at once."""
        self.all_reduce(buffer, op=op)
        return _FINISHED

    def reduce(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """The root has the only buffer."""
        check_buffer(buffer, op=op)
        check_written(buffer)
        _only(root)

    def reduce_start(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum") -> Request:
        """Finished at once."""
        self.reduce(buffer, root=root, op=op)
        return _FINISHED

    def broadcast(self, buffer: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """The root has the buffer already."""
        check_buffer(buffer)
        _only(root)

    def broadcast_start(self, buffer: np.ndarray, *, root: int = 0) -> Request:
        """Finished at once."""
        self.broadcast(buffer, root=root)
        return _FINISHED

    def reduce_scatter(
        self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Copy the one buffer."""
        check_buffer(buffer, op=op)
        self.all_gather(buffer, out)

    def reduce_scatter_start(self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum") -> Request:
        """Finished at once."""
        self.reduce_scatter(buffer, out, op=op)
        return _FINISHED

    def all_gather(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Copy the one buffer."""
        check_pair(buffer, out, 1)
        check_written(out)
        out.reshape(-1)[...] = buffer.reshape(-1)

    def all_gather_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """Finished at once."""
        self.all_gather(buffer, out)
        return _FINISHED

    def gather(
        self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Copy the one buffer."""
        _only(root)
        self.all_gather(buffer, _given(out))

    def gather_start(self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0) -> Request:
        """Finished at once."""
        self.gather(buffer, out, root=root)
        return _FINISHED

    def scatter(
        self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Copy the one buffer."""
        _only(root)
        self.all_gather(_given(buffer), out)

    def scatter_start(self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0) -> Request:
        """Finished at once."""
        self.scatter(buffer, out, root=root)
        return _FINISHED

    def all_to_all(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Copy the one part."""
        self.all_gather(buffer, out)

    def all_to_all_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """Finished at once."""
        self.all_gather(buffer, out)
        return _FINISHED

    def send(self, buffer: np.ndarray, to: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """There is nobody.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"send to rank {to}; allowed: none, this is the only rank")

    def send_start(self, buffer: np.ndarray, to: int, *, tag: int = 0) -> Request:
        """As `send`."""
        self.send(buffer, to)
        return _FINISHED

    def receive(self, buffer: np.ndarray, source: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """There is nobody.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"receive from rank {source}; allowed: none, this is the only rank")

    def receive_start(self, buffer: np.ndarray, source: int, *, tag: int = 0) -> Request:
        """As `receive`."""
        self.receive(buffer, source)
        return _FINISHED

    def exchange(
        self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Nobody is a neighbour.

        Raises:
            UsageError: One is named.
        """
        if neighbours:
            raise UsageError(f"exchange with the ranks {list(neighbours)}; allowed: none, this is the only rank")

    def exchange_start(self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int]) -> Request:
        """As `exchange`."""
        self.exchange(buffer, out, neighbours)
        return _FINISHED

    def barrier(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Nobody to wait for."""

    def barrier_start(self) -> Request:
        """Finished at once."""
        return _FINISHED

    def split(self, color: int, *, key: int | None = None) -> Communicator:
        """Again a single rank."""
        return SingleRank()

    def close(self) -> None:
        """There is nothing to give up."""


def _only(root: int) -> None:
    if root != 0:
        raise UsageError(f"got root {root}; allowed: 0, the only rank")


def _given(buffer: np.ndarray | None) -> np.ndarray:
    if buffer is None:
        raise UsageError("got no buffer at the root; allowed: a C-contiguous NumPy array")
    return buffer
