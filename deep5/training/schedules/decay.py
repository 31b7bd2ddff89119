"""Schedules of one formula: constant, step, piecewise, exponential, polynomial."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief
from deep5.core.events import StepInfo
from deep5.training.schedules.plan import Plan, periods_done
from deep5.training.schedules.schedule import Schedule, check_length, check_number, share_done

__all__ = ["Constant", "Exponential", "Piecewise", "Polynomial", "StepDecay", "as_schedule"]


@dataclass(frozen=True)
class Constant(Schedule):
    """A constant value, for use inside a warm-up or linear scaling with the batch size.

    Args:
        start: The value.

    >>> import deep5 as d5
    >>> d5.Constant(0.1).value(d5.StepInfo(step=5), d5.Plan(epochs=1))
    0.1
    """

    start: float

    def __post_init__(self) -> None:
        check_number(self, "start")

    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value, at any step."""
        return self.start


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplies by a factor every n epochs or steps: start · factor^⌊t / n⌋.

    Args:
        start: Value of the first n.
        factor: Above 0.
        epochs: n in epochs; may be a fraction if the number of steps per epoch is known.
        steps: n in steps.

    References:
        Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv:1706.02677, section 5.1: a
        factor of 0.1 every 30 epochs.

    >>> import deep5 as d5
    >>> rate, plan = d5.StepDecay(0.4, 0.5, epochs=30), d5.Plan(epochs=90)
    >>> [rate.value(d5.StepInfo(epoch=epoch), plan) for epoch in (0, 29, 30, 60)]
    [0.4, 0.4, 0.2, 0.1]
    """

    start: float
    factor: float = 0.1
    _: KW_ONLY
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        check_number(self, "start")
        check_number(self, "factor", allowed="a number above 0", low=0)
        check_length(self, required=True)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """See the class, and `Schedule.value` for the arguments."""
        if self.epochs is None:
            return self.start * self.factor ** (plan.steps_done(info) // (self.steps or 1))
        # An integer number of epochs does not require the number of steps, which a stream does not know.
        done = plan.whole_epochs_done(info) if self.epochs == int(self.epochs) else plan.epochs_done(info)
        return self.start * self.factor ** periods_done(done, self.epochs)[0]


@dataclass(frozen=True, init=False)
class Piecewise(Schedule):
    """Piecewise constant: each value holds from its epoch or step until the next one.

    Args:
        epochs: Values by the epoch at which they begin, counted from 0; epoch 0 is required.
        steps: Values by step, instead of `epochs`.

    >>> import deep5 as d5
    >>> rate = d5.Piecewise(epochs={0: 0.1, 30: 0.01})
    >>> [rate.value(d5.StepInfo(epoch=epoch), d5.Plan(epochs=90)) for epoch in (0, 29, 30, 89)]
    [0.1, 0.1, 0.01, 0.01]
    """

    epochs: tuple[tuple[int, float], ...] | None
    steps: tuple[tuple[int, float], ...] | None

    def __init__(self, *, epochs: Mapping[int, float] | None = None, steps: Mapping[int, float] | None = None) -> None:
        if (epochs is None) == (steps is None):
            got = "neither epochs nor steps" if epochs is None else "epochs and steps"
            raise UsageError(f"Piecewise: got {got}; allowed: one of them; remedy: epochs={{0: 0.1, 30: 0.01}}, say")
        # A canonical form: sorted pairs can be compared and hashed.
        object.__setattr__(self, "epochs", None if epochs is None else _pieces("epochs", epochs))
        object.__setattr__(self, "steps", None if steps is None else _pieces("steps", steps))
        object.__setattr__(self, "_table", tuple(zip(*(self.epochs or self.steps or ()), strict=True)))

    def value(self, info: StepInfo, plan: Plan) -> float:
        """The value of the last epoch or step that is not later than this one."""
        at = plan.steps_done(info) if self.epochs is None else plan.whole_epochs_done(info)
        begins, values = vars(self)["_table"]
        found: float = values[bisect_right(begins, at) - 1]
        return found

    def describe(self) -> dict[str, Any]:
        """The schedule and its (begin, value) pairs."""
        return {"schedule": "Piecewise", "epochs": self.epochs, "steps": self.steps}

    def __repr__(self) -> str:
        unit, pieces = ("epochs", self.epochs) if self.epochs is not None else ("steps", self.steps)
        return f"Piecewise({unit}={dict(pieces or ())!r})"


def _pieces(name: str, given: Any) -> tuple[tuple[int, float], ...]:
    """(begin, value) pairs, sorted by begin."""
    allowed = f"a dict from {name} to values, with 0 among them; remedy: {name}={{0: 0.1, 30: 0.01}}, say"
    if not isinstance(given, Mapping):
        raise UsageError(f"Piecewise: got {name}={brief(given)}; allowed: {allowed}")
    for begin, value in given.items():
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise UsageError(f"Piecewise: got {brief(begin)} among the {name}; allowed: {allowed}")
        if not is_finite(value):
            raise UsageError(f"Piecewise: got {brief(value)} from {begin} on; allowed: a finite number")
    if 0 not in given:
        raise UsageError(f"Piecewise: got {name}={brief(dict(given))}, with no value to begin with; allowed: {allowed}")
    return tuple(sorted(given.items()))


@dataclass(frozen=True)
class Exponential(Schedule):
    """Changes by a factor over every n epochs or steps, gradually at each step: start · factor^(t / n).

    Args:
        start: Value of the first step.
        factor: Above 0.
        epochs: n in epochs.
        steps: n in steps.

    >>> import deep5 as d5
    >>> rate, plan = d5.Exponential(0.4, 0.25, steps=10), d5.Plan(epochs=9)
    >>> [rate.value(d5.StepInfo(step=step), plan) for step in (0, 5, 10)]
    [0.4, 0.2, 0.1]
    """

    start: float
    factor: float
    _: KW_ONLY
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        check_number(self, "start")
        check_number(self, "factor", allowed="a number above 0", low=0)
        check_length(self, required=True)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """See the class, and `Schedule.value` for the arguments."""
        if self.epochs is None:
            periods = plan.steps_done(info) / (self.steps or 1)
        else:
            periods = plan.epochs_done(info) / self.epochs
        return self.start * math.pow(self.factor, periods)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From `start` to `end`: end + (start − end) · (1 − t / T)^power, then `end`. A power of 1 is linear.

    Args:
        start: Value of the first step.
        end: Value from T.
        power: Above 0.
        epochs: T in epochs.
        steps: T in steps; if neither is given, T is the end of training.

    References:
        Chen et al., DeepLab: semantic image segmentation with deep convolutional nets, atrous convolution and fully
        connected CRFs, TPAMI 2018, section 4.1.2 ("poly").

    >>> import deep5 as d5
    >>> linear, square, plan = d5.Polynomial(0.4), d5.Polynomial(0.4, power=2), d5.Plan(epochs=2, steps=10)
    >>> [round(linear.value(d5.StepInfo(step=step), plan), 9) for step in (0, 5, 10, 20)]
    [0.4, 0.3, 0.2, 0.0]
    >>> [round(square.value(d5.StepInfo(step=step), plan), 9) for step in (0, 5, 10, 20)]
    [0.4, 0.225, 0.1, 0.0]
    """

    start: float
    end: float = 0.0
    _: KW_ONLY
    power: float = 1.0
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        check_number(self, "start")
        check_number(self, "end")
        check_number(self, "power", allowed="a number above 0", low=0)
        check_length(self, required=False)

    def value(self, info: StepInfo, plan: Plan) -> float:
        """See the class, and `Schedule.value` for the arguments."""
        part = math.pow(1.0 - share_done(info, plan, self.steps, self.epochs), self.power)
        # Exact at both ends, unlike end + (start − end) · part.
        return self.start * part + self.end * (1.0 - part)


def as_schedule(given: Schedule | type[Schedule] | float, name: str) -> Schedule:
    """Convert to a schedule: instances are returned, classes without arguments instantiated, numbers become `Constant`.

    Raises:
        UsageError: `given` is none of these.
    """
    if isinstance(given, type) and issubclass(given, Schedule):
        try:
            return given()
        except TypeError as error:
            raise UsageError(
                f"{name}: got the class {given.__name__}, which needs arguments; remedy: {given.__name__}(…), with them"
            ) from error
    if isinstance(given, Schedule):
        return given
    if is_finite(given):
        return Constant(given)
    raise UsageError(f"{name}: got {brief(given)}; allowed: a schedule, such as d5.Cosine(0.1), or a number")
