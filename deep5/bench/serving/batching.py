"""Batch dispatch: waiting requests become a batch when there are enough of them, or when the oldest has waited."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["BatchQueue", "Handled", "batch_sizes", "simulate"]


class BatchQueue:
    """Requests that wait for a batch, in the order of their arrival.

    A batch is due when `max_batch` requests wait, or when the oldest has waited `deadline_s`. The queue has no clock
    and no thread: the server's thread passes the time of its clock, `simulate` passes a virtual one.

    Args:
        max_batch: Most requests in a batch.
        deadline_s: Longest wait of the oldest request while the server is idle.

    >>> queue = BatchQueue(max_batch=2, deadline_s=0.5)
    >>> queue.add("a", 1.0); queue.due_s(), queue.take(1.25)
    (1.5, [])
    >>> queue.add("b", 1.25); queue.due_s(), queue.take(1.25), len(queue)
    (1.25, ['a', 'b'], 0)
    """

    def __init__(self, max_batch: int, deadline_s: float) -> None:
        self.max_batch, self.deadline_s = max_batch, deadline_s
        self._waiting: deque[tuple[float, Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: Any, now_s: float) -> None:
        """Let a request wait.

        Args:
            item: The request.
            now_s: The time.
        """
        self._waiting.append((now_s, item))

    def due_s(self) -> float | None:
        """When the next batch is due, which may be in the past; None if no request waits."""
        if not self._waiting:
            return None
        due_s = self._waiting[0][0] + self.deadline_s
        if len(self._waiting) >= self.max_batch:
            due_s = min(due_s, self._waiting[self.max_batch - 1][0])
        return due_s

    def take(self, now_s: float, *, at_once: bool = False) -> list[Any]:
        """The next batch; empty if none is due.

        Args:
            now_s: The time.
            at_once: Do not wait for more requests, because none will come.
        """
        due_s = self.due_s()
        if due_s is None or (now_s < due_s and not at_once):
            return []
        count = min(len(self._waiting), self.max_batch)
        return [self._waiting.popleft()[1] for _ in range(count)]


class Handled(NamedTuple):
    """What a simulated server did with a request.

    Attributes:
        request: Its number.
        arrived_s: When it arrived.
        started_s: When its batch started.
        ended_s: When its batch ended.
        batch: Number of requests in its batch.
    """

    request: int
    arrived_s: float
    started_s: float
    ended_s: float
    batch: int


def simulate(
    arrivals_s: Sequence[float], service_s: Callable[[int, float], float], *, max_batch: int, deadline_s: float
) -> list[Handled]:
    """Serve requests in virtual time with the same `BatchQueue` as the server: one batch at a time.

    Args:
        arrivals_s: Ascending times, one per request.
        service_s: From the size of a batch and the time of its start, how long it takes, in seconds.
        max_batch: As for `BatchQueue`.
        deadline_s: As for `BatchQueue`.

    Returns:
        One entry per request, in the order in which they were served.

    >>> [each.started_s for each in simulate([0.0, 1.0, 1.5], lambda size, at: 2.0, max_batch=2, deadline_s=0.5)]
    [0.5, 2.5, 2.5]
    """
    queue, free_s, handled, arrived = BatchQueue(max_batch, deadline_s), 0.0, list[Handled](), 0
    while arrived < len(arrivals_s) or len(queue):
        due_s = queue.due_s()
        start_s = None if due_s is None else max(due_s, free_s)
        # Whatever arrives up to the start of a batch waits before it.
        if arrived < len(arrivals_s) and (start_s is None or arrivals_s[arrived] <= start_s):
            queue.add(arrived, arrivals_s[arrived])
            arrived += 1
            continue
        assert start_s is not None  # noqa: S101 - the queue is not empty
        batch = queue.take(start_s)
        free_s = start_s + service_s(len(batch), start_s)
        handled += [Handled(each, arrivals_s[each], start_s, free_s, len(batch)) for each in batch]
    return handled


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """The sizes to which batches are padded: powers of two, and the largest batch.

    Frameworks that compile do so for every new size, so a server warms these up before the clock starts and pads each
    batch to the next of them.

    >>> batch_sizes(8), batch_sizes(6), batch_sizes(1)
    ((1, 2, 4, 8), (1, 2, 4, 6), (1,))
    """
    sizes = [1]
    while sizes[-1] * 2 < max_batch:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes) if max_batch == 1 else (*sizes, max_batch)
