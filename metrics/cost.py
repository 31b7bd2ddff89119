"""Cost of a run at a stated price."""

from __future__ import annotations

from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.metrics.unsampled import ended_within_epoch

__all__ = ["Cost"]


class _Cost(Observer):
    def __init__(self, price_per_hour: float) -> None:
        self._price = price_per_hour
        self._samples: list[Sample] = []

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._note(trainer)

    def after_training(self, trainer: Any) -> None:
        if ended_within_epoch(trainer, self._samples):
            self._note(trainer)

    def _note(self, trainer: Any) -> None:
        elapsed = trainer.elapsed_ns() / 1e9
        cost = Sample(self._price * elapsed / 3600, trainer.step, trainer.epoch, elapsed)
        self._samples = [*self._samples, cost]  # a new list: earlier states hold the old one

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None


class _Currency:
    """The unit of a cost: the metric's currency, or the default one on the class."""

    def __get__(self, metric: Cost | None, owner: type[Cost]) -> str:
        return "USD" if metric is None else metric.currency


class Cost(Metric):
    """Cost of the time from the start of the first epoch to the end of training, at a stated price per hour.

    On the clock: everything that `WallClockTime` includes. Off it: building the executor, compiling rules, events
    before the first epoch and after training; the time between a run's interruption and its first step after a resume,
    and the repeated steps since its last checkpoint, although they may cost money.

    Args:
        price_per_hour: The price of everything that the run occupies, i.e. of all its machines.
        currency: The currency of the price, e.g. `"EUR"`: the unit of the value and of a goal.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> metric = d5.Cost(price_per_hour=2.5, currency="EUR")
    >>> observer = metric.observer()
    >>> trainer = SimpleNamespace(step=100, epoch=1, elapsed_ns=lambda: 1800 * 10**9)  # half an hour
    >>> observer.after_epoch(trainer, epoch=0)
    >>> observer.value(), metric.unit, d5.Cost(2.5).unit
    (1.25, 'EUR', 'USD')
    """

    name = "cost"
    unit = _Currency()  # reads as a string from the class and from the object
    direction = "lower"

    def __init__(self, price_per_hour: float, currency: str = "USD") -> None:
        if not is_finite(price_per_hour) or price_per_hour < 0:
            raise UsageError(
                f"cost with price_per_hour={price_per_hour!r:.60}; allowed: a finite number of at least 0, such as 2.5"
            )
        if not isinstance(currency, str) or not currency.strip() or not currency.isprintable():
            raise UsageError(f"cost with currency={currency!r:.60}; allowed: a name such as 'USD'")
        self.price_per_hour, self.currency = float(price_per_hour), currency

    def observer(self) -> Observer:
        """Samples: the cost at the end of every epoch, and where an event stopped training in mid-epoch."""
        return _Cost(self.price_per_hour)
