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
    """The value of a hyperparameter over the course of training: the learning rate, momentum or any other.

    The value is a pure function of (step, epoch), so a resumed run continues with the same values. Steps and epochs are
    counted from 0, and the value applies to the step that begins. Objects are immutable.

    >>> import deep5 as d5
    >>> class Halving(d5.Schedule):
    ...     def value(self, info, plan): return 0.5 ** info.epoch
    >>> Halving().value(d5.StepInfo(step=250, epoch=2), d5.Plan(epochs=3, steps=100)), Halving().describe()
    (0.25, {'schedule': 'Halving'})
    """

    @abstractmethod
    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value at a step.

        Args:
            info: The step that begins.
            plan: The training of the schedule.

        Raises:
            UsageError: The plan lacks information that the schedule requires, e.g. the number of steps of a data set of
                unknown length.
        """

    def describe(self) -> dict[str, Any]:
        """The schedule and its parameters, as JSON types; part of a recipe's hash."""
        return {"schedule": type(self).__qualname__, **vars(self)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


def check_number(schedule: object, name: str, *, allowed: str = "a finite number", low: float | None = None) -> None:
    """Reject a parameter that is not a finite number, or not above `low`.

    Raises:
        UsageError: The parameter is rejected.
    """
    value = getattr(schedule, name)
    if not is_finite(value) or (low is not None and value <= low):
        raise UsageError(f"{type(schedule).__name__}: got {name}={brief(value)}; allowed: {allowed}")


def check_length(schedule: Any, *, required: bool) -> None:
    """Reject invalid lengths, both lengths at once, and a missing length if one is required.

    Raises:
        UsageError: A length is rejected.
    """
    name, steps, epochs = type(schedule).__name__, schedule.steps, schedule.epochs
    if steps is not None and epochs is not None:
        raise UsageError(f"{name}: got steps={brief(steps)} and epochs={brief(epochs)}; allowed: one of them")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise UsageError(f"{name}: got steps={brief(steps)}; allowed: an integer of at least 1")
    if epochs is not None and (not is_finite(epochs) or epochs <= 0):
        raise UsageError(f"{name}: got epochs={brief(epochs)}; allowed: a number above 0")
    if required and steps is None and epochs is None:
        raise UsageError(f"{name}: got neither steps nor epochs; allowed: one of them; remedy: epochs=30, say")


def share_done(info: StepInfo, plan: Plan, steps: int | None, epochs: float | None) -> float:
    """The completed fraction of a length: 0 at its start, 1 at its end and after it.

    Args:
        info: The step that begins.
        plan: The training of the schedule.
        steps: The length in steps.
        epochs: The length in epochs; if neither is given, the length is the rest of the training.

    Raises:
        UsageError: The plan does not know the number of steps.
    """
    # Called every step for each schedule: avoid unnecessary calls.
    if epochs is None:
        length = plan.steps_left if steps is None else steps
        done = info.step - plan.begin
        return (done / length if done > 0 else 0.0) if done < length else float(length > 0)
    share = plan.epochs_done(info) / epochs
    return share if share < 1.0 else 1.0
