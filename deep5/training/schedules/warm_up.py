"""`WarmUp`: a linear ramp to another schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.decay import as_schedule
from deep5.training.schedules.plan import Plan
from deep5.training.schedules.schedule import Schedule, check_length, check_number

__all__ = ["WarmUp"]


class _End(NamedTuple):
    """The end of a warm-up in one plan: its step, the value there, and the plan with which the schedule continues."""

    owner: Any
    step: int
    value: float
    then: Plan


@dataclass(frozen=True, init=False)
class WarmUp(Schedule):
    """Gradual warm-up: linear from `start` to the schedule's value at the end of the warm-up.

    The warm-up replaces the first steps of the schedule, it does not postpone them. With `delay` the schedule begins
    when the warm-up ends, and a schedule over the whole training covers the rest of it.

    Args:
        schedule: The schedule or number to warm up to.
        start: Value of the first step.
        epochs: Length in epochs.
        steps: Length in steps.
        delay: Begin the schedule at the end of the warm-up.

    References:
        Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv:1706.02677, section 2.2.

    >>> import deep5 as d5
    >>> rate = d5.WarmUp(d5.StepDecay(0.4, epochs=2), start=0.1, steps=3)
    >>> plan = d5.Plan(epochs=4, steps=5)
    >>> [round(rate.value(d5.StepInfo(step=step, epoch=step // 5), plan), 9) for step in (0, 1, 2, 3, 9, 10)]
    [0.1, 0.2, 0.3, 0.4, 0.4, 0.04]
    """

    schedule: Schedule
    start: float
    epochs: float | None
    steps: int | None
    delay: bool

    def __init__(
        self,
        schedule: Schedule | float,
        start: float = 0.0,
        *,
        epochs: float | None = None,
        steps: int | None = None,
        delay: bool = False,
    ) -> None:
        if not isinstance(delay, bool):
            raise UsageError(f"WarmUp: got delay={brief(delay)}; allowed: True or False")
        schedule = as_schedule(schedule, "WarmUp")
        for name, value in (("schedule", schedule), ("start", start), ("epochs", epochs), ("steps", steps)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "delay", delay)
        check_number(self, "start")
        check_length(self, required=True)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value on the ramp, or the schedule's."""
        end = plan.kept.get(id(self)) or self._end(plan)
        if info.step >= end.step:
            return self.schedule.value(info, end.then)
        share = (info.step - plan.begin) / (end.step - plan.begin)
        return self.start * (1.0 - share) + end.value * share

    def _end(self, plan: Plan) -> _End:
        step = plan.begin + self.steps if self.steps is not None else plan.step_at(self.epochs or 0.0)
        total = plan.known_steps
        if total is not None and step >= total:
            length = f"{self.steps} steps" if self.steps is not None else f"{self.epochs} epochs"
            raise UsageError(
                f"WarmUp: got {length}, and the training is over after {total} steps in {plan.epochs} epochs; allowed: "
                "a warm-up that ends before the training does"
            )
        then = plan.beginning(step) if self.delay else plan
        # The entry holds a reference to this object, so no other warm-up can get its id.
        found = plan.kept[id(self)] = _End(self, step, self.schedule.value(plan.info_at(step), then), then)
        return found
