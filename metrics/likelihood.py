"""Scores of language models: perplexity and bits per byte of the test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer
from deep5.core.tensors import Arrays
from deep5.metrics.evaluation_sums import EvaluationSums
from deep5.metrics.network_names import check_class_names
from deep5.metrics.training_set import dataset_of
from deep5.training.scores import class_rows, negative_log_likelihood

__all__ = ["BitsPerByte", "Perplexity"]


class _Likelihood(EvaluationSums):
    """Sums the negative log-likelihood in nats, and what `units` counts."""

    def __init__(self, logits: str, label: str) -> None:
        super().__init__(2)
        self._logits, self._label = logits, label

    def check_network(self, network: Any) -> None:
        check_class_names(network, self._logits, self._label)

    def terms(self, inputs: Arrays, outputs: Arrays) -> Sequence[float]:
        scores, labels = class_rows(outputs[self._logits], inputs[self._label], self.ignored(self._label))
        return negative_log_likelihood(scores, labels), self.units(labels)

    def units(self, labels: np.ndarray) -> float:
        return len(labels)


class _Perplexity(_Likelihood):
    def score(self, sums: Sequence[float]) -> float | None:
        nats, tokens = sums
        if not tokens:
            return None
        with np.errstate(over="ignore"):  # infinite
            return float(np.exp(nats / tokens))


class _BitsPerByte(_Likelihood):
    def __init__(self, logits: str, label: str) -> None:
        super().__init__(logits, label)
        self._token_bytes = np.zeros(0, np.int64)

    def before_training(self, trainer: Any) -> None:
        super().before_training(trainer)
        if trainer.validation_sampler is None:
            return
        dataset = dataset_of(trainer.validation_sampler)
        found = getattr(dataset, "token_bytes", None)
        if dataset is None or found is None:
            raise UsageError(
                "bits_per_byte of test samples whose tokens have no known number of bytes; allowed: a data set with "
                "token_bytes, such as text or docstrings with tokens='characters', 'bytes' or 'byte_pairs'; remedy: "
                "the metric perplexity"
            )
        self._token_bytes, labels = np.asarray(found), dataset.labels(self._label)
        if labels is not None:  # fail before an epoch is trained
            ignored = self.ignored(self._label)
            self.units(labels.reshape(-1) if ignored is None else labels[labels != ignored])

    def units(self, labels: np.ndarray) -> float:
        sizes = self._token_bytes
        outside = labels[(labels < 0) | (labels >= len(sizes))]
        if outside.size:
            raise UsageError(
                f"bits_per_byte: got the token {outside[0]}; allowed: 0 to {len(sizes) - 1}, the tokens of the data set"
            )
        found = sizes[labels]
        if found.size and found.min() < 0:
            raise UsageError(
                f"bits_per_byte: {np.count_nonzero(found < 0)} test tokens are unknown, and their bytes with them; "
                "allowed: a vocabulary of all tokens; remedy: vocabulary_size=None, or tokens='byte_pairs'"
            )
        return float(found.sum())

    def score(self, sums: Sequence[float]) -> float | None:
        nats, size = sums
        return nats / math.log(2) / size if size else None

    def state_dict(self) -> dict[str, Any]:
        # The numbers of bytes belong to the data set.
        return {name: value for name, value in super().state_dict().items() if name != "_token_bytes"}


class Perplexity(Metric):
    """Perplexity of the test set after the last epoch: exp of the mean negative log-likelihood of its labels.

    exp(-1/T · Σ ln p(label)) over all T labels of all test samples, the tokens of a language model; p is the softmax of
    the logits, computed in float64. Each token counts once, for any batch size; a label that the network's loss ignores
    does not count. A model that knows nothing has the number of tokens as its perplexity, a perfect one has 1. Values
    for different tokens are not comparable: see `BitsPerByte`.

    Nothing is on a clock. The network is in evaluation mode, with the optimizer's evaluation weights.

    Args:
        logits: Name of the output with one value per token of the vocabulary.
        label: Name of the input with the true tokens.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.Perplexity().observer()
    >>> trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 0)
    >>> observer.before_evaluation(trainer, epoch=0)
    >>> logits = np.log([[[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]])
    >>> observer.after_evaluation_batch(trainer, None, {"label": np.array([[0, 2]])}, {"logits": logits})
    >>> observer.after_evaluation(trainer, epoch=0, scores={})
    >>> round(observer.value(), 6)  # (1/2 · 1/8) ** (-1/2)
    4.0
    """

    name = "perplexity"
    unit = "tokens"
    direction = "lower"
    possible = (1.0, math.inf)

    def __init__(self, *, logits: str = "logits", label: str = "label") -> None:
        self.logits, self.label = logits, label

    def observer(self) -> Observer:
        """Samples: the perplexity after every epoch."""
        return _Perplexity(self.logits, self.label)


class BitsPerByte(Metric):
    """Bits per byte of the test set after the last epoch: what the model needs to code a byte of UTF-8.

    The total negative log2-likelihood of all labels, divided by the number of UTF-8 bytes that exactly these tokens
    stand for, which the data set knows (`token_bytes`): `text` and `docstrings` with characters, bytes or byte pairs.
    So models of different tokens are comparable. The likelihood is computed in float64 from the logits; each token
    counts once, and a label that the network's loss ignores does not count. Uniform bytes need 8.

    Nothing is on a clock. The network is in evaluation mode, with the optimizer's evaluation weights.

    Args:
        logits: Name of the output with one value per token of the vocabulary.
        label: Name of the input with the true tokens.

    References:
        Gao et al., The Pile, arXiv:2101.00027, section 3.1.

    >>> import deep5 as d5
    >>> data = d5.datasets.docstrings(tokens="bytes", length=8, limit=64, test_limit=16)
    >>> network = d5.networks.gpt(vocabulary=256, length=8, width=8, heads=1, layers=1)
    >>> executor = d5.framework("reference").executor(network)
    >>> train, test = d5.ShuffleSampler(data.train, 16), d5.OrderedSampler(data.test, 16)
    >>> trainer = d5.Trainer(executor, d5.Adam(), train, test)
    >>> observer = d5.BitsPerByte().observer()
    >>> trainer.train(epochs=1, events=[observer])
    >>> round(observer.value())  # hardly trained, a byte still takes eight bits
    8
    """

    name = "bits_per_byte"
    unit = "bit/B"
    direction = "lower"
    possible = (0.0, math.inf)

    def __init__(self, *, logits: str = "logits", label: str = "label") -> None:
        self.logits, self.label = logits, label

    def observer(self) -> Observer:
        """Samples: the bits per byte after every epoch."""
        return _BitsPerByte(self.logits, self.label)
