"""Top-k accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.network_names import check_class_names
from deep5.training.scores import class_rows, top_k_hits

__all__ = ["TopK"]


class _TopK(Observer):
    def __init__(self, k: int, logits: str, label: str) -> None:
        self._k, self._logits, self._label = k, logits, label
        self._samples: list[Sample] = []
        self._counts = np.zeros(2)

    def before_training(self, trainer: Any) -> None:
        check_class_names(trainer.executor.network, self._logits, self._label)
        spec = trainer.executor.network.outputs[self._logits]
        if spec is not None and spec.shape and isinstance(spec.shape[-1], int):
            self._check(spec.shape[-1])  # fail before an epoch is trained

    def _check(self, classes: int) -> None:
        if self._k > classes:
            raise UsageError(f"top_k with k={self._k} of a network of {classes} classes; allowed: 1 to {classes}")

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        self._counts = np.zeros(2)

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        scores, labels = class_rows(outputs[self._logits], inputs[self._label])
        self._check(scores.shape[1])
        self._counts += (top_k_hits(scores, labels, self._k), len(labels))

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        if trainer.communicator is not None:
            trainer.communicator.all_reduce(self._counts, op="sum", timeout_s=60.0)
        hits, rows = self._counts.tolist()
        self._samples.append(Sample(100.0 * hits / rows, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None


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
