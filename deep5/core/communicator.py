"""`Communicator`: MPI-style collectives on contiguous buffers, with counts of bytes and messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from deep5.core.buffers import Reduction, check_buffer, check_pair, check_written
from deep5.core.deep500 import missing_attribute
from deep5.core.errors import UsageError

__all__ = [
    "TIMEOUT_S",
    "Communicator",
    "Reduction",
    "Request",
    "SingleRank",
]


TIMEOUT_S = 60.0
"""Default timeout of a wait, in seconds."""


@runtime_checkable
class Request(Protocol):
    """A pending operation."""

    @abstractmethod
    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Block until the operation has finished.

        Raises:
            CommunicationError: It has not finished within `timeout_s` seconds, or another rank is lost.
        """
        ...

    @abstractmethod
    def done(self) -> bool:
        """Whether it has finished; does not block."""
        ...


@runtime_checkable
class Communicator(Protocol):
    """Ranks that exchange contiguous buffers. Every wait has a timeout; nothing is pickled.

    Every rank calls the same collectives in the same order, with buffers of the same size and dtype. Buffers are
    C-contiguous numeric NumPy arrays. A collective `x` has a variant `x_start` that returns a `Request` immediately;
    its buffers must not be touched until the request has finished. Started operations form a separate queue: they
    execute in the order in which they were started, regardless of blocking calls in between.

    Attributes:
        rank: Rank of this process, from 0.
        size: Number of ranks.
        sent_bytes: Bytes that this rank has contributed so far: the size of its buffer, once per call, regardless of
            how many copies the library sends. A rank that only receives (in a broadcast, for example) contributes none.
        messages: Number of operations that contributed at least one byte; a barrier does not count.
        waited_ns: Nanoseconds that this rank spent in calls and waits.
        hidden_ns: Nanoseconds in which started collectives were in progress while the caller was in none of these calls
            and waits. Counted only after `count_hidden`. Together with `waited_ns` it is the total communication time.
            Point-to-point messages are not included: their arrival is not observed before the wait.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> def mean_of_ranks(communicator: d5.Communicator) -> float:
    ...     total = np.array([float(communicator.rank)])
    ...     communicator.all_reduce(total)
    ...     return float(total[0]) / communicator.size
    >>> run_in_threads(3, mean_of_ranks)
    [1.0, 1.0, 1.0]
    >>> isinstance(d5.SingleRank(), d5.Communicator), mean_of_ranks(d5.SingleRank())
    (True, 0.0)
    """

    rank: int
    size: int
    sent_bytes: int
    messages: int
    waited_ns: int
    hidden_ns: int

    @abstractmethod
    def count_hidden(self) -> bool:
        """Count `hidden_ns` on this rank from now on; no operation may be in progress yet.

        Returns:
            Whether the communicator can observe when a started operation ends; if it cannot, nothing is counted.
        """
        ...

    @abstractmethod
    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks; every rank gets the bit-identical result in place.

        Args:
            buffer: This rank's buffer, which receives the result.
            op: `"sum"`, `"max"`, `"min"` or `"prod"`.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def all_reduce_start(self, buffer: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`all_reduce` without waiting.

        Args:
            buffer: This rank's buffer, which receives the result.
            op: `"sum"`, `"max"`, `"min"` or `"prod"`.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def reduce(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks; the root gets the result in place, the other buffers are unchanged.

        Args:
            buffer: This rank's buffer; the root's receives the result.
            root: Rank of the root.
            op: `"sum"`, `"max"`, `"min"` or `"prod"`.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def reduce_start(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum") -> Request:
        """`reduce` without waiting.

        Args:
            buffer: This rank's buffer; the root's receives the result.
            root: Rank of the root.
            op: `"sum"`, `"max"`, `"min"` or `"prod"`.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def broadcast(self, buffer: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Every rank gets the root's buffer in place.

        Args:
            buffer: Receives the root's elements on every other rank.
            root: Rank of the root.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def broadcast_start(self, buffer: np.ndarray, *, root: int = 0) -> Request:
        """`broadcast` without waiting.

        Args:
            buffer: Receives the root's elements on every other rank.
            root: Rank of the root.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def reduce_scatter(
        self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Combine the buffers and give each rank its part: `buffer` has as many elements as (size, *out.shape).

        Args:
            buffer: This rank's buffer.
            out: Receives the combination of part `rank` of all buffers.
            op: `"sum"`, `"max"`, `"min"` or `"prod"`.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def reduce_scatter_start(self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`reduce_scatter` without waiting.

        Args:
            buffer: This rank's buffer.
            out: Receives the combination of part `rank` of all buffers.
            op: `"sum"`, `"max"`, `"min"` or `"prod"`.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def all_gather(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Every rank gets all buffers in `out`, which has as many elements as (size, *buffer.shape).

        Args:
            buffer: This rank's buffer.
            out: Receives all buffers in the order of the ranks.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def all_gather_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """`all_gather` without waiting.

        Args:
            buffer: This rank's buffer.
            out: Receives all buffers in the order of the ranks.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def gather(
        self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """The root gets all buffers in `out`, with as many elements as (size, *buffer.shape); None on other ranks.

        Args:
            buffer: This rank's buffer.
            out: Receives all buffers in the order of the ranks; None on ranks other than the root.
            root: Rank of the root.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def gather_start(self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0) -> Request:
        """`gather` without waiting.

        Args:
            buffer: This rank's buffer.
            out: Receives all buffers in the order of the ranks; None on ranks other than the root.
            root: Rank of the root.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def scatter(
        self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Each rank gets its part of the root's buffer of (size, *out.shape); `buffer` is None on other ranks.

        Args:
            buffer: The parts of all ranks, in their order; None on ranks other than the root.
            out: Receives this rank's part.
            root: Rank of the root.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def scatter_start(self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0) -> Request:
        """`scatter` without waiting.

        Args:
            buffer: The parts of all ranks, in their order; None on ranks other than the root.
            out: Receives this rank's part.
            root: Rank of the root.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def all_to_all(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Part r of this rank's buffer becomes part `rank` of rank r's `out`; both have `size` equal parts.

        Args:
            buffer: The parts for all ranks, in their order.
            out: Receives a part from every rank, in their order.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def all_to_all_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """`all_to_all` without waiting.

        Args:
            buffer: The parts for all ranks, in their order.
            out: Receives a part from every rank, in their order.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def send(self, buffer: np.ndarray, to: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Send the buffer to another rank; it may be reused when this returns.

        Args:
            buffer: The message.
            to: Rank of the receiver.
            tag: Identifies the message; sender and receiver give the same one.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def send_start(self, buffer: np.ndarray, to: int, *, tag: int = 0) -> Request:
        """`send` without waiting.

        Args:
            buffer: The message.
            to: Rank of the receiver.
            tag: Identifies the message; sender and receiver give the same one.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def receive(self, buffer: np.ndarray, source: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Receive the next message with that tag from another rank; it has the buffer's size in bytes.

        Args:
            buffer: Receives the message.
            source: Rank of the sender.
            tag: Identifies the message; sender and receiver give the same one.
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def receive_start(self, buffer: np.ndarray, source: int, *, tag: int = 0) -> Request:
        """`receive` without waiting.

        Args:
            buffer: Receives the message.
            source: Rank of the sender.
            tag: Identifies the message; sender and receiver give the same one.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def exchange(
        self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Send the buffer to each neighbor and receive theirs in `out`, in the order of `neighbours`.

        Args:
            buffer: This rank's buffer.
            out: Has as many elements as `(len(neighbours), *buffer.shape)`.
            neighbours: Distinct other ranks, each of which lists this rank in the same call. The calls of all other
                ranks do not matter.
            timeout_s: Timeout of the wait.
        """
        ...

    @abstractmethod
    def exchange_start(self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int]) -> Request:
        """`exchange` without waiting. It consists of messages with tag 0, which are received in the order of their
        start.

        Args:
            buffer: As for `exchange`.
            out: As for `exchange`.
            neighbours: As for `exchange`.

        Returns:
            The pending operation.
        """
        ...

    @abstractmethod
    def barrier(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Block until every rank has called it.

        Args:
            timeout_s: Timeout of the wait, in seconds.
        """
        ...

    @abstractmethod
    def barrier_start(self) -> Request:
        """`barrier` without waiting."""
        ...

    @abstractmethod
    def split(self, color: int, *, key: int | None = None) -> Communicator:
        """A communicator of all ranks that give the same color; every rank calls it.

        Args:
            color: A nonnegative integer.
            key: Sorts the ranks of the new communicator; None: keep their order.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Release the communicator's resources; every rank calls it when no operation is in progress."""
        ...


class _Finished:
    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Already finished."""

    def done(self) -> bool:
        """Always true."""
        return True


_FINISHED = _Finished()


class SingleRank:
    """The communicator of a run with one process: every collective is the identity and sends nothing.

    Methods, their arguments and attributes are those of `Communicator`.

    >>> import numpy as np
    >>> total = np.array([3.0]); SingleRank().all_reduce(total); float(total[0])
    3.0
    """

    if not TYPE_CHECKING:  # otherwise every attribute would be known to a type checker
        __getattr__ = missing_attribute

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.sent_bytes = self.messages = self.waited_ns = self.hidden_ns = 0

    def count_hidden(self) -> bool:
        """No operation is ever in progress."""
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
        """There is no other rank.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"send to rank {to}; allowed: none, this is the only rank")

    def send_start(self, buffer: np.ndarray, to: int, *, tag: int = 0) -> Request:
        """As `send`."""
        self.send(buffer, to)
        return _FINISHED

    def receive(self, buffer: np.ndarray, source: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """There is no other rank.

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
        """There are no neighbors.

        Raises:
            UsageError: `neighbours` is not empty.
        """
        if neighbours:
            raise UsageError(f"exchange with the ranks {list(neighbours)}; allowed: none, this is the only rank")

    def exchange_start(self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int]) -> Request:
        """As `exchange`."""
        self.exchange(buffer, out, neighbours)
        return _FINISHED

    def barrier(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """There is no rank to wait for."""

    def barrier_start(self) -> Request:
        """Finished at once."""
        return _FINISHED

    def split(self, color: int, *, key: int | None = None) -> Communicator:
        """Another single rank."""
        return SingleRank()

    def close(self) -> None:
        """There is nothing to release."""


def _only(root: int) -> None:
    if root != 0:
        raise UsageError(f"got root {root}; allowed: 0, the only rank")


def _given(buffer: np.ndarray | None) -> np.ndarray:
    if buffer is None:
        raise UsageError("got no buffer at the root; allowed: a C-contiguous NumPy array")
    return buffer
