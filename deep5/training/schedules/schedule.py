"""`Schedule`: a hyperparameter as a pure function of step and epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.plan import Plan

__all__ = ["Schedule", "check_length", "check_number", "share_done"]


class Schedule(ABC):
    """A hyperparameter over the course of training: any of them, whether the learning rate, momentum or another.

    The value is a function of (step, epoch) and of nothing that happened before, so that a run which was resumed goes
    on with the same values. Steps and epochs are counted from 0, and the value is that of the step that begins. Objects
    are not changed once they are made.

    >>> class Halving(Schedule):
    ...     def value(self, info, plan): return 0.5 ** info.epoch
    >>> Halving().value(StepInfo(step=250, epoch=2), Plan(epochs=3, steps=100)), Halving().describe()
    (0.25, {'schedule': 'Halving'})
    """

    @abstractmethod
    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value at a step.

        Args:
            info: The step that begins.
            plan: The training that it is in.

        Raises:
            UsageError: The plan does not know what the schedule needs, such as the number of steps of a data set
                without a known length.
        """

    def describe(self) -> dict[str, Any]:
        """The schedule and its parameters, in JSON's types; enters a recipe's hash."""
        return {"schedule": type(self).__qualname__, **vars(self)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


def check_number(schedule: object, name: str, *, allowed: str = "a finite number", low: float | None = None) -> None:
    """Refuse a parameter that is no finite number, or not above `low`.

    Raises:
        UsageError: It is none.
    """
    value = getattr(schedule, name)
    if not is_finite(value) or (low is not None and value <= low):
        raise UsageError(f"{type(schedule).__name__}: got {name}={brief(value)}; allowed: {allowed}")


def check_length(schedule: Any, *, required: bool) -> None:
    """Refuse lengths that are none, both at once, and none where one is needed.

    Raises:
        UsageError: As said.
    """
    name, steps, epochs = type(schedule).__name__, schedule.steps, schedule.epochs
    if steps is not None and epochs is not None:
        raise UsageError(f"{name}: got steps={brief(steps)} and epochs={brief(epochs)}; allowed: one of them")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise UsageError(f"{name}: got steps={brief(steps)}; allowed: a whole number of at least 1")
    if epochs is not None and (not is_finite(epochs) or epochs <= 0):
        raise UsageError(f"{name}: got epochs={brief(epochs)}; allowed: a number above 0")
    if required and steps is None and epochs is None:
        raise UsageError(f"{name}: got neither steps nor epochs; allowed: one of them; remedy: epochs=30, say")


def share_done(info: StepInfo, plan: Plan, steps: int | None, epochs: float | None) -> float:
    """How much of a length is done: 0 at its beginning, 1 at its end and after it.

    Args:
        info: The step that begins.
        plan: The training that it is in.
        steps: The length in steps.
        epochs: The length in epochs; where neither is given, the length is that of the rest of the training.

    Raises:
        UsageError: The plan does not know how many steps there are.
    """
    # Once a step for each schedule: no call that is not needed.
    if epochs is None:
        length = plan.steps_left if steps is None else steps
        done = info.step - plan.begin
        return (done / length if done > 0 else 0.0) if done < length else float(length > 0)
    share = plan.epochs_done(info) / epochs
    return share if share < 1.0 else 1.0
