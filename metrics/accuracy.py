"""Test accuracy after the last epoch, and time and epochs to a test accuracy."""

from __future__ import annotations

import math
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.events import NO_CLASSES
from deep5.core.metric import Metric, Observer, Sample

__all__ = ["EpochsToAccuracy", "TestAccuracy", "TimeToAccuracy"]


class _Accuracies(Observer):
    """Records the accuracy after every epoch, with the time since the start of training."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._missing: str | None = None

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        if "accuracy" in scores:
            self._samples.append(Sample(scores["accuracy"], trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))
        else:
            self._missing = NO_CLASSES

    def missing(self) -> str | None:
        return self._missing

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None


class TestAccuracy(Metric):
    """Percentage of test samples classified correctly after the last epoch (not the best one).

    Nothing is on a clock. Every test sample counts once.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.TestAccuracy().observer()
    >>> trainer.train(epochs=3, events=[observer])
    >>> observer.value() == trainer.scores["accuracy"], [sample.epoch for sample in observer.samples()]
    (True, [1, 2, 3])
    """

    __test__ = False  # the usual term; pytest must not collect it
    name = "test_accuracy"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def observer(self) -> Observer:
        """Samples: the accuracy after every epoch."""
        return _Accuracies()


def _checked(metric: str, target: object) -> float:
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target <= 100:
        raise UsageError(f"{metric} with target {target!r}; allowed: a number above 0 up to 100, in percent")
    return float(target)


class _TimeToAccuracy(_Accuracies):
    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target

    def value(self) -> float | None:
        if self._missing is not None:
            return None
        reached = (sample.time_s for sample in self._samples if sample.value >= self._target)
        return next((time for time in reached if time is not None), math.inf)

    def samples(self) -> list[Sample]:
        """The times of the evaluations up to the first that reached the target."""
        kept = []
        for sample in self._samples:
            kept.append(sample._replace(value=sample.time_s or 0.0))
            if sample.value >= self._target:
                break
        return kept


class TimeToAccuracy(Metric):
    """Seconds of host time from the start of the first epoch until an evaluation first reaches the target.

    On the clock: data, training steps (also the first, which may compile), evaluations up to then, events. Off it:
    building the executor, compiling rules, events before the first epoch; and in a resumed run, the time between its
    interruption and its first step after the resume, and the repeated steps since its last checkpoint. The time is
    infinite if a run never reaches the target.

    Args:
        target: Test accuracy in percent.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.TimeToAccuracy(target=90).observer()
    >>> for epoch, accuracy in enumerate((71.0, 93.5, 92.0)):  # an evaluation every 1.5 s
    ...     trainer = SimpleNamespace(step=23 * (epoch + 1), elapsed_ns=lambda: (epoch + 1) * 1_500_000_000)
    ...     observer.after_evaluation(trainer, epoch, {"accuracy": accuracy})
    >>> observer.value(), d5.TimeToAccuracy(target=99).observer().value()
    (3.0, inf)
    """

    name = "time_to_accuracy"
    unit = "s"
    direction = "lower"

    def __init__(self, target: float) -> None:
        self.target = _checked(self.name, target)

    def observer(self) -> Observer:
        """Samples: the time of every evaluation until the target is reached."""
        return _TimeToAccuracy(self.target)


class _EpochsToAccuracy(_Accuracies):
    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target

    def value(self) -> float | None:
        if self._missing is not None:
            return None
        reached = (sample.epoch for sample in self._samples if sample.value >= self._target)
        return next((float(epoch) for epoch in reached if epoch is not None), math.inf)


class EpochsToAccuracy(Metric):
    """Number of epochs trained until an evaluation first reaches the target.

    Nothing is on a clock. The number is infinite if a run never reaches the target.

    Args:
        target: Test accuracy in percent.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> reached, missed = d5.EpochsToAccuracy(target=50).observer(), d5.EpochsToAccuracy(target=100).observer()
    >>> trainer.train(epochs=1, events=[reached, missed])
    >>> reached.value(), missed.value()
    (1.0, inf)
    """

    name = "epochs_to_accuracy"
    unit = "epochs"
    direction = "lower"

    def __init__(self, target: float) -> None:
        self.target = _checked(self.name, target)

    def observer(self) -> Observer:
        """Samples: the accuracy in percent after every epoch."""
        return _EpochsToAccuracy(self.target)
