"""`Buffers`: the steps of a loop that are not yet evaluated, in lists that are allocated once.

In a loop, storing into a list costs half of storing into an `array`, whose conversion is code that is not in the cache.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["BETWEEN", "EVALUATION", "NOWHERE", "STEP", "Buffers", "Part"]

NOWHERE, STEP, BETWEEN, EVALUATION = -1, 0, 1, 2
"""Where a loop is: outside of epochs, in a step, between two steps of an epoch, in an evaluation."""

_CAPACITY = 4096


class Part(Protocol):
    """A named part of the loop, with its nanoseconds by place and by buffered step."""

    name: str
    ns: tuple[list[int], ...]


class Buffers:
    """Times, sizes and losses of the last steps.

    Attributes:
        capacity: Number of steps.
        slot: Number of buffered steps.
        begins: Begin of each step, in `time.perf_counter_ns`.
        ends: End of each step.
        sizes: Samples of each step.
        losses: The loss of each step, a number or an array that may still be computed; None: not logged.
        regions: The named parts.
        origin_ns: Origin of the run's clock; None before the first epoch.
        paused_ns: How long that clock stood still.
    """

    def __init__(self) -> None:
        self.capacity, self.slot = _CAPACITY, 0
        self.begins, self.ends, self.sizes = ([0] * _CAPACITY for _ in range(3))
        self.losses: list[Any] = [None] * _CAPACITY
        self.regions: dict[str, Part] = {}
        self.origin_ns: int | None = None
        self.paused_ns = 0
