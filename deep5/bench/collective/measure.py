"""Timing of all-reduce: algorithms in alternation, by one set of ranks, over sizes, with a check of every result."""

from __future__ import annotations

import json
import os
import platform
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np

from deep5.bench.collective.data import allowed_error, drawn, largest_error, reference
from deep5.bench.collective.machine import MachineTimes
from deep5.bench.collective.plan import LIBRARY, CollectivePlan
from deep5.core.communicator import Communicator
from deep5.core.errors import UnknownName, UsageError
from deep5.core.progress import Reporter, Steps
from deep5.distributed.agreement import checksum
from deep5.distributed.collectives.algorithms import ALGORITHMS, AllReduceFunction
from deep5.distributed.texts import gather_texts
from deep5.measuring.machine_load import machine_state, share_of_others
from deep5.results.round_samples import order_of_round

__all__ = ["CollectiveTimes", "Measured", "is_right", "measure_collectives"]

# Size of the larger warm-up buffer: small enough for many calls in a tenth of a second.
_WARM_BYTES = 1 << 16
# Bytes that take as long as the latency of a call, for the time left.
_LEAST_WORK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One algorithm at one size.

    Attributes:
        algorithm: Its name.
        size_bytes: Size of the buffer.
        seconds: One per call, in the order of the rounds; the slowest rank's.
        own_seconds: By rank, the same by its own clock.
        sent_bytes: By rank, the bytes that the communicator counted in one call.
        messages: By rank, the number of these messages.
        largest_error: Over all ranks; see `deep5.bench.collective.data.largest_error`.
        checksums: By rank, two sums over the bits of the first result and two over those of the last, from
            `deep5.distributed.agreement.checksum`.
    """

    algorithm: str
    size_bytes: int
    seconds: tuple[float, ...]
    own_seconds: tuple[tuple[float, ...], ...]
    sent_bytes: tuple[int, ...]
    messages: tuple[int, ...]
    largest_error: float
    checksums: tuple[tuple[int, ...], ...]

    @property
    def same_bits(self) -> bool:
        """Whether all ranks had the same result."""
        return len(set(self.checksums)) == 1


@dataclass(frozen=True, kw_only=True)
class CollectiveTimes:
    """Measurements of a plan; the same on every rank.

    Attributes:
        plan: The plan.
        ranks: Number of ranks.
        measured: By size, in the order of the plan's algorithms.
        message_s: By size in bytes, seconds of a message.
        addition_s: By size in bytes, seconds of combining two buffers.
        others_share: Share of the ranks' processors that other programs used meanwhile, 0 to 1; None if unknown.
    """

    plan: CollectivePlan
    ranks: int
    measured: tuple[Measured, ...]
    message_s: Mapping[int, list[float]]
    addition_s: Mapping[int, list[float]]
    others_share: float | None = None

    def to_json(self) -> str:
        """The measurements as JSON, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CollectiveTimes:
        """The inverse of `to_json`."""
        found = json.loads(text)
        measured = []
        for row in found["measured"]:
            lists: dict[str, Any] = {name: tuple(row[name]) for name in ("seconds", "sent_bytes", "messages")}
            lists |= {name: tuple(map(tuple, row[name])) for name in ("own_seconds", "checksums")}
            measured.append(Measured(**{**row, **lists}))
        return cls(
            plan=CollectivePlan.from_json(json.dumps(found["plan"])),
            ranks=found["ranks"],
            measured=tuple(measured),
            message_s={int(size): times for size, times in found["message_s"].items()},
            addition_s={int(size): times for size, times in found["addition_s"].items()},
            others_share=found["others_share"],
        )


def measure_collectives(
    communicator: Communicator, plan: CollectivePlan, algorithms: Mapping[str, AllReduceFunction] = ALGORITHMS
) -> CollectiveTimes:
    """Time a plan; every rank calls this with the same arguments.

    A round calls every algorithm once; a random order is drawn for every two rounds and reversed in the second. Before
    each call, the buffer is refilled and the ranks meet at a barrier; each rank reads its own clock around its call,
    and the slowest counts. The first and the last call of each algorithm are checked: against a float64 sum that each
    rank computes itself, and for bit-identical results on all ranks.

    Args:
        communicator: Communicator of at least two ranks.
        plan: What to measure.
        algorithms: By name.

    Raises:
        UsageError: There is only one rank, or an algorithm does not exist.
        CommunicationError: A call did not finish in time, or a rank is lost.
    """
    if communicator.size < 2:
        raise UsageError("a collective on 1 rank; allowed: at least 2 ranks; remedy: --ranks 2")
    functions: dict[str, AllReduceFunction] = {}
    for name in plan.algorithms:
        if name != LIBRARY and name not in algorithms:
            raise UnknownName("all-reduce algorithm", name, (*algorithms, LIBRARY))
        functions[name] = _library if name == LIBRARY else algorithms[name]
    before = machine_state()
    machine, measured = MachineTimes(communicator, plan), []
    _warm_up(communicator, plan, functions)
    machine.collect()
    # The first rank prints between two sizes, where the others wait for it.
    with Reporter(quiet=communicator.rank > 0) as tell:
        # The time left follows from the work, and the count is that of sizes.
        work = [size_bytes + _LEAST_WORK_BYTES for size_bytes in plan.sizes_bytes]
        finished = list(accumulate(work))
        steps = Steps(finished[-1], tell, shown=lambda amount: f"{bisect_right(finished, amount)}")
        for size_bytes, amount in zip(plan.sizes_bytes, work, strict=True):
            steps.say("timing collectives: sizes")
            measured += _Size(communicator, plan, functions, size_bytes).measure()
            machine.collect()
            steps.advance(amount)
    return CollectiveTimes(
        plan=plan,
        ranks=communicator.size,
        measured=tuple(measured),
        message_s=machine.message_s,
        addition_s=machine.addition_s,
        others_share=_others_share(communicator, before, plan.timeout_s),
    )


def _warm_up(communicator: Communicator, plan: CollectivePlan, functions: Mapping[str, AllReduceFunction]) -> None:
    """Call everything at the smallest size and a larger one until the time is over on the first rank."""
    begin, limit_s = monotonic(), plan.timeout_s
    sizes = [min(plan.sizes_bytes), min(max(plan.sizes_bytes), _WARM_BYTES)]
    each = [_Size(communicator, plan, functions, size // plan.itemsize * plan.itemsize) for size in sizes]
    again = np.array([plan.warm_up_s > 0], np.int64)
    while again[0]:
        for size in each:
            size.call_all()
        again[0] = monotonic() - begin < plan.warm_up_s
        communicator.broadcast(again, root=0, timeout_s=limit_s)


def _others_share(communicator: Communicator, before: Mapping[str, Any], limit_s: float) -> float | None:
    """Share of the processors that processes other than these ranks used, the maximum over ranks; None if unknown.

    A rank knows only the time of its own process: it queries its neighbors on the same machine and subtracts their
    time.
    """
    after = machine_state()
    own = np.array([after["own_s"] - before["own_s"]])
    used = np.empty((communicator.size, 1))
    communicator.all_gather(own, used, timeout_s=limit_s)
    hosts = gather_texts(communicator, f"{platform.node()} {os.getpid()}")
    places = {text: place for place, text in enumerate(hosts)}  # threads of one process count once
    here = sum(float(used[place, 0]) for text, place in places.items() if text.split()[0] == platform.node())
    share = share_of_others([(before, {**after, "own_s": before["own_s"] + here})])
    seen = np.array([-1.0 if share is None else share])
    communicator.all_reduce(seen, op="max", timeout_s=limit_s)
    return float(seen[0]) if seen[0] >= 0 else None


def _library(communicator: Communicator, buffer: np.ndarray, **given: Any) -> None:
    communicator.all_reduce(buffer, **given)


class _Size:
    """All algorithms at one size."""

    def __init__(
        self,
        communicator: Communicator,
        plan: CollectivePlan,
        functions: Mapping[str, AllReduceFunction],
        size_bytes: int,
    ) -> None:
        self.communicator, self.plan, self.functions, self.size_bytes = communicator, plan, functions, size_bytes
        elements = size_bytes // plan.itemsize
        self.own = drawn(plan, communicator.rank, elements)
        self.right = reference(plan, communicator.size, elements)
        self.buffer = np.empty_like(self.own)
        count = len(functions)
        self.seconds = np.zeros((count, plan.rounds))
        self.errors = np.zeros(count)
        # By algorithm: two sums each over the bits of the first result and the last; bytes and messages of a call.
        self.sums = np.zeros((count, 2, 2), np.int64)
        self.sent = np.zeros((count, 2), np.int64)

    def measure(self) -> list[Measured]:
        plan, communicator = self.plan, self.communicator
        names = list(self.functions)
        calls = plan.warm_up + plan.rounds
        for number in range(calls):
            for place in order_of_round(plan.seed, number, len(names), reverses=True):
                passed_s = self._call(place, self.functions[names[place]])
                if number >= plan.warm_up:
                    self.seconds[place, number - plan.warm_up] = passed_s
                if number in (0, calls - 1):
                    self._look(place, 0 if number == 0 else 1)
                    if calls == 1:
                        self.sums[place, 1] = self.sums[place, 0]
        limit_s = plan.timeout_s
        seconds = np.empty((communicator.size, *self.seconds.shape))
        communicator.all_gather(self.seconds, seconds, timeout_s=limit_s)
        communicator.all_reduce(self.errors, op="max", timeout_s=limit_s)
        sums = np.empty((communicator.size, *self.sums.shape), np.int64)
        communicator.all_gather(self.sums, sums, timeout_s=limit_s)
        sent = np.empty((communicator.size, *self.sent.shape), np.int64)
        communicator.all_gather(self.sent, sent, timeout_s=limit_s)
        return [
            Measured(
                algorithm=name,
                size_bytes=self.size_bytes,
                seconds=tuple(seconds[:, place].max(axis=0).tolist()),
                own_seconds=tuple(map(tuple, seconds[:, place].tolist())),
                sent_bytes=tuple(sent[:, place, 0].tolist()),
                messages=tuple(sent[:, place, 1].tolist()),
                largest_error=float(self.errors[place]),
                checksums=tuple(map(tuple, sums[:, place].reshape(communicator.size, -1).tolist())),
            )
            for place, name in enumerate(names)
        ]

    def call_all(self) -> None:
        """Call every algorithm once, without a check."""
        for place, function in enumerate(self.functions.values()):
            self._call(place, function)

    def _call(self, place: int, function: AllReduceFunction) -> float:
        communicator, limit_s = self.communicator, self.plan.timeout_s
        given: dict[str, Any] = {"op": self.plan.op, "timeout_s": limit_s}
        if function is ALGORITHMS["pipeline"]:
            given["segment_bytes"] = self.plan.segment_bytes
        np.copyto(self.buffer, self.own)
        communicator.barrier(timeout_s=limit_s)
        before = communicator.sent_bytes, communicator.messages
        begin = perf_counter_ns()
        function(communicator, self.buffer, **given)
        passed_s = (perf_counter_ns() - begin) / 1e9
        self.sent[place] = communicator.sent_bytes - before[0], communicator.messages - before[1]
        return passed_s

    def _look(self, place: int, which: int) -> None:
        self.errors[place] = max(self.errors[place], largest_error(self.plan, self.buffer, self.right))
        self.sums[place, which] = checksum(self.buffer)


def is_right(measured: Measured, plan: CollectivePlan) -> bool:
    """Whether all checked results are correct, and the same on every rank."""
    return measured.same_bits and measured.largest_error <= allowed_error(plan, len(measured.sent_bytes))
