"""Metrics (name, unit, direction), their observers that watch a run, and goals."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from deep5.core.complete import check_complete
from deep5.core.errors import GoalError
from deep5.core.events import Event, StepInfo
from deep5.core.units import convert, units_like

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["FirstCalls", "Goal", "Metric", "Observer", "Sample", "parse_goal"]

Direction = Literal["higher", "lower"]


class Sample(NamedTuple):
    """One raw value as measured.

    Attributes:
        value: In the metric's unit.
        step: Steps done when it was taken, or None if the value belongs to no step.
        epoch: Epochs done when it was taken, or None.
        time_s: Seconds since training began, on the run's clock, or None.

    >>> import deep5 as d5
    >>> sample = d5.Sample(0.25, step=3, epoch=0)
    >>> sample.value, sample.step, sample.time_s
    (0.25, 3, None)
    """

    value: float
    step: int | None = None
    epoch: int | None = None
    time_s: float | None = None


class FirstCalls:
    """Identifies the first training step of each batch size, in which frameworks compile, select kernels and allocate.

    Args:
        sizes: Batch sizes seen before.

    >>> first = FirstCalls()
    >>> [first(StepInfo(step=step, batch_size=size)) for step, size in enumerate((64, 64, 17, 64, 17))]
    [True, False, True, False, False]
    """

    def __init__(self, sizes: Iterable[int] = ()) -> None:
        self.sizes = set(sizes)

    def __call__(self, info: StepInfo) -> bool:
        """Whether this step is the first of its batch size; call it once per step."""
        if info.batch_size in self.sizes:
            return False
        self.sizes.add(info.batch_size)
        return True


class Observer(Event, ABC):
    """Watches one run for one metric; created anew for every run, so no state leaks from one run into the next.

    >>> import deep5 as d5
    >>> class Losses(d5.Observer):
    ...     def __init__(self): self._losses = []
    ...     def after_step(self, trainer, info, outputs, begin_ns, end_ns):
    ...         self._losses.append(d5.Sample(float(d5.to_numpy(outputs["loss"])), step=info.step))
    ...     def samples(self): return self._losses
    ...     def value(self): return max(sample.value for sample in self._losses) if self._losses else None
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> largest = Losses()
    >>> d5.Trainer(executor, d5.Adam(), d5.OrderedSampler(data.train, 4)).train(epochs=2, events=[largest])
    >>> [sample.step for sample in largest.samples()], round(largest.value(), 2)
    ([0, 1, 2, 3, 4, 5], 1.64)
    """

    @abstractmethod
    def samples(self) -> list[Sample]:
        """All raw values in chronological order."""

    @abstractmethod
    def value(self) -> float | None:
        """The number that is compared with the goal, in the metric's unit; None if the run did not yield one."""

    def check_network(self, network: Any) -> None:
        """Reject a network without the inputs and outputs that are read; called before a run, and by `deep5 check`.

        Args:
            network: The network: its `inputs` and `outputs` are specs by name, or None for what is not known.

        Raises:
            UsageError: What is missing, and what the network has.
        """

    def interval(self) -> tuple[float, float] | None:
        """An interval for `value`, if the samples allow one."""
        return None

    def combine(self, communicator: Communicator) -> None:
        """Combine `value` over all ranks, if it is not specific to this rank.

        Called once on every rank when training is over, in the order of the recipe's metrics; afterwards only the first
        rank's value is read. The samples stay those of this rank.

        Args:
            communicator: The communicator of all ranks.
        """

    def files(self) -> dict[str, bytes | str]:
        """Additional files for the result folder, by plain name, such as a matrix.

        If a recipe has two metrics of one name, the second's files get `-2` before the suffix, and so on; if metrics of
        different names have a file of the same name, it gets the metric's name there.
        """
        return {}

    def missing(self) -> str | None:
        """Why there is no value, if the machine or the framework does not provide it; None: no reason to report."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """All attributes. A class with unread device values reads them first, and leaves out clock readings."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes.

        Args:
            state: The result of `state_dict`.
        """
        vars(self).update(state)


class Metric(ABC):
    """A quantity that a recipe may evaluate. Metrics hold parameters, never samples, which belong to the observer.

    Attributes:
        name: Its name.
        unit: Unit of its values and goals.
        direction: Whether a higher or a lower value is better.
        possible: The least and the greatest value that it can have; None: not stated. A goal outside is refused.

    >>> import deep5 as d5
    >>> class Sizes(d5.Observer):
    ...     def __init__(self): self._sizes = []
    ...     def after_step(self, trainer, info, outputs, begin_ns, end_ns): self._sizes.append(info.batch_size)
    ...     def samples(self): return [d5.Sample(float(size), step=step) for step, size in enumerate(self._sizes)]
    ...     def value(self): return float(min(self._sizes, default=0))
    >>> class SmallestBatch(d5.Metric):
    ...     name, unit, direction = "smallest_batch", "samples", "higher"
    ...     def observer(self): return Sizes()
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> observer = SmallestBatch().observer()  # in a recipe: METRICS = [(SmallestBatch(), ">= 2")]
    >>> d5.Trainer(executor, d5.Adam(), d5.OrderedSampler(data.train, 5)).train(epochs=1, events=[observer])
    >>> observer.value(), [sample.value for sample in observer.samples()]
    (2.0, [5.0, 5.0, 2.0])
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    direction: ClassVar[Direction]
    possible: ClassVar[tuple[float, float] | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse a class without a name, a unit, a direction or an observer.

        Raises:
            PartialClassError: One of them is missing.
        """
        check_complete(cls, Metric, ("name", "unit", "direction"))
        return super().__new__(cls)

    @abstractmethod
    def observer(self) -> Observer:
        """A fresh observer for one run."""

    def describe(self) -> dict[str, Any]:
        """The metric and its parameters, in JSON types."""
        return {"metric": self.name, **vars(self)}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A bound on a metric.

    Attributes:
        relation: One of `>=`, `>`, `<=`, `<`.
        bound: In the metric's unit.

    >>> import deep5 as d5
    >>> goal = d5.Goal(relation=">=", bound=97.0)
    >>> str(goal), goal.met(98.1), goal.met(96.9), goal.met(float("nan"))
    ('>= 97', True, False, False)
    """

    relation: Literal[">=", ">", "<=", "<"]
    bound: float

    def met(self, value: float | None) -> bool:
        """Whether a value satisfies the goal; no value, or NaN, never does.

        Args:
            value: In the metric's unit; None: the run did not yield one.
        """
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
        metric: Determines direction and unit.
        goal: A number (at least, or at most, by the metric's direction), a string such as `">= 97"` or `"< 60 s"`, or
            None: report without a goal. Another unit of time, or of size, than the metric's is converted.

    Raises:
        GoalError: A goal that cannot be read, is not finite, points the wrong way, names another kind of unit, or is
            outside the values that the metric can have.

    >>> from deep5.metrics.accuracy import TestAccuracy
    >>> from deep5.metrics.time import WallClockTime
    >>> str(parse_goal(TestAccuracy(), 97)), str(parse_goal(TestAccuracy(), "> 90 %"))
    ('>= 97', '> 90')
    >>> str(parse_goal(WallClockTime(), "< 2 min"))
    '< 120'
    """
    if goal is None:
        return None
    where = f"goal {goal!r} of metric '{metric.name}'"
    allowed = "allowed: a number, a string such as '>= 97' or '< 60 s', or None (no goal)"
    relation: Any = ">=" if metric.direction == "higher" else "<="
    if isinstance(goal, str):
        match = _GOAL.fullmatch(goal)
        if match is None:
            raise GoalError(f"{where} cannot be read; {allowed}")
        relation, bound, unit = match[1], float(match[2]), match[3]
        if unit and unit != metric.unit:
            others = [other for other in units_like(metric.unit) if other != metric.unit]
            if unit not in others:
                more = f", or {', '.join(others)}" if others else ""
                raise GoalError(
                    f"{where} is in {unit!r}; allowed: {metric.unit!r}, the metric's unit, or no unit{more}"
                )
            if math.isfinite(bound):
                bound = convert(match[2], unit, metric.unit)
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
    if metric.possible is not None and not metric.possible[0] <= bound <= metric.possible[1]:
        least, most = metric.possible
        raise GoalError(f"{where} is outside the metric's values; allowed: {least:g} to {most:g} {metric.unit}")
    return Goal(relation=relation, bound=bound)
