"""Top-k accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer
from deep5.core.tensors import Arrays
from deep5.metrics.evaluation_sums import EvaluationSums
from deep5.metrics.network_names import check_class_names
from deep5.training.scores import class_rows, top_k_hits

__all__ = ["TopK"]


class _TopK(EvaluationSums):
    def __init__(self, k: int, logits: str, label: str) -> None:
        super().__init__(2)
        self._k, self._logits, self._label = k, logits, label

    def check_network(self, network: Any) -> None:
        check_class_names(network, self._logits, self._label)
        spec = network.outputs[self._logits]
        if spec is not None and spec.shape and isinstance(spec.shape[-1], int):
            self._check_classes(spec.shape[-1])  # fail before an epoch is trained

    def _check_classes(self, classes: int) -> None:
        if self._k > classes:
            raise UsageError(f"top_k with k={self._k} of a network of {classes} classes; allowed: 1 to {classes}")

    def terms(self, inputs: Arrays, outputs: Arrays) -> Sequence[float]:
        scores, labels = class_rows(outputs[self._logits], inputs[self._label], self.ignored(self._label))
        self._check_classes(scores.shape[1])
        return top_k_hits(scores, labels, self._k), len(labels)

    def score(self, sums: Sequence[float]) -> float | None:
        hits, rows = sums
        return 100.0 * hits / rows if rows else None


class TopK(Metric):
    """Percentage of test samples whose true class is among the network's k highest-ranked, after the last epoch.

    Nothing is on a clock. Among equal logits the lower class ranks higher, so k=1 equals `TestAccuracy`. A sample with
    NaN logits is never correct.

    Args:
        k: From 1 to the number of classes.
        logits: Name of the output with one value per class.
        label: Name of the input with the true class.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.TopK(k=2).observer()
    >>> trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 0)
    >>> observer.before_evaluation(trainer, epoch=0)
    >>> logits = np.array([[5.0, 3.0, 1.0], [5.0, 3.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    >>> observer.after_evaluation_batch(trainer, None, {"label": np.array([1, 2, 2, 1])}, {"logits": logits})
    >>> observer.after_evaluation(trainer, epoch=0, scores={})
    >>> observer.value()  # all but the second sample, whose class ranks third
    75.0
    """

    name = "top_k"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def __init__(self, k: int = 5, *, logits: str = "logits", label: str = "label") -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UsageError(f"top_k with k={k!r:.60}; allowed: an integer of at least 1")
        self.k, self.logits, self.label = k, logits, label

    def observer(self) -> Observer:
        """Samples: the percentage after every epoch."""
        return _TopK(self.k, self.logits, self.label)
