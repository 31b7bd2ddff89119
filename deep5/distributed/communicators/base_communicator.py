"""`CountedCommunicator`: the shared part of all communicators: checks arguments, counts bytes, messages and time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.buffers import Reduction, check_buffer, check_pair, check_written
from deep5.core.communicator import TIMEOUT_S, Communicator, Request
from deep5.core.deep500 import missing_attribute
from deep5.core.errors import CommunicationError, UsageError, brief

__all__ = ["CountedCommunicator", "take_over"]

_MESSAGES = ("send", "receive")


class CountedCommunicator(ABC):
    """Base of the multi-rank communicators; implements `Communicator`.

    A subclass executes operations by name, with already checked arguments in this order:

    - `all_reduce` (buffer, op), `reduce` (buffer, root, op), `broadcast` (buffer, root)
    - `reduce_scatter` (buffer, out, op), `all_gather` (buffer, out), `all_to_all` (buffer, out)
    - `gather` (buffer, out or None, root), `scatter` (buffer or None, out, root), `barrier` ()
    - `send` (buffer, to, tag), `receive` (buffer, source, tag)

    Operations on empty buffers do not reach it. If `tells_ends` is true, the request of a collective started while
    `counts_hidden` is true has an attribute `finished_ns`: its end on this process's `time.perf_counter_ns`, or None
    before that.

    Args:
        rank: This process.
        size: Number of ranks.

    Attributes:
        tells_ends: Whether the end of a started operation is known even if the caller did not wait for it at that time.
        counts_hidden: Whether `count_hidden` was called.
    """

    tells_ends: bool = False

    if not TYPE_CHECKING:  # otherwise every attribute would be known to a type checker
        __getattr__ = missing_attribute

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes = self.messages = self.waited_ns = self.hidden_ns = 0
        self.counts_hidden = False
        # Started operations that may not have ended; the time at which the caller left the last call.
        self._under_way: list[_Waited] = []
        self._left_ns = 0

    def count_hidden(self) -> bool:
        """Count `hidden_ns` from now on; see `Communicator.count_hidden`."""
        self.counts_hidden = self.tells_ends
        return self.counts_hidden

    @abstractmethod
    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        """Execute an operation within a time limit.

        Raises:
            CommunicationError: It timed out, another rank is lost, or another rank calls a different operation.
        """

    @abstractmethod
    def _call_start(self, name: str, *given: Any) -> Request:
        """Start an operation."""

    @abstractmethod
    def split(self, color: int, *, key: int | None = None) -> Communicator:
        """A communicator of all ranks that pass the same color; see `Communicator.split`."""

    @abstractmethod
    def close(self) -> None:
        """Release the communicator's resources; see `Communicator.close`."""

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks in place; see `Communicator.all_reduce`."""
        check_buffer(buffer, op=op)
        check_written(buffer)
        self._block("all_reduce", buffer.nbytes, buffer.nbytes, timeout_s, buffer, op)

    def all_reduce_start(self, buffer: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`all_reduce` without waiting."""
        check_buffer(buffer, op=op)
        check_written(buffer)
        return self._begin("all_reduce", buffer.nbytes, buffer.nbytes, buffer, op)

    def reduce(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks at the root; see `Communicator.reduce`."""
        sent = self._to_root(buffer, root, op)
        self._block("reduce", buffer.nbytes, sent, timeout_s, buffer, root, op)

    def reduce_start(self, buffer: np.ndarray, *, root: int = 0, op: Reduction = "sum") -> Request:
        """`reduce` without waiting."""
        sent = self._to_root(buffer, root, op)
        return self._begin("reduce", buffer.nbytes, sent, buffer, root, op)

    def broadcast(self, buffer: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Copy the root's buffer to every rank; see `Communicator.broadcast`."""
        sent = self._from_root(buffer, root)
        self._block("broadcast", buffer.nbytes, sent, timeout_s, buffer, root)

    def broadcast_start(self, buffer: np.ndarray, *, root: int = 0) -> Request:
        """`broadcast` without waiting."""
        sent = self._from_root(buffer, root)
        return self._begin("broadcast", buffer.nbytes, sent, buffer, root)

    def reduce_scatter(
        self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Combine the buffers and give each rank its part; see `Communicator.reduce_scatter`."""
        check_buffer(buffer, op=op)
        check_pair(out, buffer, self.size)
        check_written(out)
        self._block("reduce_scatter", buffer.nbytes, buffer.nbytes, timeout_s, buffer, out, op)

    def reduce_scatter_start(self, buffer: np.ndarray, out: np.ndarray, *, op: Reduction = "sum") -> Request:
        """`reduce_scatter` without waiting."""
        check_buffer(buffer, op=op)
        check_pair(out, buffer, self.size)
        check_written(out)
        return self._begin("reduce_scatter", buffer.nbytes, buffer.nbytes, buffer, out, op)

    def all_gather(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Copy all buffers to every rank; see `Communicator.all_gather`."""
        check_pair(buffer, out, self.size)
        check_written(out)
        self._block("all_gather", buffer.nbytes, buffer.nbytes, timeout_s, buffer, out)

    def all_gather_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """`all_gather` without waiting."""
        check_pair(buffer, out, self.size)
        check_written(out)
        return self._begin("all_gather", buffer.nbytes, buffer.nbytes, buffer, out)

    def gather(
        self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Copy all buffers to the root; see `Communicator.gather`."""
        sent = self._gathered(buffer, out, root)
        self._block("gather", buffer.nbytes, sent, timeout_s, buffer, out, root)

    def gather_start(self, buffer: np.ndarray, out: np.ndarray | None = None, *, root: int = 0) -> Request:
        """`gather` without waiting."""
        sent = self._gathered(buffer, out, root)
        return self._begin("gather", buffer.nbytes, sent, buffer, out, root)

    def scatter(
        self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Give each rank its part of the root's buffer; see `Communicator.scatter`."""
        sent = self._scattered(buffer, out, root)
        self._block("scatter", out.nbytes, sent, timeout_s, buffer, out, root)

    def scatter_start(self, buffer: np.ndarray | None, out: np.ndarray, *, root: int = 0) -> Request:
        """`scatter` without waiting."""
        sent = self._scattered(buffer, out, root)
        return self._begin("scatter", out.nbytes, sent, buffer, out, root)

    def all_to_all(self, buffer: np.ndarray, out: np.ndarray, *, timeout_s: float = TIMEOUT_S) -> None:
        """Give every rank its part of every rank's buffer; see `Communicator.all_to_all`."""
        self._check_parts(buffer, out)
        self._block("all_to_all", buffer.nbytes, buffer.nbytes, timeout_s, buffer, out)

    def all_to_all_start(self, buffer: np.ndarray, out: np.ndarray) -> Request:
        """`all_to_all` without waiting."""
        self._check_parts(buffer, out)
        return self._begin("all_to_all", buffer.nbytes, buffer.nbytes, buffer, out)

    def send(self, buffer: np.ndarray, to: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Send the buffer to another rank; see `Communicator.send`."""
        self._check_message(buffer, to, tag)
        self._block("send", buffer.nbytes, buffer.nbytes, timeout_s, buffer, to, tag)

    def send_start(self, buffer: np.ndarray, to: int, *, tag: int = 0) -> Request:
        """`send` without waiting."""
        self._check_message(buffer, to, tag)
        return self._begin("send", buffer.nbytes, buffer.nbytes, buffer, to, tag)

    def receive(self, buffer: np.ndarray, source: int, *, tag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Receive a message from another rank; see `Communicator.receive`."""
        self._check_message(buffer, source, tag)
        check_written(buffer)
        self._block("receive", buffer.nbytes, 0, timeout_s, buffer, source, tag)

    def receive_start(self, buffer: np.ndarray, source: int, *, tag: int = 0) -> Request:
        """`receive` without waiting."""
        self._check_message(buffer, source, tag)
        check_written(buffer)
        return self._begin("receive", buffer.nbytes, 0, buffer, source, tag)

    def exchange(
        self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Send the buffer to each neighbor and receive theirs; see `Communicator.exchange`."""
        self.exchange_start(buffer, out, neighbours).wait(timeout_s)

    def exchange_start(self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int]) -> Request:
        """`exchange` without waiting."""
        if len(set(neighbours)) < len(neighbours):
            raise UsageError(f"exchange: got the neighbors {list(neighbours)}; allowed: each once")
        check_pair(buffer, out, len(neighbours))
        check_written(out)
        places = out.reshape(len(neighbours), -1) if neighbours else ()
        waiting = [self.receive_start(place, other) for place, other in zip(places, neighbours, strict=True)]
        waiting += [self.send_start(buffer, other) for other in neighbours]
        return _Several(waiting)

    def barrier(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Return when every rank has reached the barrier."""
        self._block("barrier", 1, 0, timeout_s)

    def barrier_start(self) -> Request:
        """`barrier` without waiting."""
        return self._begin("barrier", 1, 0)

    def _block(self, name: str, size_bytes: int, sent_bytes: int, timeout_s: float, *given: Any) -> None:
        if size_bytes:
            begin = perf_counter_ns()
            if self._under_way:
                self._come_in(begin)
            if sent_bytes and self.size > 1:
                self.sent_bytes += sent_bytes
                self.messages += 1
            self._call(name, timeout_s, *given)
            self._left_ns = end = perf_counter_ns()
            self.waited_ns += end - begin

    def _begin(self, name: str, size_bytes: int, sent_bytes: int, *given: Any) -> Request:
        begin = perf_counter_ns()
        if self._under_way:
            self._come_in(begin)
        if sent_bytes and self.size > 1:
            self.sent_bytes += sent_bytes
            self.messages += 1
        request = _Waited(self, self._call_start(name, *given) if size_bytes else None)
        if self.counts_hidden and name not in _MESSAGES:
            self._under_way.append(request)
        self._left_ns = end = perf_counter_ns()
        self.waited_ns += end - begin
        return request

    def _come_in(self, now_ns: int) -> None:
        """Count the caller's time since its last call as hidden, up to the end of the last pending operation.

        All of them were pending when the caller left, so the last end gives the union of their times: two concurrent
        collectives count the time of one.
        """
        ends = [request.finished_ns for request in self._under_way]
        last_ns = now_ns if None in ends else min(now_ns, max(end for end in ends if end is not None))
        self.hidden_ns += max(last_ns - self._left_ns, 0)
        self._under_way = [request for request, end in zip(self._under_way, ends, strict=True) if end is None]

    def _check_root(self, root: int) -> None:
        if not is_whole(root) or not 0 <= root < self.size:
            raise UsageError(f"got root {brief(root)}; allowed: a rank, from 0 to {self.size - 1}")

    def _to_root(self, buffer: np.ndarray, root: int, op: str) -> int:
        check_buffer(buffer, op=op)
        self._check_root(root)
        if root != self.rank:
            return buffer.nbytes
        check_written(buffer)
        return 0

    def _from_root(self, buffer: np.ndarray, root: int) -> int:
        check_buffer(buffer)
        self._check_root(root)
        if root == self.rank:
            return buffer.nbytes
        check_written(buffer)
        return 0

    def _gathered(self, buffer: np.ndarray, out: np.ndarray | None, root: int) -> int:
        self._check_root(root)
        if root != self.rank:
            check_buffer(buffer)
            return buffer.nbytes
        check_pair(buffer, out, self.size)
        if out is not None:
            check_written(out)
        return 0

    def _scattered(self, buffer: np.ndarray | None, out: np.ndarray, root: int) -> int:
        self._check_root(root)
        if root != self.rank or buffer is None:
            check_buffer(out if root != self.rank else buffer)
            check_written(out)
            return 0
        check_pair(out, buffer, self.size)
        check_written(out)
        return buffer.nbytes

    def _check_parts(self, buffer: np.ndarray, out: np.ndarray) -> None:
        check_pair(buffer, out, 1)
        check_written(out)
        if buffer.size % self.size:
            raise UsageError(
                f"all_to_all: got a buffer of {buffer.size} elements; allowed: a multiple of {self.size}, one part "
                "per rank"
            )

    def _check_message(self, buffer: np.ndarray, other: int, tag: int) -> None:
        check_buffer(buffer)
        if not is_whole(other) or not 0 <= other < self.size or other == self.rank:
            raise UsageError(
                f"a message between rank {self.rank} and {brief(other)}; allowed: another rank, from 0 to "
                f"{self.size - 1}"
            )
        # MPI guarantees no larger tags.
        if not is_whole(tag) or not 0 <= tag <= 32767:
            raise UsageError(f"got tag {brief(tag)}; allowed: an integer from 0 to 32767")


def take_over(whole: Communicator, part: Communicator) -> None:
    """Add what a subgroup's communicator just sent and waited for to the counters of the whole communicator.

    Args:
        whole: Its counters grow; its pending operations do not count as hidden meanwhile.
        part: Split from it; its counters restart at zero.
    """
    if isinstance(whole, CountedCommunicator) and whole._under_way:
        now = perf_counter_ns()
        whole._come_in(now - part.waited_ns)
        whole._left_ns = now
    whole.sent_bytes += part.sent_bytes
    whole.messages += part.messages
    whole.waited_ns += part.waited_ns
    part.sent_bytes = part.messages = part.waited_ns = 0


class _Several:
    """A request that completes when all of these have."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when all have completed; see `Request.wait`."""
        deadline, left = monotonic() + timeout_s, list(self._requests)
        try:
            while left:
                left.pop(0).wait(max(deadline - monotonic(), 0.0))
        except CommunicationError:
            # The memory that the outstanding requests write to is about to be released.
            for request in left:
                with suppress(CommunicationError):
                    request.wait(0.0)
            raise

    def done(self) -> bool:
        """Whether all have completed."""
        # Poll each one: some make progress only when polled.
        found = [request.done() for request in self._requests]
        return all(found)


class _Waited:
    """A request whose waits count on the communicator's clock."""

    __slots__ = ("_communicator", "_request")

    def __init__(self, communicator: CountedCommunicator, request: Any) -> None:
        self._communicator, self._request = communicator, request

    @property
    def finished_ns(self) -> int | None:
        """Its end; 0 if the caller has waited for it, because the clock has already counted that wait."""
        if (request := self._request) is None:
            return 0
        found: int | None = request.finished_ns
        return found

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when it has completed; see `Request.wait`."""
        if self._request is not None:
            communicator, begin = self._communicator, perf_counter_ns()
            if communicator._under_way:
                communicator._come_in(begin)
            self._request.wait(timeout_s)
            self._request = None
            communicator._left_ns = end = perf_counter_ns()
            communicator.waited_ns += end - begin

    def done(self) -> bool:
        """Whether it has completed."""
        return self._request is None or bool(self._request.done())
