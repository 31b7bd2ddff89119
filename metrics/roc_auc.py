"""The area under the ROC curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import ShapeError, UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays, to_numpy
from deep5.distributed.rows import gather_rows
from deep5.metrics.network_names import check_class_names

__all__ = ["ROCAUC", "area_under_roc"]

_ONE_CLASS = "not available here: the test labels are all of one class"
_NAN = "not available here: a score is NaN"


def area_under_roc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """The share of pairs of a positive and a negative sample in which the positive has the larger score.

    That is the statistic of Mann and Whitney divided by the number of pairs; equal scores count half.

    Args:
        scores: Numbers, shape (samples,).
        labels: Whether a sample is positive, shape (samples,).

    Returns:
        A number from 0 to 1, NaN if a score is NaN, or None if only one class occurs.

    References:
        Hanley and McNeil, The meaning and use of the area under a receiver operating characteristic (ROC) curve,
        Radiology 143(1), 1982.

    >>> area_under_roc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    from scipy.stats import rankdata

    positive = int(np.count_nonzero(labels))
    negative = len(labels) - positive
    if not positive or not negative:
        return None
    ranks = rankdata(scores)  # of equal scores the mean of their ranks
    above = ranks[labels].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


class _ROCAUC(Observer):
    def __init__(self, scores: str, label: str) -> None:
        self._name, self._label = scores, label
        self._samples: list[Sample] = []
        # Rows of score and label, of the evaluation in progress.
        self._rows: list[np.ndarray] = []
        self._ignored: int | None = None
        self._missing: str | None = None

    def check_network(self, network: Any) -> None:
        check_class_names(network, self._name, self._label)

    def before_training(self, trainer: Any) -> None:
        self.check_network(trainer.executor.network)
        from deep5.networks.labels import ignored_label  # it loads onnx

        self._ignored = ignored_label(trainer.executor.network, self._label)

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        self._rows = []

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        scores, labels = to_numpy(outputs[self._name]), to_numpy(inputs[self._label])
        if scores.shape == (*labels.shape, 2):
            scores = scores[..., 1] - scores[..., 0]
        if scores.shape != labels.shape:
            raise ShapeError(
                f"roc_auc got scores {self._name!r} of shape {scores.shape} and labels of shape {labels.shape}; "
                "allowed: one score a label, or logits of two classes"
            )
        kept = np.ones(labels.shape, dtype=bool) if self._ignored is None else labels != self._ignored
        scores, labels = scores[kept], labels[kept]
        if not np.isin(labels, (0, 1)).all():
            raise UsageError(
                f"roc_auc got the label {labels[~np.isin(labels, (0, 1))][0]}; allowed: 0 and 1; remedy: a score and "
                "labels of two classes"
            )
        self._rows.append(np.stack([scores, labels], axis=1).astype(np.float64))

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        rows = np.concatenate([np.empty((0, 2)), *self._rows])
        self._rows = []
        if trainer.communicator is not None:
            # The other ranks may still be evaluating.
            rows = np.concatenate(gather_rows(trainer.communicator, rows, timeout_s=10 * TIMEOUT_S))
        found = area_under_roc(rows[:, 0], rows[:, 1] == 1)
        self._missing = _ONE_CLASS if found is None else _NAN if np.isnan(found) else None
        if found is not None and self._missing is None:
            self._samples.append(Sample(100.0 * found, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def missing(self) -> str | None:
        return self._missing

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        # Not that of an earlier epoch.
        return self._samples[-1].value if self._samples and self._missing is None else None


class ROCAUC(Metric):
    """Area under the ROC curve over the test set after the last epoch, in percent; for labels of 0 and 1.

    That is the probability that a random sample of label 1 has a larger score than a random one of label 0; equal
    scores count half (mid-ranks). Scores without information give 50 %. If only one class occurs, or a score is NaN,
    there is no value. Labels that the network's loss ignores do not count. The scores of all ranks count together.

    Nothing is on a clock.

    Args:
        scores: Name of the output with one score per label, or with the logits of two classes, whose difference is the
            score.
        label: Name of the input with the true class.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.ROCAUC().observer()
    >>> trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 0)
    >>> observer.before_evaluation(trainer, epoch=0)
    >>> scores = {"logits": np.array([-2.0, 0.5, 0.5, 1.0])}
    >>> observer.after_evaluation_batch(trainer, None, {"label": np.array([0, 0, 1, 1])}, scores)
    >>> observer.after_evaluation(trainer, epoch=0, scores={})
    >>> observer.value()  # of four pairs, three are in order and one has equal scores
    87.5
    """

    name = "roc_auc"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def __init__(self, *, scores: str = "logits", label: str = "label") -> None:
        self.scores, self.label = scores, label

    def observer(self) -> Observer:
        """Samples: the area after every epoch."""
        return _ROCAUC(self.scores, self.label)
