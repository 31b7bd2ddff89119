"""What a metric is (name, unit, direction), what watches a run for it, and what a goal demands of it."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from deep5.core.errors import GoalError
from deep5.core.events import Event, StepInfo

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["FirstCalls", "Goal", "Metric", "Observer", "Sample", "parse_goal"]

Direction = Literal["higher", "lower"]


class Sample(NamedTuple):
    """One raw value as measured.

    Attributes:
        value: In the metric's unit.
        step: Steps done when it was taken, or None where the value belongs to no step.
        epoch: Epochs done when it was taken, or None.
        time_s: Seconds since training began, on the run's clock, or None.
    """

    value: float
    step: int | None = None
    epoch: int | None = None
    time_s: float | None = None


class FirstCalls:
    """Tells the first training step of each size of batch from all others: that one compiles, chooses and allocates.

    Args:
        sizes: Those that were met before.

    >>> first = FirstCalls()
    >>> [first(StepInfo(step=step, batch_size=size)) for step, size in enumerate((64, 64, 17, 64, 17))]
    [True, False, True, False, False]
    """

    def __init__(self, sizes: Iterable[int] = ()) -> None:
        self.sizes = set(sizes)

    def __call__(self, info: StepInfo) -> bool:
        """Whether this step, told of once, is the first of its size of batch."""
        if info.batch_size in self.sizes:
            return False
        self.sizes.add(info.batch_size)
        return True


class Observer(Event, ABC):
    """Watches one run for one metric; made anew for every run, so nothing leaks from one into the next."""

    @abstractmethod
    def samples(self) -> list[Sample]:
        """Every raw value, in the order of time."""

    @abstractmethod
    def value(self) -> float | None:
        """The number that is held against the goal, in the metric's unit; None where the run did not yield one."""

    def interval(self) -> tuple[float, float] | None:
        """An interval for `value` where the samples allow one."""
        return None

    def combine(self, communicator: Communicator) -> None:
        """Make `value` that of all ranks, where it is more than this rank's.

        Called once on every rank when training is over, in the order of the recipe's metrics; only the first rank's
        value is asked for after it. The samples stay this rank's.

        Args:
            communicator: Of all ranks.
        """

    def files(self) -> dict[str, bytes | str]:
        """Files for the result folder, by plain name, where a number does not say it all: such as a matrix.

        Of two metrics of one name in a recipe, the second's files get `-2` before the suffix, and so on; a file that a
        metric of another name has as well gets the metric's name there.
        """
        return {}

    def missing(self) -> str | None:
        """Why there is no value, where the machine or the framework does not let it be known; None: nothing to say."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Every attribute. A class that keeps values unread reads them first; moments of a clock it leaves out."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the attributes as they were."""
        vars(self).update(state)


class Metric(ABC):
    """A quantity that a recipe may judge. Metrics hold parameters, never samples: those are the observer's."""

    name: ClassVar[str]
    unit: ClassVar[str]
    direction: ClassVar[Direction]

    @abstractmethod
    def observer(self) -> Observer:
        """A fresh observer for one run."""

    def describe(self) -> dict[str, Any]:
        """The metric and its parameters, in JSON's types."""
        return {"metric": self.name, **vars(self)}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A bound on a metric: `relation` is one of `>=`, `>`, `<=`, `<`; `bound` is in the metric's unit."""

    relation: Literal[">=", ">", "<=", "<"]
    bound: float

    def met(self, value: float | None) -> bool:
        """Whether a value satisfies the goal; no value, or NaN, never does."""
        if value is None or math.isnan(value):
            return False
        if self.relation == ">=":
            return value >= self.bound
        if self.relation == ">":
            return value > self.bound
        if self.relation == "<=":
            return value <= self.bound
        return value < self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:.15g}"


_GOAL = re.compile(r"\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")


def parse_goal(metric: Metric, goal: float | str | None) -> Goal | None:
    """Read the goal of a `(metric, goal)` pair.

    Args:
        metric: Gives direction and unit.
        goal: A number (at least, or at most, by the metric's direction), a string such as `">= 97"` or
            `"< 60 s"`, or None: report, do not judge.

    Raises:
        GoalError: A goal that cannot be read, is not finite, points the wrong way, or names another unit.

    >>> from deep5.metrics.accuracy import TestAccuracy
    >>> str(parse_goal(TestAccuracy(), 97)), str(parse_goal(TestAccuracy(), "> 90 %"))
    ('>= 97', '> 90')
    """
    if goal is None:
        return None
    where = f"goal {goal!r} of metric '{metric.name}'"
    allowed = "allowed: a number, a string such as '>= 97' or '< 60 s', or None (report, do not judge)"
    relation: Any = ">=" if metric.direction == "higher" else "<="
    if isinstance(goal, str):
        match = _GOAL.fullmatch(goal)
        if match is None:
            raise GoalError(f"{where} cannot be read; {allowed}")
        relation, bound, unit = match[1], float(match[2]), match[3]
        if unit and unit != metric.unit:
            raise GoalError(f"{where} is in {unit!r}; allowed: {metric.unit!r}, the metric's unit, or no unit")
    elif isinstance(goal, bool) or not isinstance(goal, (int, float)):
        raise GoalError(f"{where} is of type {type(goal).__name__}; {allowed}")
    else:
        try:
            bound = float(goal)
        except OverflowError:
            bound = math.inf
    if not math.isfinite(bound):
        raise GoalError(f"{where} is not finite; {allowed}")
    if (relation[0] == ">") != (metric.direction == "higher"):
        better = (
            "higher is better: use '>' or '>='" if metric.direction == "higher" else "lower is better: use '<' or '<='"
        )
        raise GoalError(f"{where} points the wrong way: for this metric {better}")
    return Goal(relation=relation, bound=bound)
