"""`EvaluationSums`: scores of the test set that are functions of sums over its samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S
from deep5.core.metric import Observer, Sample
from deep5.core.tensors import Arrays

__all__ = ["EvaluationSums"]


class EvaluationSums(Observer):
    """Adds up numbers of every evaluated batch, over all ranks, and computes a score of the sums after each epoch.

    Args:
        count: How many numbers.
    """

    def __init__(self, count: int) -> None:
        self._samples: list[Sample] = []
        self._sums = np.zeros(count)
        self._ignored: dict[str, int | None] = {}

    @abstractmethod
    def terms(self, inputs: Arrays, outputs: Arrays) -> Sequence[float]:
        """The numbers of one batch.

        Args:
            inputs: The batch.
            outputs: The network's outputs, as native values.
        """

    @abstractmethod
    def score(self, sums: Sequence[float]) -> float | None:
        """The score of the whole test set; None: it has none.

        Args:
            sums: The sums of the numbers over all batches.
        """

    def ignored(self, label: str) -> int | None:
        """The label that the network's loss ignores in this input, or None.

        Args:
            label: Name of the input.
        """
        return self._ignored.get(label)

    def before_training(self, trainer: Any) -> None:
        """Check the network."""
        from deep5.networks.labels import ignored_label  # it loads onnx

        network = trainer.executor.network
        self.check_network(network)
        self._ignored = {name: ignored_label(network, name) for name in network.inputs}

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Begin with zeros."""
        self._sums = np.zeros(len(self._sums))

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        """Add the batch's numbers."""
        self._sums += self.terms(inputs, outputs)

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Add those of all ranks, and compute the score."""
        if trainer.communicator is not None:
            # The other ranks may still be evaluating.
            trainer.communicator.all_reduce(self._sums, op="sum", timeout_s=10 * TIMEOUT_S)
        found = self.score(self._sums.tolist())
        if found is not None:
            self._samples.append(Sample(found, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def samples(self) -> list[Sample]:
        """The score after every epoch."""
        return list(self._samples)

    def value(self) -> float | None:
        """The score after the last epoch."""
        return self._samples[-1].value if self._samples else None
