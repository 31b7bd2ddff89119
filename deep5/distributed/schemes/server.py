"""`Server`: applies the gradients of all ranks in the order of arrival, in parallel with the root's own training."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from time import monotonic, perf_counter_ns, sleep
from typing import Any

from deep5.core.communicator import Communicator, Request
from deep5.core.errors import CommunicationError
from deep5.core.events import StepInfo
from deep5.core.worker_threads import begin
from deep5.distributed.schemes.server_memory import Block, ServerMemory

__all__ = ["DONE", "GO", "HELLO", "OVER", "PUSH", "TAG", "TICK", "WAIT", "Server"]

TAG = 0
"""Tag of all messages between a worker and the server, which have a separate communicator."""

HELLO, PUSH, TICK, DONE = 1, 2, 3, 4
"""Worker messages, the first number of the head: epoch started, gradient, step without a sample, epoch ended.

Then follow the version of the worker's parameters, the epoch and the number of samples of the step.
"""

GO, WAIT, OVER = 5, 6, 7
"""Server messages: newest parameters; the answer is still to come; all ranks ended the epoch, with its last parameters.

Then follow the version of the parameters, the staleness of the gradient, and the nanoseconds for which the answer was
held back for slower ranks.
"""

# How long the server sleeps between two polls: it polls often after a message, and leaves a core free otherwise.
_SHORTEST_S, _LONGEST_S = 5e-5, 1e-3


class Server:
    """Updates one rank's memory, one epoch at a time.

    A thread handles the messages of the other ranks; the root's thread applies the root's own gradients. Either holds
    the lock during an update and a copy of the parameters. The root's host holds, for each worker, a copy of the
    parameters and one of its gradients. A rank that is held back, for slower ranks or because its epoch has ended, gets
    periodic messages, so that a rank that receives nothing for `timeout_s` knows that the server is lost; likewise a
    rank silent for that long is lost to the server. The thread ends with the epoch, with an error, with the thread that
    started it, and on `close`.

    Args:
        communicator: Connects the root and its workers; not used for anything else.
        memory: The parameters.
        step: The second half of a training step on them.
        bound: By how many steps a rank may lead the slowest; None: any number.
        timeout_s: Longest permitted silence of a rank.

    Attributes:
        updates: Number of updates since training began: the version of the parameters.
        staleness: One counter per rank of the gradients applied since the server was created, by the number of updates
            between their parameters and their application.
        waited_ns: Nanoseconds that the root itself waited in `push`, for slower ranks and for others' updates.
    """

    def __init__(
        self, communicator: Communicator, memory: ServerMemory, step: Any, *, bound: int | None, timeout_s: float
    ) -> None:
        self._communicator, self._memory, self._step = communicator, memory, step
        self._bound, self._timeout_s = bound, timeout_s
        self.updates = 0
        self.staleness: list[Counter[int]] = [Counter() for _ in range(communicator.size)]
        self.lock = threading.Condition()
        self._root = communicator.rank
        workers = [rank for rank in range(communicator.size) if rank != self._root]
        self._inboxes = {rank: Block(self._specs()) for rank in workers}
        self._outboxes = {rank: Block(self._specs()) for rank in workers}
        self._sends: dict[int, Request] = {}
        self._thread: threading.Thread | None = None
        self._stop, self._prepared = threading.Event(), False
        self._clear()

    def _specs(self) -> Any:
        parameters = self._memory.network.parameter_specs
        return {name: parameters[name] for name in self._memory.block.views}

    def _clear(self) -> None:
        size, now = self._communicator.size, monotonic()
        self._clocks, self._finished = [0] * size, set[int]()
        # The ranks whose answer is held back: since when, and the staleness of their gradient.
        self._held: dict[int, tuple[int, int]] = {}
        self._heard, self._reported = [now] * size, [now] * size
        self._error: Exception | None = None
        self.waited_ns = 0

    def begin(self, info: StepInfo) -> int:
        """Start an epoch: the memory then holds the point of the first gradient. Called by the root's thread.

        Returns:
            The version of the parameters.
        """
        self._clear()
        self._stop.clear()
        with self.lock:
            self._prepare(info)
        owner = threading.current_thread()
        self._thread = threading.Thread(target=self._serve, args=(owner,), name="deep5-server", daemon=True)
        self._thread.start()
        return self.updates

    def push(self, gradients: Block | None, version: int, info: StepInfo, newest: Block) -> tuple[int, int, int]:
        """The root's own step: apply its gradient, and wait for slower ranks if there is a bound.

        Args:
            gradients: None if the root had no sample.
            version: Version of the parameters at which the gradient was computed.
            info: The step.
            newest: Receives the newest parameters.

        Returns:
            Their version, the staleness of the gradient, and the nanoseconds waited for slower ranks.

        Raises:
            CommunicationError: The server has failed, or does not respond.
        """
        root, begin_ns = self._root, perf_counter_ns()
        with self.lock:
            # Another thread, which held the lock, makes the others' updates.
            self.waited_ns += perf_counter_ns() - begin_ns
            self._check()
            staleness = 0 if gradients is None else self._apply(root, gradients, version, info)
            self._clocks[root] += 1
            begin = perf_counter_ns()
            self._held[root] = (begin, staleness)
            while not self._admits(root):
                self.lock.wait(0.2)
                self._check()
            del self._held[root]
            held_ns = perf_counter_ns() - begin
            self.waited_ns += held_ns
            self._heard[root] = monotonic()
            newest.memory[...] = self._memory.block.memory
            return self.updates, staleness, held_ns

    def finish(self) -> None:
        """End the root's epoch: return when all ranks have ended theirs.

        Raises:
            CommunicationError: A rank was lost.
        """
        thread = self._thread
        with self.lock:
            self._finished.add(self._root)
        # The thread ends when all ranks have ended the epoch, and when one is lost.
        while thread is not None and thread.is_alive():
            thread.join(0.2)
        self._thread = None
        self._check()

    def close(self) -> None:
        """End the thread, regardless of the other ranks."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(min(self._timeout_s, 5.0))

    def snapshot(self) -> tuple[dict[str, Any], int]:
        """Copies of the parameters, and their version; may be called while other ranks work."""
        with self.lock:
            prepared, self._prepared = self._prepared, False
            self._step.cancel()
            found = {name: view.copy() for name, view in self._memory.block.views.items()}
            if prepared:
                self._prepare(StepInfo())
            return found, self.updates

    def _check(self) -> None:
        if self._error is not None:
            raise CommunicationError(f"the parameter server failed: {self._error}") from self._error
        if self._stop.is_set():
            raise CommunicationError("the parameter server was closed before the end of the epoch")

    def _apply(self, rank: int, gradients: Block, version: int, info: StepInfo) -> int:
        """Make one update while the lock is held; return the gradient's staleness."""
        self._step.apply(gradients.views, self._numbered(info))
        staleness = self.updates - version
        self.updates += 1
        self.staleness[rank][staleness] += 1
        self._prepare(info)
        return staleness

    def _numbered(self, info: StepInfo) -> StepInfo:
        # The rule counts updates, not one rank's steps.
        return StepInfo(self.updates, info.epoch, info.batch_size)

    def _prepare(self, info: StepInfo) -> None:
        self._step.backprop({}, self._numbered(info))
        self._prepared = True

    def _admits(self, rank: int) -> bool:
        """Whether a rank may continue; ranks that have ended their epoch hold no other rank back."""
        if self._bound is None:
            return True
        running = [clock for other, clock in enumerate(self._clocks) if other not in self._finished]
        return not running or self._clocks[rank] - min(running) <= self._bound

    def _serve(self, owner: threading.Thread) -> None:
        begin()
        letters: dict[int, Request] = {}
        try:
            for rank in self._inboxes:
                letters[rank] = self._listen(rank)
            self._exchange(letters, owner)
        except Exception as error:
            with self.lock:
                self._error = error
        finally:
            # Releases the memory of messages that did not arrive.
            for letter in letters.values():
                with suppress(CommunicationError):
                    letter.wait(0.0)
            with self.lock:
                self.lock.notify_all()

    def _listen(self, rank: int) -> Request:
        return self._communicator.receive_start(self._inboxes[rank].memory, rank, tag=TAG)

    def _exchange(self, letters: dict[int, Request], owner: threading.Thread) -> None:
        last = monotonic()
        while len(self._finished) < self._communicator.size:
            if self._stop.is_set() or not owner.is_alive():
                return
            moved = False
            for rank in [rank for rank, letter in letters.items() if letter.done()]:
                moved = True
                del letters[rank]
                if self._take(rank):
                    letters[rank] = self._listen(rank)
            if self._answer() or moved:
                last = monotonic()
                continue
            self._look_for_lost()
            sleep(min(max((monotonic() - last) / 10, _SHORTEST_S), _LONGEST_S))
        with self.lock:
            self._step.cancel()
            self._prepared = False
        for rank in self._outboxes:
            self._send(rank, OVER)
        for request in self._sends.values():
            request.wait(self._timeout_s)
        self._sends.clear()

    def _take(self, rank: int) -> bool:
        """Handle a worker's message; return whether more will come."""
        inbox = self._inboxes[rank]
        kind, version, epoch, batch_size = (int(number) for number in inbox.head[:4])
        with self.lock:
            staleness = 0
            if kind == PUSH:
                staleness = self._apply(rank, inbox, version, StepInfo(0, epoch, batch_size))
            if kind in (PUSH, TICK):
                self._clocks[rank] += 1
            if kind == DONE:
                self._finished.add(rank)
            else:
                self._held[rank] = (perf_counter_ns(), staleness)
            self._heard[rank] = self._reported[rank] = monotonic()
            self.lock.notify_all()
        return kind != DONE

    def _answer(self) -> bool:
        """Answer the ranks that may continue, send a keep-alive to the others; return whether any continued."""
        with self.lock:
            free = [rank for rank in self._held if rank != self._root and self._admits(rank)]
            waiting = {*self._held, *self._finished} - {self._root, *free}
        for rank in free:
            with self.lock:
                since, staleness = self._held.pop(rank)
            self._send(rank, GO, staleness, perf_counter_ns() - since)
        for rank in waiting:
            if monotonic() - self._reported[rank] > self._timeout_s / 4:
                self._send(rank, WAIT)
        return bool(free)

    def _send(self, rank: int, kind: int, staleness: int = 0, held_ns: int = 0) -> None:
        if (under_way := self._sends.pop(rank, None)) is not None:
            under_way.wait(self._timeout_s)
        out = self._outboxes[rank]
        with self.lock:
            out.memory[...] = self._memory.block.memory
            out.head[:4] = kind, self.updates, staleness, held_ns
            self._heard[rank] = self._reported[rank] = monotonic()
        self._sends[rank] = self._communicator.send_start(out.memory, rank, tag=TAG)

    def _look_for_lost(self) -> None:
        now = monotonic()
        for rank, heard in enumerate(self._heard):
            if rank not in self._held and rank not in self._finished and now - heard > self._timeout_s:
                raise CommunicationError(
                    f"rank {rank} has sent nothing for {self._timeout_s:g} s; remedy: a longer timeout_s, where its "
                    "steps take so long"
                )
