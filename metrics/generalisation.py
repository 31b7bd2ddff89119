"""Test accuracy of the final weights, and its gap to the training accuracy."""

from __future__ import annotations

from typing import Any

from deep5.core.events import NO_CLASSES
from deep5.core.metric import Metric, Observer
from deep5.metrics.after_training import AfterTraining
from deep5.metrics.training_set import dataset_of

__all__ = ["FinalTestAccuracy", "GeneralisationGap"]


class _Final(AfterTraining):
    def __init__(self) -> None:
        super().__init__()
        self._evaluated = -1

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        self._evaluated = trainer.step

    def measured(self, trainer: Any) -> float | None:
        # If an event stopped training in mid-epoch, the weights are not those of the last evaluation.
        current = self._evaluated == trainer.step
        return self._value(trainer, trainer.scores if current else trainer.evaluate(trainer.validation_sampler))

    def _value(self, trainer: Any, scores: dict[str, float]) -> float | None:
        if "accuracy" not in scores:
            self._missing = NO_CLASSES
        return scores.get("accuracy")


class FinalTestAccuracy(Metric):
    """Percentage of test samples that the trained network in the result classifies correctly.

    If an event stopped training in mid-epoch, the test set is evaluated again; `TestAccuracy` is that of the last
    completed epoch.

    Nothing is on a clock.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> class Interrupt(d5.Event):
    ...     def before_batch(self, trainer, epoch):
    ...         if trainer.step == 8: raise d5.StopTraining("in the second epoch, of six steps")
    >>> last, final = d5.TestAccuracy().observer(), d5.FinalTestAccuracy().observer()
    >>> trainer.train(epochs=3, events=[last, final, Interrupt()])
    >>> last.samples()[-1].step, final.samples()[-1].step  # the epoch's, and that of the weights in the result
    (6, 8)
    """

    name = "final_test_accuracy"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: the value."""
        return _Final()


class _Gap(_Final):
    def _value(self, trainer: Any, scores: dict[str, float]) -> float | None:
        from deep5.training.sampler import OrderedSampler

        if "accuracy" not in scores:
            self._missing = NO_CLASSES
            return None
        dataset, validation = dataset_of(trainer.train_sampler), trainer.validation_sampler
        if dataset is None:
            self._missing = "the samples of the training set have no index"
            return None
        size = getattr(validation, "batch_size", 256)
        size = min(size if isinstance(size, int) else 256, len(dataset))
        samples = OrderedSampler(dataset, size, transforms=_transforms(validation))
        trained = trainer.evaluate(samples)["accuracy"]
        return float(trained - scores["accuracy"])


def _transforms(source: Any) -> tuple[Any, ...]:
    """The transforms of the test samples, also through prefetching wrappers."""
    while source is not None:
        if hasattr(source, "transforms"):
            return tuple(source.transforms)
        source = getattr(source, "source", getattr(source, "sampler", None))
    return ()


class GeneralisationGap(Metric):
    """Training accuracy minus test accuracy of the trained network, in percentage points.

    Both use the final weights in evaluation mode. Training samples are prepared like test samples, without
    augmentation; each sample counts once. The training set is evaluated once, after training.

    Nothing is on a clock.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.GeneralisationGap().observer()
    >>> trainer.train(epochs=3, events=[observer])
    >>> trained = trainer.evaluate(d5.OrderedSampler(data.train, 30))["accuracy"]
    >>> observer.value() == trained - trainer.scores["accuracy"]
    True
    """

    name = "generalisation_gap"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the value."""
        return _Gap()
