"""The system under test, as the load generator sees it, and the server that batches requests in this process."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from deep5.bench.serving.batching import BatchQueue
from deep5.bench.serving.records import OK
from deep5.core.errors import described
from deep5.core.worker_threads import begin

__all__ = ["Answer", "BatchServer", "System"]


class Answer(NamedTuple):
    """What became of one request; times are `time.perf_counter`.

    Attributes:
        last_s: When the whole answer was there, or the failure known.
        status: `OK`, or the error.
        started_s: When its batch started.
        batch: Number of requests in its batch.
        first_s: When the first part of the answer was there; None: with the last.
        outputs: The answer itself; None: not kept.
    """

    last_s: float
    status: str = OK
    started_s: float | None = None
    batch: int | None = None
    first_s: float | None = None
    outputs: Any = None


Done = Callable[[Answer], None]


class System(Protocol):
    """A system under test: it answers every submitted request once, from any thread."""

    @abstractmethod
    def submit(self, sample: Any, done: Done) -> None:
        """Accept a request without waiting for its answer.

        Args:
            sample: What is asked.
            done: Called once with the answer, or with the failure; it does not wait.
        """

    @abstractmethod
    def ended(self) -> str:
        """How the system ended by itself, in words; empty while it runs."""

    @abstractmethod
    def close(self) -> None:
        """Stop; what still waits is answered or fails, within a bounded time."""


class BatchServer:
    """Answers requests by a function of a batch, in a separate thread, one batch at a time.

    An exception of the function fails the requests of its batch, and the server continues with the next one. If its
    thread ends (by SystemExit, say), all waiting and all further requests fail with the reason.

    Args:
        run: From the samples of a batch, one answer per sample in the same order; an exception in place of an answer
            is the failure of that request.
        max_batch: Most requests in a batch.
        deadline_s: Longest wait of the oldest request while the server is idle.

    >>> answers = []
    >>> with BatchServer(lambda batch: [2 * each for each in batch], max_batch=2, deadline_s=60.0) as server:
    ...     for sample in (1, 2):
    ...         server.submit(sample, answers.append)
    >>> [(answer.outputs, answer.batch, answer.status) for answer in answers]
    [(2, 2, 'ok'), (4, 2, 'ok')]
    """

    def __init__(self, run: Callable[[list[Any]], Sequence[Any]], *, max_batch: int, deadline_s: float) -> None:
        self._run = run
        self._queue = BatchQueue(max_batch, deadline_s)
        self._wakes = threading.Condition()
        self._closed, self._reason = False, ""
        self._thread = threading.Thread(target=self._serve, name="deep5 batch server", daemon=True)
        self._thread.start()

    def submit(self, sample: Any, done: Done) -> None:
        """As `System.submit`."""
        with self._wakes:
            reason = self._reason or ("the server is closed" if self._closed else "")
            if not reason:
                self._queue.add((sample, done), perf_counter())
                self._wakes.notify()
        if reason:
            done(Answer(perf_counter(), reason))

    def ended(self) -> str:
        """As `System.ended`."""
        return self._reason

    def close(self, timeout_s: float = 60.0) -> None:
        """Serve what waits, at once, and stop.

        Args:
            timeout_s: Longest time to wait for it; then what still waits fails.
        """
        with self._wakes:
            self._closed = True
            self._wakes.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._fail(f"the server was closed and did not answer within {timeout_s:g} s")

    def __enter__(self) -> BatchServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self) -> None:
        begin()
        try:
            while batch := self._next():
                self._answer(batch)
        except BaseException as error:  # every request needs an answer, whatever ended the thread
            self._fail(f"the server ended: {described(error)}")

    def _next(self) -> list[tuple[Any, Done]]:
        """Wait for a batch; empty if the server is closed and nothing waits."""
        with self._wakes:
            while True:
                now_s = perf_counter()
                if batch := self._queue.take(now_s, at_once=self._closed):
                    return batch
                if self._closed:
                    return []
                due_s = self._queue.due_s()
                self._wakes.wait(None if due_s is None else max(0.0, due_s - now_s))

    def _answer(self, batch: list[tuple[Any, Done]]) -> None:
        started_s = perf_counter()
        outputs: Sequence[Any] = ()
        status = OK
        try:
            outputs = self._run([sample for sample, _ in batch])
            if len(outputs) != len(batch):
                status = f"the server gave {len(outputs)} answers for a batch of {len(batch)}"
        except Exception as error:
            status = described(error)
        except BaseException as error:
            self._report(batch, (), f"the server ended: {described(error)}", started_s)
            raise
        self._report(batch, outputs, status, started_s)

    def _report(self, batch: list[tuple[Any, Done]], outputs: Sequence[Any], status: str, started_s: float) -> None:
        last_s = perf_counter()
        for place, (_, done) in enumerate(batch):
            own = outputs[place] if status == OK else None
            if isinstance(own, Exception):
                done(Answer(last_s, described(own), started_s, len(batch)))
            else:
                done(Answer(last_s, status, started_s, len(batch), outputs=own))

    def _fail(self, reason: str) -> None:
        with self._wakes:
            self._reason = reason
            left = []
            while batch := self._queue.take(perf_counter(), at_once=True):
                left += batch
        for _, done in left:
            done(Answer(perf_counter(), reason))
