"""Timing of messages and additions, to which the machine's constants are fitted."""

from __future__ import annotations

from time import monotonic, perf_counter, sleep

import numpy as np

from deep5.bench.collective.plan import CollectivePlan
from deep5.core.communicator import Communicator
from deep5.distributed.collectives.messages import COMBINE

__all__ = ["MachineTimes"]

# Sizes go up to the largest measured one: in caches, both are faster than in memory. For small plans they go up to
# `_LEAST_BYTES`, because a slope requires sizes that take longer than a message's latency.
_LEAST_BYTES, _MOST_BYTES = 1 << 21, 1 << 26
_WARM_UP = 1
_FEWEST = 3
# Polling interval of an idle rank: constant polling would take a processor from the working ranks.
_PAUSE_S = 0.002


def _sizes(plan: CollectivePlan, first: int) -> list[int]:
    most = min(max(*plan.sizes_bytes, _LEAST_BYTES), _MOST_BYTES)
    sizes = [first]
    while sizes[-1] * 4 <= most:
        sizes.append(sizes[-1] * 4)
    return sizes


class MachineTimes:
    """Times of messages and additions, collected over the whole measurement, so that short disturbances do not matter.

    Every rank creates one and makes the same calls.

    Args:
        communicator: Communicator of at least two ranks.
        plan: Defines the total number of rounds, dtype, op, and timeout.

    Attributes:
        message_s: By size in bytes, half of the round-trip time between the first rank and the last, which are the most
            likely to be on different machines. The other ranks wait meanwhile. The same on every rank.
        addition_s: By size in bytes, the time of NumPy to combine two buffers in place, on all ranks at once; that of
            the slowest rank. The same on every rank.
    """

    def __init__(self, communicator: Communicator, plan: CollectivePlan) -> None:
        self._communicator, self._plan = communicator, plan
        # Once before the first size and once after each.
        self._rounds = max(_FEWEST, -(-2 * plan.rounds // (len(plan.sizes_bytes) + 1)))
        self.message_s: dict[int, list[float]] = {size: [] for size in _sizes(plan, 8)}
        self.addition_s: dict[int, list[float]] = {size: [] for size in _sizes(plan, 1024)}

    def collect(self) -> None:
        """Collect further measurements."""
        self._messages()
        self._additions()

    def _messages(self) -> None:
        communicator, limit_s = self._communicator, self._plan.timeout_s
        last, rank = communicator.size - 1, communicator.rank
        times = np.zeros((len(self.message_s), self._rounds))
        for place, size in enumerate(self.message_s if rank in (0, last) else ()):
            buffer = np.zeros(size, np.uint8)
            for number in range(-_WARM_UP, self._rounds):
                begin = perf_counter()
                if rank == 0:
                    communicator.send(buffer, last, timeout_s=limit_s)
                    communicator.receive(buffer, last, timeout_s=limit_s)
                else:
                    communicator.receive(buffer, 0, timeout_s=limit_s)
                    communicator.send(buffer, 0, timeout_s=limit_s)
                if number >= 0:
                    times[place, number] = (perf_counter() - begin) / 2
        _meet_quietly(communicator, limit_s)
        communicator.broadcast(times, root=0, timeout_s=limit_s)
        for values, more in zip(self.message_s.values(), times.tolist(), strict=True):
            values.extend(more)

    def _additions(self) -> None:
        communicator, plan = self._communicator, self._plan
        times = np.zeros((len(self.addition_s), self._rounds))
        for place, size in enumerate(self.addition_s):
            own = np.ones(size // plan.itemsize, plan.dtype)
            other = own.copy()
            for number in range(-_WARM_UP, self._rounds):
                communicator.barrier(timeout_s=plan.timeout_s)
                begin = perf_counter()
                COMBINE[plan.op](own, other, out=own)
                passed_s = perf_counter() - begin
                own[:] = other
                if number >= 0:
                    times[place, number] = passed_s
        communicator.all_reduce(times, op="max", timeout_s=plan.timeout_s)
        for values, more in zip(self.addition_s.values(), times.tolist(), strict=True):
            values.extend(more)


def _meet_quietly(communicator: Communicator, timeout_s: float) -> None:
    request, deadline = communicator.barrier_start(), monotonic() + timeout_s
    while not request.done() and monotonic() < deadline:
        sleep(_PAUSE_S)
    request.wait(max(deadline - monotonic(), _PAUSE_S))
