"""`Scheduled`: the event that sets hyperparameters before each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UnknownName, UsageError, brief
from deep5.core.events import Event, StepInfo
from deep5.training.hyper import hyper_setter
from deep5.training.hyper_ranges import hyper_bounds
from deep5.training.schedules.decay import as_schedule
from deep5.training.schedules.plan import Plan
from deep5.training.schedules.schedule import Schedule

__all__ = ["Scheduled", "epoch_batches", "plan_of"]


@dataclass(slots=True)
class _Track:
    """The state of one scheduled hyperparameter."""

    name: str
    value: Callable[[StepInfo, Plan], float]
    last: float | None
    set: Callable[[float], None]
    low: float
    high: float


class Scheduled(Event):
    """Sets hyperparameters before each step if their schedules change them, without retracing.

    The values are those of the rule or the native optimizer; a parameter group with its own value keeps it. After
    training they keep the values of the last step. This event runs before other events, so they see the value of the
    current step.

    Args:
        schedules: A schedule or a number by hyperparameter name, e.g. `"lr"`.

    Attributes:
        schedules: The schedules by hyperparameter.
        values: The current values by hyperparameter; empty before training.

    Raises:
        UsageError: There is no schedule, or a value is not a schedule.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(0.1), d5.ShuffleSampler(data.train, 4))
    >>> scheduled = d5.Scheduled({"lr": d5.StepDecay(0.1, factor=0.5, epochs=1), "beta1": 0.8})
    >>> trainer.train(epochs=3, events=[scheduled])
    >>> scheduled.values  # those of the last epoch
    {'lr': 0.025, 'beta1': 0.8}
    """

    def __init__(self, schedules: Mapping[str, Schedule | float]) -> None:
        if not isinstance(schedules, Mapping) or not all(isinstance(name, str) for name in schedules):
            raise UsageError(
                f"Scheduled: got {brief(schedules)}; allowed: a dict from hyperparameters to schedules; remedy: "
                "Scheduled({'lr': d5.Cosine(0.1)}), say"
            )
        if not schedules:
            raise UsageError("Scheduled: got no schedule; remedy: Scheduled({'lr': d5.Cosine(0.1)}), say")
        self.schedules = {name: as_schedule(given, f"schedule of {name!r}") for name, given in schedules.items()}
        self.values: dict[str, float] = {}
        self._tracks: list[_Track] = []
        self._plan = Plan(epochs=1)

    def describe(self) -> dict[str, Any]:
        """The schedules by hyperparameter."""
        return {"event": "scheduled", "schedules": dict(self.schedules)}

    def __repr__(self) -> str:
        return f"Scheduled({self.schedules!r})"

    def before_training(self, trainer: Any) -> None:
        """Check everything that can be checked before a step, and set the values of the first step.

        Raises:
            UsageError: The optimizer has no such hyperparameter, or a schedule requires information that is not
                available.
        """
        self._plan, self.values = plan_of(trainer), {}
        self._tracks = [
            _Track(name, schedule.value, None, _setter(trainer.optimizer, name), *_bounds(trainer.optimizer, name))
            for name, schedule in self.schedules.items()
        ]
        self.before_step(trainer, StepInfo(step=trainer.step, epoch=trainer.epoch))

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        """Set the values that have changed.

        Raises:
            UsageError: A schedule returns a value that is not finite, or the optimizer rejects it.
        """
        plan, values = self._plan, self.values
        for track in self._tracks:
            try:
                value = track.value(info, plan)
                if value != track.last:
                    if not (value.__class__ is float and track.low <= value <= track.high):
                        value = self._number(track, value)
                    track.set(value)
                    track.last = values[track.name] = value
            except (UsageError, ArithmeticError) as error:
                raise UsageError(f"schedule of {track.name!r} at step {info.step}: {error}") from error

    def _number(self, track: _Track, value: Any) -> float:
        allowed = "" if is_finite(value) and track.low <= float(value) <= track.high else "a finite number"
        if allowed and track.low > -1.0:
            allowed = f"a number of at least 0 and at most {track.high:.3g}"
        if allowed:
            raise UsageError(f"{self.schedules[track.name]!r} gave {brief(value)}; allowed: {allowed}")
        return float(value)


def _bounds(optimizer: Any, name: str) -> tuple[float, float]:
    low, high = hyper_bounds(optimizer, name)
    # A schedule that ends at zero may miss it by a rounding.
    return (-1e-12 if low == 0.0 else low), high


def _setter(optimizer: Any, name: str) -> Callable[[float], None]:
    try:
        return hyper_setter(optimizer, name)
    except UnknownName:
        raise
    except UsageError as error:
        raise UsageError(f"schedule of {name!r}: {error}") from error


def plan_of(trainer: Any) -> Plan:
    """The plan of a trainer's training.

    A step consists of the batches that the trainer accumulates, and its batch size is their total.
    """
    # The last step of an epoch may have fewer batches.
    sampler, count = trainer.train_sampler, trainer.accumulate

    def steps(epoch: int) -> int | None:
        batches = epoch_batches(sampler, epoch)
        return None if batches is None else -(-batches // count)

    def batch_size(epoch: int) -> int | None:
        of_epoch = getattr(sampler, "epoch_batch_size", None)
        size = of_epoch(epoch) if callable(of_epoch) else getattr(sampler, "batch_size", None)
        return size * count if isinstance(size, int) else None

    return Plan(epochs=trainer.epochs, steps=steps, batch_size=batch_size)


def epoch_batches(sampler: Any, epoch: int) -> int | None:
    """Batches of an epoch, or None if unknown; a length without `steps` holds for every epoch."""
    if hasattr(sampler, "steps"):
        found: int | None = sampler.steps(epoch)
        return found
    return len(sampler) if hasattr(sampler, "__len__") else None
