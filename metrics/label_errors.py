"""Label error rate of connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, UnknownName
from deep5.core.metric import Metric, Observer
from deep5.core.tensors import Arrays, to_numpy
from deep5.metrics.error_rate import count_errors
from deep5.metrics.evaluation_sums import EvaluationSums
from deep5.training.ctc_decoding import best_path, check_beam, prefix_beam_search

__all__ = ["LabelErrorRate"]

_SCORES, _STEPS = "log_probabilities", "output_length"
_LABELS, _LENGTH = "labels", "label_length"


class _Errors(EvaluationSums):
    def __init__(self, beam: int | None) -> None:
        super().__init__(2)
        self._beam = beam

    def check_network(self, network: Any) -> None:
        for kind, names, known in (
            ("output", (_SCORES, _STEPS), network.outputs),
            ("input", (_LABELS, _LENGTH), network.inputs),
        ):
            for name in names:
                if name not in known:
                    raise UnknownName(kind, name, known)
        count_errors([[0]], [[0]])  # a package that it needs is missing now, not after an epoch of training

    def terms(self, inputs: Arrays, outputs: Arrays) -> Sequence[float]:
        scores, steps = to_numpy(outputs[_SCORES]), to_numpy(outputs[_STEPS])
        found = best_path(scores, steps) if self._beam is None else prefix_beam_search(scores, steps, beam=self._beam)
        counts = count_errors(_rows(to_numpy(inputs[_LABELS]), to_numpy(inputs[_LENGTH])), found)
        return counts.errors, counts.reference_tokens

    def score(self, sums: Sequence[float]) -> float | None:
        errors, labels = sums
        return 100.0 * errors / labels if labels else None


def _rows(labels: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """The labels of each sample, without padding."""
    if (
        labels.ndim != 2
        or lengths.shape != labels.shape[:1]
        or not ((lengths >= 0) & (lengths <= labels.shape[1])).all()
    ):
        raise ShapeError(
            f"label_error_rate: got labels of shape {labels.shape} and lengths {lengths.tolist()!r:.80}; allowed: "
            "shape (N, most), and for each sample a length from 0 to most"
        )
    return [row[:length] for row, length in zip(labels.tolist(), lengths.tolist(), strict=True)]


class LabelErrorRate(Metric):
    """Errors of the labels decoded from the test set in percent of the true labels, after the last epoch.

    For networks trained by connectionist temporal classification, such as `deep_speech`: their outputs are
    `log_probabilities` (N, steps, classes), where class 0 is the blank, and `output_length` (N,), and their inputs have
    `labels` (N, most) and `label_length` (N,). The errors of a sequence are its edit distance from the true one:
    labels that are substituted, inserted and deleted. Over 100 % if more labels are wrong than there are.

    Nothing is on a clock. Needs rapidfuzz: `pip install 'deep5[text]'`.

    Args:
        beam: Prefixes that `prefix_beam_search` keeps at each step; None: the best path (`best_path`), which takes much
            less time.

    Raises:
        UsageError: The beam is not None or an integer of at least 1.

    References:
        Graves, Fernandez, Gomez and Schmidhuber, Connectionist temporal classification, ICML 2006, equation 1, here
        over the sum of the lengths, as for word error rates.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.LabelErrorRate().observer()
    >>> trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 0)
    >>> observer.before_evaluation(trainer, epoch=0)
    >>> inputs = {"labels": np.array([[1, 2, 1, 0], [2, 0, 0, 0]]), "label_length": np.array([3, 1])}
    >>> probable = np.array([[1, 1, 0, 2], [2, 0, 0, 0]])  # the labels 1 and 2, where 1, 2 and 1 are true
    >>> outputs = {"log_probabilities": np.log(0.9 * np.eye(3)[probable] + 0.05), "output_length": np.array([4, 2])}
    >>> observer.after_evaluation_batch(trainer, None, inputs, outputs)
    >>> observer.after_evaluation(trainer, epoch=0, scores={})
    >>> observer.value()  # one of four is deleted
    25.0
    """

    name = "label_error_rate"
    unit = "%"
    direction = "lower"

    def __init__(self, *, beam: int | None = None) -> None:
        if beam is not None:
            check_beam(self.name, beam)
        self.beam = beam

    def observer(self) -> Observer:
        """Samples: the percentage after every epoch."""
        return _Errors(self.beam)
