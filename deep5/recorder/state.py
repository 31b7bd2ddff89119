"""`State`: what a recorder is in the middle of, and the buffers of the steps that are not yet evaluated."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NoReturn

from deep5.core.errors import UsageError
from deep5.recorder.buffers import BETWEEN, EVALUATION, NOWHERE, STEP, Buffers, Part

if TYPE_CHECKING:
    from deep5.recorder.epoch_times import EpochTimes
    from deep5.recorder.replay import Replay

__all__ = ["State"]

_WHERE = {NOWHERE: "outside of an epoch", STEP: "in a step", BETWEEN: "in an epoch", EVALUATION: "in an evaluation"}
_NO_NS = 1 << 62


class _Elsewhere:
    """The open region in a forked child, so that nothing else can begin."""

    def __init__(self) -> None:
        self.name: str = ""
        self.ns: tuple[list[int], ...] = ()


class State(Buffers):
    """The position in the loop, and the buffered steps.

    Times are of `time.perf_counter_ns`. The run's clock starts at the first epoch and stands still while the recorder
    evaluates and saves its buffers, which happens between steps.

    Args:
        replay: Receives the buffered steps.
        save: Saves the samples if that is due, and returns when it is due again, in nanoseconds.
        wait: Waits until the device has computed an array.
        waits: Whether every step waits for the last array that was given.
    """

    def __init__(self, replay: Replay, save: Callable[[], int], wait: Callable[[Any], None], *, waits: bool) -> None:
        self._replay, self._save, self._wait, self.waits = replay, save, wait, waits
        super().__init__()
        self.place, self.due_ns = NOWHERE, _NO_NS
        self.region: Part | None = None
        self.last: Any = None
        self.always: Any = None
        self._pid, self._ended, self._back, self._span_ns = os.getpid(), False, NOWHERE, 0

    # Time -----------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Nanoseconds on the run's clock."""
        return 0 if self.origin_ns is None else perf_counter_ns() - self.origin_ns - self.paused_ns

    def wait_for_last(self) -> None:
        """Wait until the device has computed the last array that was given."""
        if self.last is not None:
            self._wait(self.last)
            self.last = None
        elif self.always is not None:
            self._wait(self.always)

    def flush(self) -> None:
        """Evaluate the buffered steps, and save them if that is due; the run's clock stands still."""
        begin = perf_counter_ns()
        self._replay.drain(self)
        if begin >= self.due_ns:
            self.due_ns = self._save()
        self.paused_ns += perf_counter_ns() - begin

    # Epochs and evaluations -----------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Begin an epoch; the one before is evaluated first."""
        self.check_process()
        if self.place != NOWHERE:
            self._refuse("an epoch begins", "after the end of the epoch before")
        self.settle()
        if self.origin_ns is None:
            self.origin_ns, self.paused_ns = perf_counter_ns(), 0
            self._replay.begin(self.origin_ns)
            self.due_ns = self._save()
            self.paused_ns = perf_counter_ns() - self.origin_ns
        self._replay.begin_epoch(self.now())
        self.place = BETWEEN

    def end_epoch(self, kind: type[BaseException] | None) -> None:
        """End the epoch; evaluations may follow it."""
        if self.place != BETWEEN or self.region is not None:
            self.refuse_end("the epoch", kind)
            return
        if kind is None:
            self.wait_for_last()
        self._times.end_ns = self.now()
        self.place, self._ended = NOWHERE, True
        self.flush()

    def begin_evaluation(self) -> None:
        """Begin an evaluation of the epoch, in it or after it."""
        self.check_process()
        if self.place not in (NOWHERE, BETWEEN) or self.region is not None or self._replay.times is None:
            self._refuse("an evaluation begins", "between steps, or after an epoch")
        self.wait_for_last()
        self._back, self.place, self._span_ns = self.place, EVALUATION, self.now()

    def end_evaluation(self, kind: type[BaseException] | None) -> None:
        """End the evaluation."""
        if self.place != EVALUATION or self.region is not None:
            self.refuse_end("the evaluation", kind)
            return
        self.place = self._back
        self._times.evaluated(self._span_ns, self.now(), self.steps, late=self._ended)

    @property
    def _times(self) -> EpochTimes:
        assert self._replay.times is not None  # noqa: S101 - an epoch has begun
        return self._replay.times

    @property
    def steps(self) -> int:
        """Steps made."""
        return self._replay.step + self.slot

    def settle(self) -> None:
        """Evaluate the last epoch, if it has ended and nothing can be added to it."""
        if self._ended:
            self._ended = False
            begin = perf_counter_ns()
            self._replay.drain(self)
            self._replay.end_epoch()
            if begin >= self.due_ns:
                self.due_ns = self._save()
            self.paused_ns += perf_counter_ns() - begin

    def stop(self) -> None:
        """Evaluate what is buffered at the end of the loop, however it ended."""
        self.region = None
        if self.place == EVALUATION:
            self.place = self._back
        if self.place in (STEP, BETWEEN) and not self._ended:
            self._replay.drain(self)
        self.settle()
        self.place = NOWHERE

    # Values ---------------------------------------------------------------------------------------------------------

    def log_loss(self, value: Any) -> None:
        """Record a loss: of the open step, of the open evaluation, or the mean since the last one.

        Args:
            value: A number, or an array whose device may still compute it.
        """
        self.check_process()
        if self.place == STEP:
            if self.losses[self.slot] is not None:
                raise UsageError("the loss of this step is already logged; allowed: one loss per step")
            self.losses[self.slot] = value
        elif self.place == EVALUATION:
            self._times.scores["loss"] = value
        elif self._replay.times is None:
            self._refuse("a loss is logged", "in a step, in an evaluation, or after steps, of which it is the mean")
        else:
            self._replay.log_mean(value, self)

    def log_accuracy(self, percent: float) -> None:
        """Record the accuracy of the epoch's evaluation, in percent."""
        self.check_process()
        epoch = self._replay.times
        if self.place == STEP or epoch is None:
            self._refuse("an accuracy is logged", "in an evaluation, or after the steps of an epoch")
        epoch.scores["accuracy"] = percent
        if self.place != EVALUATION and epoch.scored_step != self.steps:
            epoch.evaluated(self.now(), self.now(), self.steps, late=self._ended)

    def forget_step(self) -> None:
        """Drop what the open step recorded: an exception ended it."""
        self.losses[self.slot] = None
        for region in self.regions.values():
            region.ns[STEP][self.slot] = 0

    # Errors ---------------------------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """Refuse the recorder of another process.

        Raises:
            UsageError: This process was forked from the recorder's.
        """
        if self.elsewhere:
            raise UsageError(
                f"the recorder belongs to process {self._pid}, and this is its child {os.getpid()}; allowed: in the "
                "process that began it; remedy: record around what workers deliver, such as the data loader"
            )

    @property
    def elsewhere(self) -> bool:
        """Whether this process was forked from the recorder's."""
        return os.getpid() != self._pid

    def leave(self) -> None:
        """Make every use in a forked child an error; costs nothing in the recorder's own process."""
        self.place, self.region = NOWHERE, _Elsewhere()

    def refuse_region(self, region: Part) -> NoReturn:
        """Explain why a region cannot begin."""
        self.check_process()
        if self.region is not None:
            raise UsageError(
                f"the region {region.name!r} begins while {self.region.name!r} is open; allowed: one after another; "
                f"remedy: end {self.region.name!r} first"
            )
        self._refuse(f"the region {region.name!r} begins", "in an epoch or an evaluation")

    def refuse_step(self) -> NoReturn:
        """Explain why a step cannot begin."""
        self.check_process()
        if self.region is not None:
            raise UsageError(
                f"a step begins while the region {self.region.name!r} is open; allowed: regions in a step or between "
                f"steps; remedy: end {self.region.name!r} first"
            )
        self._refuse("a step begins", "in an epoch, one step after another; remedy: with run.epoch(): around the steps")

    def refuse_end(self, what: str, kind: type[BaseException] | None) -> None:
        """Explain why something cannot end here, unless an exception already ends it."""
        if kind is not None:
            return
        self.check_process()
        opened = "" if self.region is None else f" while the region {self.region.name!r} is open"
        raise UsageError(
            f"{what} ends {opened or _WHERE[self.place]}; allowed: the end of what began last; remedy: use 'with' for "
            "steps, regions, epochs and evaluations".replace("  ", " ")
        )

    def _refuse(self, what: str, allowed: str) -> NoReturn:
        self.check_process()
        raise UsageError(f"{what} {_WHERE[self.place]}; allowed: {allowed}")
