"""Sampling bias: the distance between a sampler's draws and the data set."""

from __future__ import annotations

import csv
import io
from typing import Any, NamedTuple

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.training_set import dataset_of, labels_of

__all__ = ["SamplingBias"]

_FILE = "sampling.csv"


class _Epoch(NamedTuple):
    """One epoch's draws; the fields are the columns of the CSV file."""

    epoch: int
    drawn: int
    never: int
    once: int
    more_than_once: int
    samples_percent: float
    labels_percent: float | None


class _SamplingBias(Observer):
    def __init__(self, of: str, label: str) -> None:
        self._of, self._label = of, label
        self._ids: list[Any] = []
        self._epochs: list[tuple[Any, ...]] = []
        self._steps: list[int] = []
        self._missing: str | None = None
        self._dataset: Any = None
        self._labels: np.ndarray | None = None

    def before_training(self, trainer: Any) -> None:
        self._dataset = dataset_of(trainer.train_sampler)
        if self._dataset is None:
            self._missing = "the samples of the training set have no index"
        else:
            # The run's clock is stopped here.
            self._labels = labels_of(self._dataset, self._label, read=self._of == "labels")

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self._ids = []

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        self._ids.append(info.sample_ids)

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        if self._missing is None and any(ids is None for ids in self._ids):
            self._missing = "the batches do not say which samples are in them"
        if self._missing is None and self._ids:
            counts = np.bincount(np.concatenate(self._ids), minlength=len(self._dataset))
            if trainer.communicator is not None:
                # Each rank sees only its own draws.
                trainer.communicator.all_reduce(counts)
            self._epochs.append(tuple(self._judged(epoch, counts)))
            self._steps.append(trainer.step)
        self._ids = []

    def _judged(self, epoch: int, counts: np.ndarray) -> _Epoch:
        labels, drawn = self._labels, int(counts.sum())
        bias: float | None = None
        if labels is not None and labels.ndim == 1:
            known = labels >= 0
            own, total = counts[known], int(counts[known].sum())
            there = np.bincount(labels[known])
            taken = np.bincount(labels[known], weights=own)
            bias = _total_variation(taken / max(total, 1), there / max(there.sum(), 1))
        elif self._of == "labels":
            self._missing = f"the samples have no integer as {self._label!r}"
        return _Epoch(
            epoch=epoch + 1,
            drawn=drawn,
            never=int(np.count_nonzero(counts == 0)),
            once=int(np.count_nonzero(counts == 1)),
            more_than_once=int(np.count_nonzero(counts > 1)),
            samples_percent=_total_variation(counts / drawn, np.full(len(counts), 1 / len(counts))),
            labels_percent=bias,
        )

    def state_dict(self) -> dict[str, Any]:
        if self._ids and all(ids is not None for ids in self._ids):
            self._ids = [np.concatenate(self._ids)]
        # The labels belong to the data set.
        return {name: value for name, value in super().state_dict().items() if name not in ("_dataset", "_labels")}

    def samples(self) -> list[Sample]:
        rows = [(_Epoch(*row), step) for row, step in zip(self._epochs, self._steps, strict=True)]
        biases = [
            (row.labels_percent if self._of == "labels" else row.samples_percent, row, step) for row, step in rows
        ]
        return [Sample(bias, step, row.epoch) for bias, row, step in biases if bias is not None]

    def value(self) -> float | None:
        return max((sample.value for sample in self.samples()), default=None)

    def missing(self) -> str | None:
        return None if self._epochs and self._missing is None else self._missing

    def files(self) -> dict[str, bytes | str]:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(_Epoch._fields)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self._epochs)
        return {_FILE: out.getvalue()} if self._epochs else {}


def _total_variation(drawn: np.ndarray, there: np.ndarray) -> float:
    """Half the sum of the absolute differences of two distributions, in percent: 0 if equal, 100 if disjoint."""
    return 50.0 * float(np.abs(drawn - there).sum())


class SamplingBias(Metric):
    """Distance between the sampler's frequencies in an epoch and the training set's, for the worst epoch.

    The total variation distance of two distributions, in percent: the fraction of the draws that would have to change.
    It is 0 if each class (or each sample) was drawn as often as it occurs in the set. The result's file `sampling.csv`
    has both distances of every epoch, and the numbers of samples drawn never, once and more than once. Incomplete
    epochs are excluded.

    Nothing is on a clock. Labels come from the data set when training begins. A data set that does not keep them is
    read once; for `"samples"` it is not read, and the file has no distance by class.

    Args:
        of: `"labels"`: by class; `"samples"`: by sample, 0 if each was drawn equally often.
        label: Name of the part of a sample with its class.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> labels = np.repeat([0, 1], [3, 1])  # three samples of class 0, one of class 1
    >>> data = d5.ArrayDataset({"input": np.zeros((4, 4), np.float32), "label": labels})
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=2))
    >>> class Few(d5.Sampler):
    ...     def order(self, epoch): return np.array([0, 3])
    ...     def samples(self, epoch): return 2
    >>> observer = d5.SamplingBias().observer()
    >>> d5.Trainer(executor, d5.SGD(0.1), Few(data, 2)).train(epochs=1, events=[observer])
    >>> observer.value()  # half of the draws are of class 1, and a quarter of the set
    25.0
    >>> print(observer.files()["sampling.csv"], end="")
    epoch,drawn,never,once,more_than_once,samples_percent,labels_percent
    1,2,2,2,0,50.0,25.0
    """

    name = "sampling_bias"
    unit = "%"
    direction = "lower"

    def __init__(self, of: str = "labels", *, label: str = "label") -> None:
        if of not in ("labels", "samples"):
            raise UsageError(f"sampling_bias of {of!r:.60}; allowed: 'labels', 'samples'")
        self.of, self.label = of, label

    def observer(self) -> Observer:
        """Samples: the distance of every epoch."""
        return _SamplingBias(self.of, self.label)
