"""The confusion matrix of the test set."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.network_names import check_class_names
from deep5.training.scores import class_rows, confusion, recalls

__all__ = ["ConfusionMatrix", "confusion_text"]

_FILE = "confusion.csv"


class _Confusion(Observer):
    def __init__(self, logits: str, label: str) -> None:
        self._logits, self._label = logits, label
        self._samples: list[Sample] = []
        self._matrix = np.zeros((0, 1), dtype=np.int64)
        self._fresh = True
        self._ignored: int | None = None

    def before_training(self, trainer: Any) -> None:
        from deep5.networks.labels import ignored_label  # it loads onnx

        check_class_names(trainer.executor.network, self._logits, self._label)
        self._ignored = ignored_label(trainer.executor.network, self._label)

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        self._fresh = True

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        found = confusion(*class_rows(outputs[self._logits], inputs[self._label], self._ignored))
        self._matrix = found if self._fresh else self._matrix + found
        self._fresh = False

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        if trainer.communicator is not None:
            trainer.communicator.all_reduce(self._matrix, op="sum", timeout_s=60.0)
        found = recalls(self._matrix)
        if not np.isnan(found).all():
            worst = float(np.nanmin(found))
            self._samples.append(Sample(worst, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None

    def files(self) -> dict[str, bytes | str]:
        return {_FILE: confusion_text(self._matrix)} if self._samples else {}


def confusion_text(matrix: np.ndarray) -> str:
    """The matrix as CSV: one row per true class, one column per predicted class, with counts of samples.

    If logits were NaN, a last column `none` counts the samples without a prediction.

    Args:
        matrix: The result of `deep5.training.scores.confusion`.

    >>> print(confusion_text(np.array([[3, 1, 0], [0, 2, 0]])), end="")
    true\\predicted,0,1
    0,3,1
    1,0,2
    """
    classes = len(matrix)
    lost = bool(matrix[:, classes:].any())
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["true\\predicted", *range(classes), *(["none"] if lost else [])])
    for true, row in enumerate(matrix.tolist()):
        writer.writerow([true, *row[: classes + lost]])
    return out.getvalue()


class ConfusionMatrix(Metric):
    """The confusion matrix of the test set after the last epoch.

    The value is the smallest recall of any class: the percentage of its samples that are classified correctly. The
    result's file `confusion.csv` has the matrix, true classes in rows, predicted ones in columns. Classes without test
    samples have no recall.

    Nothing is on a clock.

    Args:
        logits: Name of the output with one value per class.
        label: Name of the input with the true class.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.ConfusionMatrix().observer()
    >>> trainer.train(epochs=3, events=[observer])
    >>> rows = [line.split(",") for line in observer.files()["confusion.csv"].splitlines()]
    >>> rows[0], [sum(map(int, row[1:])) for row in rows[1:]]  # ten test samples of each class
    (['true\\\\predicted', '0', '1', '2'], [10, 10, 10])
    >>> observer.value() == min(100.0 * int(row[1 + int(row[0])]) / 10 for row in rows[1:])
    True
    """

    name = "confusion_matrix"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def __init__(self, *, logits: str = "logits", label: str = "label") -> None:
        self.logits, self.label = logits, label

    def observer(self) -> Observer:
        """Samples: the smallest recall of any class after every epoch."""
        return _Confusion(self.logits, self.label)
