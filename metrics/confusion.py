"""The confusion matrix of the test set, and the F1 score, which follows from it."""

from __future__ import annotations

import csv
import io
from abc import abstractmethod
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.network_names import check_class_names
from deep5.training.scores import class_rows, confusion, recalls

__all__ = ["F1", "ConfusionMatrix", "confusion_text", "f1_scores"]

_FILE = "confusion.csv"


class _Counted(Observer):
    """Counts the confusion matrix of every evaluation, over all ranks, and computes a score from it."""

    def __init__(self, logits: str, label: str) -> None:
        self._logits, self._label = logits, label
        self._samples: list[Sample] = []
        self._matrix = np.zeros((0, 1), dtype=np.int64)
        self._fresh = True
        self._ignored: int | None = None
        self._known = False

    def check_network(self, network: Any) -> None:
        check_class_names(network, self._logits, self._label)

    def before_training(self, trainer: Any) -> None:
        from deep5.networks.labels import ignored_label  # it loads onnx

        self.check_network(trainer.executor.network)
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
        found = self.score(self._matrix)
        self._known = found is not None
        if found is not None:
            self._samples.append(Sample(found, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    @abstractmethod
    def score(self, matrix: np.ndarray) -> float | None:
        """The score of a matrix; None: it has none."""

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        # Not that of an earlier epoch.
        return self._samples[-1].value if self._samples and self._known else None


class _Confusion(_Counted):
    def score(self, matrix: np.ndarray) -> float | None:
        found = recalls(matrix)
        return None if np.isnan(found).all() else float(np.nanmin(found))

    def files(self) -> dict[str, bytes | str]:
        return {_FILE: confusion_text(self._matrix)} if self._samples else {}


class _F1(_Counted):
    def __init__(self, positive: int | None, logits: str, label: str) -> None:
        super().__init__(logits, label)
        self._positive = positive

    def check_network(self, network: Any) -> None:
        super().check_network(network)
        spec = network.outputs[self._logits]
        if spec is not None and spec.shape and isinstance(spec.shape[-1], int):
            self._check_classes(spec.shape[-1])  # fail before an epoch is trained

    def _check_classes(self, classes: int) -> None:
        if self._positive is not None and self._positive >= classes:
            raise UsageError(
                f"f1 with positive={self._positive} of a network of {classes} classes; allowed: 0 to {classes - 1}, or "
                "None for the mean over the classes"
            )

    def score(self, matrix: np.ndarray) -> float | None:
        self._check_classes(len(matrix))
        found = f1_scores(matrix)
        found = found if self._positive is None else found[self._positive : self._positive + 1]
        return None if np.isnan(found).all() else float(np.nanmean(found))

    def missing(self) -> str | None:
        return None if self._known else "not available here: no test label and no prediction is of the class"


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


def f1_scores(matrix: np.ndarray) -> np.ndarray:
    """F1 in percent of each class: 2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall.

    A class that occurs but is never predicted correctly has 0, also if its precision or recall would
    divide by zero; NaN for a class that is neither among the labels nor among the predictions.

    Args:
        matrix: As returned by `deep5.training.scores.confusion`.

    References:
        van Rijsbergen, Information retrieval, 2nd edition, 1979, chapter 7, with equal weights.

    >>> f1_scores(np.array([[3, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])).round(2).tolist()
    [85.71, 80.0, nan]
    """
    classes = len(matrix)
    right = np.diagonal(matrix)
    occurrences = matrix.sum(axis=1) + matrix[:, :classes].sum(axis=0)
    return np.where(occurrences > 0, 200.0 * right / np.maximum(occurrences, 1), np.nan)


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


class F1(Metric):
    """F1 score of the test set after the last epoch: that of one class, or the mean over the classes (macro average).

    The F1 score of a class is 2 TP / (2 TP + FP + FN). A class that is neither among the labels nor predicted has none,
    and the mean leaves it out; a class that occurs but is never predicted correctly has 0. Every class has the same
    weight, unlike in the accuracy. A sample with NaN logits is predicted as no class.

    Nothing is on a clock.

    Args:
        positive: The class; None: the mean over the classes.
        logits: Name of the output with one value per class.
        label: Name of the input with the true class.

    Raises:
        UsageError: `positive` is not an integer of at least 0.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.F1(positive=1).observer()
    >>> trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 0)
    >>> observer.before_evaluation(trainer, epoch=0)
    >>> logits = np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    >>> observer.after_evaluation_batch(trainer, None, {"label": np.array([0, 1, 1, 1])}, {"logits": logits})
    >>> observer.after_evaluation(trainer, epoch=0, scores={})
    >>> observer.value()  # two true positives, one false negative
    80.0
    """

    name = "f1"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def __init__(self, positive: int | None = None, *, logits: str = "logits", label: str = "label") -> None:
        if positive is not None and (isinstance(positive, bool) or not isinstance(positive, int) or positive < 0):
            raise UsageError(f"f1 with positive={positive!r:.60}; allowed: a class from 0, or None for the mean of all")
        self.positive, self.logits, self.label = positive, logits, label

    def observer(self) -> Observer:
        """Samples: the score after every epoch."""
        return _F1(self.positive, self.logits, self.label)
