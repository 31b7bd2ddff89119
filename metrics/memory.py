"""Peak memory of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.memory import peak_bytes
from deep5.core.metric import Metric, Observer, Sample
from deep5.metrics.unsampled import ended_within_epoch

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["PeakMemory"]


def _peak_mib() -> float:
    return peak_bytes() / 1024**2


class _Peak(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._of_all: float | None = None

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._samples.append(Sample(_peak_mib(), trainer.step, epoch + 1))

    def after_training(self, trainer: Any) -> None:
        if ended_within_epoch(trainer, self._samples):
            # A new list: earlier states hold the old one.
            self._samples = [*self._samples, Sample(_peak_mib(), trainer.step, trainer.epoch)]

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def combine(self, communicator: Communicator) -> None:
        most = np.array([max((sample.value for sample in self._samples), default=0.0)])
        communicator.all_reduce(most, op="max")
        self._of_all = float(most[0]) or None

    def value(self) -> float | None:
        if self._of_all is not None:
            return self._of_all
        # A resumed run had several processes.
        return max((sample.value for sample in self._samples), default=None)


class PeakMemory(Metric):
    """Peak resident memory of the process since its start, including framework and data, in MiB.

    Nothing is on a clock. Accelerator memory is not counted. For a resumed run it is the maximum over its processes,
    for several ranks the maximum over ranks. It is read at the end of every epoch. If an event stops training in
    mid-epoch, it is read after training, and includes what earlier metrics in the recipe allocate then.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> from deep5.core.metric import parse_goal
    >>> str(parse_goal(d5.PeakMemory(), "< 2 GiB")), str(parse_goal(d5.PeakMemory(), 512))
    ('< 2048', '<= 512')
    >>> observer = d5.PeakMemory().observer()
    >>> observer.after_epoch(SimpleNamespace(step=10), epoch=0)
    >>> observer.value() > 1  # MiB
    True
    """

    name = "peak_memory"
    unit = "MiB"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the peak after every epoch, and where an event stopped training in mid-epoch."""
        return _Peak()
