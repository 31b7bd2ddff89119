"""Runs a communication scheme at the smallest size, and records what its ranks compute and send.

The ranks are threads, and their communicators count bytes like those of any run. What is recorded does not depend on
the order in which the threads happen to run: it is the order on each rank, and who sends to whom. Asynchronous schemes
take the order of their updates from a schedule.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.events import StepInfo
from deep5.distributed.communicators.base_communicator import CountedCommunicator
from deep5.distributed.communicators.threads import ThreadCommunicator, run_in_threads

__all__ = ["SERVER", "Event", "Recording", "Setup", "record", "record_call"]

SERVER = -1
"""The lane of a server's thread, which runs next to its rank's."""

# Of every wait: longer than a busy machine needs, and shorter than forever.
_LIMIT_S = 120.0

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens on a lane.

    Attributes:
        kind: `local`, `send`, `receive` or `collective`.
        label: What is drawn on it.
        key: Equal for the two ends of a message, and for all parts of a collective.
        sent_bytes: What the lane's rank hands over, as its communicator counts it.
        ranks: Of a collective, the ranks that take part.
    """

    kind: str
    label: str
    key: Key = ()
    sent_bytes: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to run.

    Attributes:
        scheme: The scheme, not wrapped.
        ranks: Number of ranks.
        before: Steps that are not recorded.
        steps: Steps that are recorded.
        schedule: The ranks whose gradients an asynchronous server applies, in this order; empty for other schemes.
        seed: The scheme's random seed.
    """

    scheme: Any
    ranks: int
    before: int = 0
    steps: int = 1
    schedule: tuple[int, ...] = ()
    seed: int = 0


@dataclass
class Recording:
    """What was recorded.

    Attributes:
        lanes: The events of each rank, and of a server, in their order.
        counted_bytes: What each rank's communicators counted in the same time.
        parameters_bytes: Size of the trained parameters.
    """

    lanes: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    counted_bytes: dict[int, int] = field(default_factory=dict)
    parameters_bytes: int = 0
    _on: set[int] = field(default_factory=set)

    def begin(self, *lanes: int) -> None:
        """Record these lanes from now on."""
        self._on.update(lanes)

    def end(self) -> None:
        """Record nothing from now on."""
        self._on.clear()

    def note(self, lane: int, kind: str, label: str, **more: Any) -> None:
        """Add an event to a lane, if it is recorded."""
        if lane in self._on:
            self.lanes[lane].append(Event(kind=kind, label=label, **more))


class _Recorded(CountedCommunicator):
    """A communicator that counts as every other, and records what passes through it."""

    def __init__(self, inner: ThreadCommunicator, recording: Recording, key: Key = ()) -> None:
        super().__init__(inner.rank, inner.size)
        self._inner, self._recording, self._key = inner, recording, key
        self._ranks = tuple(inner._group.ranks)
        self._parts: list[_Recorded] = []
        self._numbers: Counter[Key] = Counter()

    @property
    def counted(self) -> int:
        """The bytes that this communicator and its parts have counted."""
        return self.sent_bytes + sum(part.counted for part in self._parts)

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        if name != "receive":
            self._note(name, "now", given)
        self._inner._call(name, timeout_s, *given)
        if name == "receive":
            self._note(name, "now", given)

    def _call_start(self, name: str, *given: Any) -> Any:
        if name != "receive":
            self._note(name, "later", given)
        request = self._inner._call_start(name, *given)
        return _Arrival(request, lambda: self._note(name, "later", given)) if name == "receive" else request

    def _note(self, name: str, queue: str, given: Sequence[Any]) -> None:
        lane = SERVER if threading.current_thread().name == "deep5-server" else self._ranks[self.rank]
        if name in ("send", "receive"):
            buffer, other, tag = given
            ends = (self.rank, other) if name == "send" else (other, self.rank)
            key = self._numbered("message", self._key, *ends, tag)
            sent_bytes = buffer.nbytes if name == "send" else 0
            self._recording.note(lane, name, f"{buffer.nbytes} B", key=key, sent_bytes=sent_bytes)
            return
        buffer = next((entry for entry in given if isinstance(entry, np.ndarray)), np.empty(0))
        label, sent_bytes = f"{name.replace('_', '-')}, {buffer.nbytes} B each", buffer.nbytes
        if name in ("reduce", "broadcast"):
            root = given[1]
            label = f"{name} {'to' if name == 'reduce' else 'from'} {self._ranks[root]}, {buffer.nbytes} B"
            sent_bytes = buffer.nbytes if (self.rank == root) == (name == "broadcast") else 0
        key = self._numbered("collective", self._key, queue)
        alone = 0 if self.size == 1 else sent_bytes
        self._recording.note(lane, "collective", label, key=key, sent_bytes=alone, ranks=self._ranks)

    def _numbered(self, *key: Any) -> Key:
        """The key with its number: messages between two ranks, and collectives, keep their order."""
        self._numbers[key] += 1
        return (*key, self._numbers[key])

    def split(self, color: int, *, key: int | None = None) -> _Recorded:
        part = _Recorded(self._inner.split(color, key=key), self._recording, (*self._key, len(self._parts), color))
        self._parts.append(part)
        return part

    def close(self) -> None:
        self._inner.close()


class _Arrival:
    """A request for a message, which is recorded when it has arrived."""

    def __init__(self, request: Any, note: Callable[[], None]) -> None:
        self._request, self._note, self._noted = request, note, False

    def wait(self, timeout_s: float = 60.0) -> None:
        self._request.wait(timeout_s)
        self._arrived()

    def done(self) -> bool:
        found: bool = self._request.done()
        if found:
            self._arrived()
        return found

    def _arrived(self) -> None:
        if not self._noted:
            self._noted = True
            self._note()


def record(setup: Setup) -> Recording:
    """The events of a scheme's steps; every rank trains the same small network with SGD on two samples per step."""
    recording = Recording()
    turns = _Turns(setup, recording) if setup.schedule else None

    def work(inner: ThreadCommunicator) -> None:
        communicator = _Recorded(inner, recording)
        rank = inner.rank
        executor = d5.framework("reference").executor(d5.networks.mlp(features=2, hidden=3, classes=2))
        scheme = setup.scheme.wrap(d5.SGD(0.1), communicator, seed=setup.seed)
        scheme.bind(executor)
        recording.parameters_bytes = sum(4 * spec.size for spec in scheme.trained.values())
        _watch(scheme, executor, recording, rank)
        steps = setup.before + (setup.schedule.count(rank) or setup.steps)
        if turns is not None:
            turns.join(scheme, rank)
        begin_bytes = 0
        for step in range(steps):
            if turns is None and step == setup.before:
                inner.barrier()
                begin_bytes = communicator.counted
                recording.begin(rank)
            draw = np.random.default_rng((rank, step))
            inputs = {"input": draw.standard_normal((2, 2), np.float32), "label": draw.integers(0, 2, 2)}
            scheme.step(inputs, StepInfo(step, batch_size=2, global_batch_size=2 * setup.ranks))
        if turns is None:
            recording.counted_bytes[rank] = communicator.counted - begin_bytes
        else:
            turns.leave(scheme, rank)

    run_in_threads(setup.ranks, work)
    recording.lanes = dict(sorted(recording.lanes.items()))
    return recording


def record_call(function: Callable[..., None], *, ranks: int, elements: int) -> Recording:
    """The events of one call of an all-reduce on a buffer of float32.

    Args:
        function: Takes a communicator and a buffer.
        ranks: Number of ranks.
        elements: Number of elements of the buffer.
    """
    recording = Recording()
    recording.begin(*range(ranks))

    def work(inner: ThreadCommunicator) -> None:
        communicator = _Recorded(inner, recording)
        function(communicator, np.ones(elements, np.float32))
        recording.counted_bytes[inner.rank] = communicator.counted

    run_in_threads(ranks, work)
    recording.lanes = dict(sorted(recording.lanes.items()))
    return recording


def _watch(scheme: Any, executor: Any, recording: Recording, rank: int) -> None:
    """Record each gradient that a rank computes, and each update that it makes."""
    backprop, served = executor.inference_and_backprop, hasattr(scheme, "_version")

    def watched_backprop(*given: Any, **options: Any) -> Any:
        recording.note(rank, "local", f"gradient at {_version(scheme._version)}" if served else "gradient")
        return backprop(*given, **options)

    executor.inference_and_backprop = watched_backprop
    optimizer = scheme.optimizer
    step, own = optimizer.step, optimizer.train_step

    def watched_step(*given: Any) -> Any:
        outputs = step(*given)
        recording.note(rank, "local", "update")
        return outputs

    optimizer.step = watched_step
    if hasattr(own, "apply") and not served:
        apply = own.apply

        def watched_apply(*given: Any) -> None:
            apply(*given)
            recording.note(rank, "local", "update")

        own.apply = watched_apply


def _version(number: int) -> str:
    return "w" + str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


class _Turns:
    """Lets the ranks of an asynchronous scheme push their gradients in the order of a schedule, one at a time."""

    def __init__(self, setup: Setup, recording: Recording) -> None:
        self._setup, self._recording = setup, recording
        self._root: Any = None
        self._returned = 0
        self._meeting = threading.Barrier(setup.ranks, timeout=_LIMIT_S)
        self._begin_bytes: dict[int, int] = {}

    def join(self, scheme: Any, rank: int) -> None:
        """Make a rank's scheme wait for its turns."""
        begin, push = scheme._begin, scheme._push
        turns = iter([place for place, other in enumerate(self._setup.schedule) if other == rank])

        def watched_begin(info: StepInfo) -> None:
            begin(info)
            if scheme.server is not None:
                self._watch(scheme)
                self._root = scheme
            self._wait(0)
            self._begin_bytes[rank] = scheme._link.sent_bytes
            self._recording.begin(*((rank, SERVER) if scheme.server is not None else (rank,)))
            # A first push would end the others' wait for turn 0.
            self._meeting.wait()

        def watched_push(kind: int, info: StepInfo) -> None:
            self._wait(next(turns))
            push(kind, info)

        scheme._begin, scheme._push = watched_begin, watched_push

    def leave(self, scheme: Any, rank: int) -> None:
        """Wait for the end of the schedule, and end the epoch, unrecorded."""
        self._wait(len(self._setup.schedule))
        self._recording.counted_bytes[rank] = scheme._link.sent_bytes - self._begin_bytes[rank]
        self._meeting.wait()
        self._recording.end()
        scheme.settle()

    def _watch(self, scheme: Any) -> None:
        """Record the updates of the server, and what the root gives it in memory."""
        server, root, note = scheme.server, scheme.root, self._recording.note
        apply, push = server._apply, server.push

        def watched_apply(rank: int, gradients: Any, version: int, info: StepInfo) -> int:
            key = ("memory", "to", server.updates)
            if rank == root:
                note(root, "send", "in memory", key=key)
                note(SERVER, "receive", "in memory", key=key)
            staleness: int = apply(rank, gradients, version, info)
            note(SERVER, "local", f"{_version(server.updates)}, s = {staleness}")
            return staleness

        def watched_push(*given: Any) -> tuple[int, int, int]:
            found: tuple[int, int, int] = push(*given)
            key = ("memory", "from", self._returned)
            # Next to the update that it follows: the server's thread may be ahead.
            updates = [place for place, event in enumerate(self._recording.lanes[SERVER]) if event.kind == "local"]
            answer = Event(kind="send", label="in memory", key=key)
            self._recording.lanes[SERVER].insert(updates[found[0] - 1] + 1, answer)
            note(root, "receive", "in memory", key=key)
            self._returned += 1
            return found

        server._apply, server.push = watched_apply, watched_push

    def _wait(self, turn: int) -> None:
        """Wait until the updates before a turn are made, and every rank that may continue has its answer."""
        limit = monotonic() + _LIMIT_S
        while not self._quiet(turn):
            if monotonic() > limit:
                raise TimeoutError(f"turn {turn} of the schedule did not begin within {_LIMIT_S:g} s")
            sleep(0.0005)

    def _quiet(self, turn: int) -> bool:
        if self._root is None:
            return False
        root, server, done = self._root.root, self._root.server, self._setup.schedule[:turn]
        with server.lock:
            held = set(server._held)
            # A message of every worker began the epoch.
            asked = self._setup.ranks - 1 + len(done) - done.count(root)
            return (
                server.updates == turn
                and not any(server._admits(rank) for rank in held)
                and self._root._link.messages == asked - len(held - {root})
                and self._returned == done.count(root) - len(held & {root})
            )
