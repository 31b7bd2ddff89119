"""Training accuracy, from the logits of the training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.events import StepInfo
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays, to_numpy
from deep5.metrics.training_set import dataset_of, labels_of

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["TrainingAccuracy"]

# The number of logits kept unread: reading synchronizes the device, keeping takes memory.
_MOST_UNREAD = 32


class _TrainingAccuracy(Observer):
    def __init__(self, logits: str, label: str) -> None:
        self._logits, self._label = logits, label
        self._unread: list[tuple[Any, Any]] = []
        self._labels: Any = None
        self._right = self._rows = 0
        self._samples: list[Sample] = []
        self._missing: str | None = None
        self._of_all: float | None = None
        # In the last complete epoch: correctly classified samples, and all samples.
        self._whole = (0, 0)

    def before_training(self, trainer: Any) -> None:
        dataset = dataset_of(trainer.train_sampler)
        self._labels = None if dataset is None else labels_of(dataset, self._label)
        if self._labels is None:
            self._missing = f"the samples of the training set have no index, or no integers as {self._label!r}"

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self._right = self._rows = 0

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        # If this rank has no samples of the batch, the step used a sample of another rank.
        if self._missing is None and (info.batch_size or info.sample_ids is None):
            self._unread.append((outputs.get(self._logits), info.sample_ids))
            if len(self._unread) >= _MOST_UNREAD:
                self._read()

    def _read(self) -> None:
        for native, ids in self._unread:
            if native is None or ids is None:
                self._missing = "what the steps give does not say which sample it predicted"
                break
            logits, labels = to_numpy(native), self._labels[ids]
            if logits.shape[:-1] != labels.shape:
                self._missing = (
                    f"the logits of a step have the shape {logits.shape} and its labels {labels.shape}: gradients are "
                    "accumulated over several batches"
                )
                break
            hits = (logits.argmax(axis=-1) == labels) & ~np.isnan(logits).any(axis=-1)
            self._right += int(np.count_nonzero(hits))
            self._rows += hits.size
        self._unread.clear()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._read()
        self._whole = self._right, self._rows
        if self._rows and self._missing is None:
            accuracy = 100.0 * self._right / self._rows
            self._samples.append(Sample(accuracy, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def state_dict(self) -> dict[str, Any]:
        self._read()  # native values cannot be saved; the labels belong to the data set
        return {name: value for name, value in super().state_dict().items() if name not in ("_unread", "_labels")}

    def combine(self, communicator: Communicator) -> None:
        totals = np.array([*self._whole, self._missing is not None], np.int64)
        communicator.all_reduce(totals)
        if totals[2]:
            self._missing = self._missing or "another rank has none"
        elif totals[1]:
            self._of_all = 100.0 * int(totals[0]) / int(totals[1])

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        if self._missing is None and self._of_all is not None:
            return self._of_all
        return self._samples[-1].value if self._samples and self._missing is None else None

    def missing(self) -> str | None:
        return self._missing


class TrainingAccuracy(Metric):
    """Percentage of the last epoch's training samples that the training steps classified correctly.

    Nothing is on a clock. Each sample counts once, with the weights of its training step, in training mode and
    augmented; `GeneralisationGap` uses the final weights in evaluation mode. Logits are read some steps late, so no
    step waits for them. Labels come from the data set when training begins; a data set that does not keep them is read
    once.

    Args:
        logits: Name of the output with one value per class.
        label: Name of the input with the true class.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.TrainingAccuracy().observer()
    >>> trainer.train(epochs=2, events=[observer])
    >>> [sample.epoch for sample in observer.samples()]
    [1, 2]
    >>> observer.value() < trainer.evaluate(train)["accuracy"]  # each step's weights, and the final ones
    True
    """

    name = "training_accuracy"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def __init__(self, *, logits: str = "logits", label: str = "label") -> None:
        self.logits, self.label = logits, label

    def observer(self) -> Observer:
        """Samples: the accuracy of every epoch."""
        return _TrainingAccuracy(self.logits, self.label)
