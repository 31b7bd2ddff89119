"""The context managers of a recorder: reused objects whose use allocates nothing that stays.

A region costs two readings of the clock and some attribute accesses; everything else happens between the steps.
"""

from __future__ import annotations

from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deep5.recorder.state import State

__all__ = ["Epoch", "Evaluation", "Region", "Step"]

_Kind = type[BaseException] | None


class Region:
    """A named part of the loop: `with run.region("forward"):`.

    Args:
        name: Its name.
        state: The recorder's state.
        capacity: Number of buffered steps.

    Attributes:
        name: Its name.
        ns: By place (in a step, between steps, in an evaluation), the nanoseconds by buffered step.
    """

    __slots__ = ("_begin", "_state", "name", "ns")

    def __init__(self, name: str, state: State, capacity: int) -> None:
        self.name, self._state, self._begin = name, state, 0
        self.ns = tuple([0] * (capacity + 1) for _ in range(3))

    def __enter__(self) -> None:
        state = self._state
        if state.region is not None or state.place < 0:
            state.refuse_region(self)
        state.region = self
        self._begin = perf_counter_ns()

    def __exit__(self, kind: _Kind, error: BaseException | None, trace: TracebackType | None) -> None:
        end = perf_counter_ns()
        state = self._state
        if state.region is not self:
            state.refuse_end(f"the region {self.name!r}", kind)
            return
        state.region = None
        self.ns[state.place][state.slot] += end - self._begin


class Step:
    """One training step: `with run.step(batch_size=64):`.

    Attributes:
        batch_size: Samples of the step.
    """

    __slots__ = ("_begin", "_state", "batch_size")

    def __init__(self, state: State) -> None:
        self._state, self._begin, self.batch_size = state, 0, 1

    def __enter__(self) -> None:
        state = self._state
        if state.place != 1 or state.region is not None:
            state.refuse_step()
        state.place = 0
        self._begin = perf_counter_ns()

    def __exit__(self, kind: _Kind, error: BaseException | None, trace: TracebackType | None) -> None:
        state = self._state
        if state.waits and kind is None:
            state.wait_for_last()
        end = perf_counter_ns()
        if state.place != 0 or (state.region is not None and kind is None):
            state.refuse_end("the step", kind)
            return
        state.place, slot = 1, state.slot
        if kind is not None:
            state.region = None
            state.forget_step()
            return
        state.begins[slot], state.ends[slot], state.sizes[slot] = self._begin, end, self.batch_size
        slot += 1
        state.slot = slot
        if slot == state.capacity or end >= state.due_ns:
            state.flush()


class Epoch:
    """One epoch: `with run.epoch():`."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._state.begin_epoch()

    def __exit__(self, kind: _Kind, error: BaseException | None, trace: TracebackType | None) -> None:
        self._state.end_epoch(kind)


class Evaluation:
    """The evaluation of an epoch, in it or after it: `with run.evaluation():`."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._state.begin_evaluation()

    def __exit__(self, kind: _Kind, error: BaseException | None, trace: TracebackType | None) -> None:
        self._state.end_evaluation(kind)
