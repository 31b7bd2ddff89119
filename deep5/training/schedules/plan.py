"""`Plan`: what a schedule knows about its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo

__all__ = ["Plan", "periods_done"]

# Epochs are float64 fractions: 2.3 - 0.3 is 2 except for rounding. No step is this small a fraction of a period.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The length of a training, and where a schedule begins in it.

    Attributes:
        epochs: Epochs of the whole training, including completed ones.
        steps: Steps per epoch; or a function of the epoch, which returns None if unknown; or None.
        batch_size: Samples per full batch; or a function of the epoch; or None if unknown.
        begin: The step at which the schedule begins: 0, or the end of a warm-up.

    >>> import deep5 as d5
    >>> plan = d5.Plan(epochs=3, steps=10)
    >>> plan.total_steps, plan.epochs_done(d5.StepInfo(step=15, epoch=1))
    (30, 1.5)
    """

    epochs: int
    steps: Callable[[int], int | None] | int | None = None
    batch_size: Callable[[int], int | None] | int | None = None
    begin: int = 0

    def epoch_steps(self, epoch: int) -> int:
        """Steps of an epoch.

        Args:
            epoch: Counted from 0.

        Raises:
            UsageError: Unknown: the data set has no known length.
        """
        found = self.steps(epoch) if callable(self.steps) else self.steps
        if found is None:
            raise UsageError(
                "the number of steps of an epoch is not known beforehand, as the data set has no known length; remedy: "
                "give lengths in steps, such as steps=10000"
            )
        return found

    def epoch_batch_size(self, epoch: int) -> int:
        """Samples per full batch of the epoch; a smaller last batch has no effect.

        Args:
            epoch: Counted from 0.

        Raises:
            UsageError: The number is unknown.
        """
        found = self.batch_size
        if callable(found):
            found = found(epoch) if epoch >= 0 else None
        if found is None:
            raise UsageError("the batch size is not known beforehand; allowed: a sampler that has a batch size")
        return found

    @cached_property
    def _firsts(self) -> list[int]:
        """Cumulative steps before each epoch, extended on demand."""
        return [0]

    def first_step(self, epoch: int) -> int:
        """Steps of all epochs before this one.

        Args:
            epoch: Counted from 0.

        Raises:
            UsageError: The number is unknown.
        """
        firsts = self._firsts
        while len(firsts) <= epoch:
            firsts.append(firsts[-1] + self.epoch_steps(len(firsts) - 1))
        return firsts[epoch]

    @cached_property
    def total_steps(self) -> int:
        """Steps of the whole training.

        Raises:
            UsageError: The number is unknown.
        """
        return self.first_step(self.epochs)

    @cached_property
    def known_steps(self) -> int | None:
        """Steps of the whole training, or None if unknown."""
        try:
            return self.total_steps
        except UsageError:
            return None

    @cached_property
    def steps_left(self) -> int:
        """Steps from the begin of the schedule to the end of the training.

        Raises:
            UsageError: The number is unknown.
        """
        return self.total_steps - self.begin

    def steps_done(self, info: StepInfo) -> int:
        """Steps since the schedule began, at least 0.

        Args:
            info: The step that begins.
        """
        done = info.step - self.begin
        return done if done > 0 else 0

    def epochs_done(self, info: StepInfo) -> float:
        """Epochs since the schedule began, at least 0, including the completed fraction of the current epoch.

        Args:
            info: The step that begins.

        Raises:
            UsageError: The number of steps of the epoch is unknown.
        """
        return max(self._epochs_at(info) - self._begin_epochs, 0.0) if self.begin else self._epochs_at(info)

    def whole_epochs_done(self, info: StepInfo) -> int:
        """Completed epochs since the schedule began, at least 0.

        Counting from the start of a training does not require the number of steps.

        Args:
            info: The step that begins.

        Raises:
            UsageError: The number is unknown.
        """
        return periods_done(self.epochs_done(info), 1.0)[0] if self.begin or info.epoch < 0 else info.epoch

    def _epochs_at(self, info: StepInfo) -> float:
        epoch, firsts = info.epoch, self._firsts
        if not 0 <= epoch < len(firsts) - 1:
            self.first_step(max(epoch, 0) + 1)
        first, after = firsts[epoch], firsts[epoch + 1]
        if info.step <= first:
            return float(epoch)
        # If an epoch was interrupted and restarted, the step may exceed its steps.
        return epoch + (info.step - first) / (after - first) if info.step < after else epoch + 1.0

    @cached_property
    def _begin_epochs(self) -> float:
        return self._epochs_at(self.info_at(self.begin))

    def info_at(self, step: int) -> StepInfo:
        """The `StepInfo` of a step, as far as the plan knows it; steps past the end belong to the last epoch.

        If the epoch is unknown, it is -1, and a schedule by epochs raises an error.

        Args:
            step: Counted from 0, over the whole training.
        """
        if self.known_steps is None:
            return StepInfo(step=step, epoch=-1)
        epoch = 0
        while epoch + 1 < self.epochs and self.first_step(epoch + 1) <= step:
            epoch += 1
        return StepInfo(step=step, epoch=epoch)

    def step_at(self, epochs: float) -> int:
        """The step this many epochs after the begin of the schedule, rounded to the nearest integer.

        Args:
            epochs: At least 0; fractions of an epoch count.

        Raises:
            UsageError: The number is unknown.
        """
        whole, share = divmod(epochs + (self._begin_epochs if self.begin else 0.0), 1.0)
        epoch = int(whole)
        return self.first_step(epoch) + (round(share * self.epoch_steps(epoch)) if share else 0)

    def beginning(self, step: int) -> Plan:
        """A copy of the plan for a schedule that begins at this step.

        Args:
            step: Counted from 0, over the whole training.
        """
        return dataclasses.replace(self, begin=step)

    @cached_property
    def kept(self) -> dict[int, Any]:
        """A cache of values that schedules compute for this plan, by their id; entries keep their schedule alive."""
        return {}


def periods_done(done: float, length: float) -> tuple[int, float]:
    """Completed periods, and the completed fraction of the current one, in [0, 1).

    Args:
        done: Steps, or fractional epochs; the end of a period is reached despite rounding.
        length: The length of a period, in the same unit.

    >>> periods_done(0.3, 0.1), periods_done(2.3 - 0.3, 1.0), periods_done(15, 10)
    ((3, 0.0), (2, 0.0), (1, 0.5))
    """
    # Called every step; `divmod` is slower.
    whole = int(done / length + _ROUNDING)
    share = (done - whole * length) / length
    return whole, share if share > _ROUNDING else 0.0
