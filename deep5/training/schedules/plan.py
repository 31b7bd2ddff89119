"""`Plan`: what a schedule knows of the training that it runs in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo

__all__ = ["Plan", "periods_done"]

# Epochs are fractions in float64: 2.3 - 0.3 is 2 but for the last bits. No step is so small a share of a period.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a training is, and where in it a schedule begins.

    Attributes:
        epochs: Epochs of the whole training, those that are done included.
        steps: Steps of every epoch; or a function of the epoch, which gives None where nobody knows; or None.
        batch_size: Samples of a full batch; or a function of the epoch; or None where nobody knows.
        begin: The step at which the schedule begins: 0, or the end of a warm-up.

    >>> plan = Plan(epochs=3, steps=10)
    >>> plan.total_steps, plan.epochs_done(StepInfo(step=15, epoch=1))
    (30, 1.5)
    """

    epochs: int
    steps: Callable[[int], int | None] | int | None = None
    batch_size: Callable[[int], int | None] | int | None = None
    begin: int = 0

    def epoch_steps(self, epoch: int) -> int:
        """Steps of an epoch.

        Raises:
            UsageError: Nobody knows: the data set has no known length.
        """
        found = self.steps(epoch) if callable(self.steps) else self.steps
        if found is None:
            raise UsageError(
                "the number of steps of an epoch is not known beforehand, as the data set has no known length; remedy: "
                "give lengths in steps, such as steps=10000"
            )
        return found

    def epoch_batch_size(self, epoch: int) -> int:
        """Samples of the epoch's full batches; its last batch, which may be smaller, changes nothing.

        Raises:
            UsageError: Nobody knows.
        """
        found = self.batch_size
        if callable(found):
            found = found(epoch) if epoch >= 0 else None
        if found is None:
            raise UsageError("the batch size is not known beforehand; allowed: a sampler that has a batch size")
        return found

    @cached_property
    def _firsts(self) -> list[int]:
        """Steps before each epoch, as far as somebody has asked."""
        return [0]

    def first_step(self, epoch: int) -> int:
        """Steps of all epochs before this one.

        Raises:
            UsageError: Nobody knows.
        """
        firsts = self._firsts
        while len(firsts) <= epoch:
            firsts.append(firsts[-1] + self.epoch_steps(len(firsts) - 1))
        return firsts[epoch]

    @cached_property
    def total_steps(self) -> int:
        """Steps of the whole training.

        Raises:
            UsageError: Nobody knows.
        """
        return self.first_step(self.epochs)

    @cached_property
    def known_steps(self) -> int | None:
        """Steps of the whole training, or None where nobody knows."""
        try:
            return self.total_steps
        except UsageError:
            return None

    @cached_property
    def steps_left(self) -> int:
        """Steps from the schedule's beginning to the end of the training.

        Raises:
            UsageError: Nobody knows.
        """
        return self.total_steps - self.begin

    def steps_done(self, info: StepInfo) -> int:
        """Steps since the schedule began, at least 0."""
        done = info.step - self.begin
        return done if done > 0 else 0

    def epochs_done(self, info: StepInfo) -> float:
        """Epochs since the schedule began, at least 0; within an epoch, the share of its steps that are done.

        Raises:
            UsageError: Nobody knows how many steps the epoch has.
        """
        return max(self._epochs_at(info) - self._begin_epochs, 0.0) if self.begin else self._epochs_at(info)

    def whole_epochs_done(self, info: StepInfo) -> int:
        """Whole epochs since the schedule began, at least 0.

        Those since the beginning of a training need no number of steps.

        Raises:
            UsageError: Nobody knows.
        """
        return periods_done(self.epochs_done(info), 1.0)[0] if self.begin or info.epoch < 0 else info.epoch

    def _epochs_at(self, info: StepInfo) -> float:
        epoch, firsts = info.epoch, self._firsts
        if not 0 <= epoch < len(firsts) - 1:
            self.first_step(max(epoch, 0) + 1)
        first, after = firsts[epoch], firsts[epoch + 1]
        if info.step <= first:
            return float(epoch)
        # An epoch that was cut short and begun again is behind its own steps.
        return epoch + (info.step - first) / (after - first) if info.step < after else epoch + 1.0

    @cached_property
    def _begin_epochs(self) -> float:
        return self._epochs_at(self.info_at(self.begin))

    def info_at(self, step: int) -> StepInfo:
        """What a schedule is told at a step, as far as the plan knows; past the end, the last epoch goes on.

        Where nobody knows which epoch that is, it is -1, and a schedule by epochs says so.
        """
        if self.known_steps is None:
            return StepInfo(step=step, epoch=-1)
        epoch = 0
        while epoch + 1 < self.epochs and self.first_step(epoch + 1) <= step:
            epoch += 1
        return StepInfo(step=step, epoch=epoch)

    def step_at(self, epochs: float) -> int:
        """The step that comes this many epochs after the schedule's beginning, rounded to the next whole one.

        Raises:
            UsageError: Nobody knows.
        """
        whole, share = divmod(epochs + (self._begin_epochs if self.begin else 0.0), 1.0)
        epoch = int(whole)
        return self.first_step(epoch) + (round(share * self.epoch_steps(epoch)) if share else 0)

    def beginning(self, step: int) -> Plan:
        """The same training, for a schedule that begins at this step."""
        return dataclasses.replace(self, begin=step)

    @cached_property
    def kept(self) -> dict[int, Any]:
        """What schedules have worked out for this plan, by their identity; they keep themselves alive in it."""
        return {}


def periods_done(done: float, length: float) -> tuple[int, float]:
    """Whole periods that are done, and the share of the one that has begun, in [0, 1).

    Args:
        done: Steps, or epochs with their fractions: the end of a period is met in spite of their rounding.
        length: Of a period, in the same unit.

    >>> periods_done(0.3, 0.1), periods_done(2.3 - 0.3, 1.0), periods_done(15, 10)
    ((3, 0.0), (2, 0.0), (1, 0.5))
    """
    # Once a step: `divmod` takes longer.
    whole = int(done / length + _ROUNDING)
    share = (done - whole * length) / length
    return whole, share if share > _ROUNDING else 0.0
