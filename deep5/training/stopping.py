"""Events that end training early: no more progress, a target reached, a time limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from deep5.core.arguments import is_finite
from deep5.core.errors import UnknownName, UsageError, brief
from deep5.core.events import NO_CLASSES, Event, StopTraining
from deep5.core.quantities import seconds
from deep5.training.schedules.scheduled import epoch_batches

__all__ = ["EarlyStopping", "StopAfter", "StopAtAccuracy"]

_MODES = {"loss": "min", "accuracy": "max"}


class _AfterEvaluation(Event):
    """Stops before an epoch because of the result of an earlier evaluation.

    Not immediately: all other events first receive the end of the evaluation and of the epoch, and a checkpoint in
    between stores the reason, so that a run resumed from it stops as well.
    """

    _reason: str | None = None

    def before_training(self, trainer: Any) -> None:
        """Reset for a new training.

        Raises:
            UsageError: The trainer does not evaluate.
        """
        if trainer.validation_sampler is None:
            raise UsageError(
                f"{type(self).__name__} uses evaluations, and the trainer has no validation_sampler; remedy: give it "
                "one"
            )
        if trainer.step == 0:
            self._reason = None

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Stop if there is a reason.

        Raises:
            StopTraining: There is one.
        """
        if self._reason is not None:
            raise StopTraining(self._reason)

    def state_dict(self) -> dict[str, Any]:
        """The reason to stop, or None."""
        return {"reason": self._reason}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._reason = state["reason"]


class EarlyStopping(_AfterEvaluation):
    """Stops when evaluations have not improved for a while.

    The weights are those of the last step; `Checkpointer(best=…)` keeps those of the best evaluation. After the last
    epoch, there is nothing to stop.

    Args:
        monitor: The score to monitor, such as `"loss"` or `"accuracy"`.
        patience: Stop after this many consecutive evaluations that do not improve on the best one.
        min_delta: The minimum improvement, exclusive: for `"accuracy"`, percentage points.
        mode: `"min"` if lower is better, `"max"` if higher is; None: known for loss and accuracy.

    Attributes:
        best: The best score so far, or None.
        best_epoch: Epochs done when it was reached.

    Raises:
        UsageError: An argument is out of range.

    References:
        Prechelt, Early stopping - but when?, in Neural networks: tricks of the trade, 1998, section 2.2: criterion UP,
        compared with the best score instead of the previous one.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.SGD(0.0), d5.ShuffleSampler(data.train, 4), d5.OrderedSampler(data.test, 6))
    >>> trainer.train(epochs=20, events=[d5.EarlyStopping("accuracy", patience=2)])  # at lr=0 nothing improves
    >>> trainer.reason.partition(";")[0]
    'early stopping after 3 epochs: the accuracy has not become better in 2 evaluations'
    """

    def __init__(
        self,
        monitor: str = "loss",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] | None = None,
    ) -> None:
        if not isinstance(monitor, str) or not monitor:
            raise UsageError(
                f"EarlyStopping: got monitor={brief(monitor)}; allowed: the name of a score, such as 'loss'"
            )
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise UsageError(
                f"EarlyStopping: got patience={brief(patience)}; allowed: a number of evaluations, at least 1"
            )
        if not is_finite(min_delta) or min_delta < 0:
            raise UsageError(f"EarlyStopping: got min_delta={brief(min_delta)}; allowed: a number of at least 0")
        if mode is None and monitor not in _MODES:
            raise UsageError(
                f"EarlyStopping: got monitor={monitor!r} and no mode; allowed: mode='min' where lower is better, 'max' "
                "where higher is"
            )
        if mode not in (None, "min", "max"):
            raise UsageError(f"EarlyStopping: got mode={brief(mode)}; allowed: 'min', 'max', None")
        self.monitor, self.patience, self.min_delta = monitor, patience, float(min_delta)
        self.mode = mode or _MODES[monitor]
        self._begin()

    def _begin(self) -> None:
        self.best: float | None = None
        self.best_epoch = self._waited = 0

    def describe(self) -> dict[str, Any]:
        """The monitored score and the patience."""
        names = ("monitor", "patience", "min_delta", "mode")
        return {"event": "early_stopping", **{name: getattr(self, name) for name in names}}

    def before_training(self, trainer: Any) -> None:
        """Reset for a new training."""
        super().before_training(trainer)
        if trainer.step == 0:
            self._begin()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Compare the score with the best one; NaN is never better.

        Raises:
            UnknownName: The score does not exist.
        """
        if self.monitor not in scores:
            raise UnknownName("score", self.monitor, scores)
        score = scores[self.monitor]
        if self._better(score):
            self.best, self.best_epoch, self._waited = score, epoch + 1, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            best = "none was a number" if self.best is None else f"the best was {self.best:g} after {self.best_epoch}"
            self._reason = (
                f"early stopping after {epoch + 1} epochs: the {self.monitor} has not become better in {self._waited} "
                f"evaluations; {best}"
            )

    def _better(self, score: float) -> bool:
        if math.isnan(score) or self.best is None:
            return not math.isnan(score)
        gain = self.best - score if self.mode == "min" else score - self.best
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        """The best score, how long ago it was reached, and the reason to stop."""
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self._waited, **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        super().load_state_dict(state)
        self.best, self.best_epoch, self._waited = state["best"], state["best_epoch"], state["waited"]


class StopAtAccuracy(_AfterEvaluation):
    """Stops when an evaluation reaches an accuracy.

    Args:
        target: Percent, above 0 and at most 100.

    Raises:
        UsageError: The target is out of range.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> trainer.train(epochs=50, events=[d5.StopAtAccuracy(90)])
    >>> trainer.status, trainer.scores["accuracy"] >= 90, trainer.epoch < 50
    ('stopped', True, True)
    """

    def __init__(self, target: float) -> None:
        if not is_finite(target) or not 0 < target <= 100:
            raise UsageError(
                f"StopAtAccuracy: got target={brief(target)}; allowed: percent, above 0 and at most 100; remedy: 97.5, "
                "say"
            )
        self.target = float(target)

    def describe(self) -> dict[str, Any]:
        """The target."""
        return {"event": "stop_at_accuracy", "target": self.target}

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Check the accuracy.

        Raises:
            UsageError: There is no accuracy.
        """
        if "accuracy" not in scores:
            raise UsageError(f"StopAtAccuracy: there is no accuracy: {NO_CLASSES}; remedy: EarlyStopping('loss')")
        if scores["accuracy"] >= self.target:
            self._reason = (
                f"accuracy {scores['accuracy']:g} % after {epoch + 1} epochs, and the target is {self.target:g} %"
            )


class StopAfter(Event):
    """Stops before the first batch after the time limit.

    The limit applies to the time since the first epoch began, on the run's own clock: time before a resume counts, the
    interruption does not. Steps are always completed, and a complete epoch is evaluated.

    Args:
        seconds: Above 0.

    Raises:
        UsageError: `seconds` is not a number above 0.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(0.1), d5.ShuffleSampler(data.train, 4))
    >>> trainer.train(epochs=50, events=[d5.StopAfter(seconds=1e-9)])  # over before the first batch; 3600: an hour
    >>> trainer.status, trainer.step
    ('stopped', 0)
    """

    def __init__(self, seconds: float) -> None:
        if not is_finite(seconds) or seconds <= 0:
            raise UsageError(f"StopAfter: got seconds={brief(seconds)}; allowed: a number above 0; remedy: 3600, say")
        self.seconds, self._limit_ns = float(seconds), int(seconds * 1e9)

    def describe(self) -> dict[str, Any]:
        """The limit."""
        return {"event": "stop_after", "seconds": self.seconds}

    def before_batch(self, trainer: Any, epoch: int) -> None:
        """Check the clock.

        Raises:
            StopTraining: The time limit is reached.
        """
        elapsed = trainer.elapsed_ns()
        if elapsed >= self._limit_ns and not self._complete(trainer, epoch):
            raise StopTraining(f"{seconds(elapsed / 1e9)} of training, and the limit is {seconds(self.seconds)}")

    @staticmethod
    def _complete(trainer: Any, epoch: int) -> bool:
        """Whether the epoch has had its last batch; unknown for a data set without a length."""
        return bool(trainer.batch) and trainer.batch == epoch_batches(trainer.train_sampler, epoch)
