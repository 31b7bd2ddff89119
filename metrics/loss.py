"""Training loss."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from deep5.errors import UnknownName
from deep5.events import StepInfo
from deep5.metric import Metric, Observer, Sample
from deep5.tensors import Arrays, to_numpy

__all__ = ["TrainingLoss"]


class _Losses(Observer):
    def __init__(self, output: str) -> None:
        self._output = output
        self._unread: list[tuple[Any, int, int, int, int]] = []
        self._samples: list[Sample] = []
        self._weights: list[int] = []

    def before_training(self, trainer: Any) -> None:
        if self._output not in trainer.executor.network.outputs:
            raise UnknownName("output", self._output, trainer.executor.network.outputs)
        self._begin = perf_counter_ns()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        # Reading a loss may make a device wait: keep the value, read it when the epoch is over.
        self._unread.append((outputs[self._output], info.step, info.epoch, info.batch_size, end_ns))

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._read()

    def after_training(self, trainer: Any) -> None:
        self._read()

    def _read(self) -> None:
        for loss, step, epoch, size, end_ns in self._unread:
            self._samples.append(Sample(float(to_numpy(loss)), step, epoch, (end_ns - self._begin) / 1e9))
            self._weights.append(size)
        self._unread.clear()

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        if not self._samples:
            return None
        last = self._samples[-1].epoch
        own = [
            (sample.value, weight)
            for sample, weight in zip(self._samples, self._weights, strict=True)
            if sample.epoch == last
        ]
        return sum(value * weight for value, weight in own) / sum(weight for _, weight in own)


class TrainingLoss(Metric):
    """Mean loss over the training samples of the last epoch, each sample counted once, as training met them.

    Nothing is on a clock. Samples: the loss of every step.

    Args:
        output: Name of the network's loss.
    """

    name = "training_loss"
    unit = "nat"
    direction = "lower"

    def __init__(self, output: str = "loss") -> None:
        self.output = output

    def observer(self) -> Observer:
        """Samples: the loss of every step."""
        return _Losses(self.output)
