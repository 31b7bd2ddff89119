"""Staleness of the parameters at which asynchronous ranks compute gradients."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.events import StepInfo
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["Staleness", "staleness_text"]

_FILE = "staleness.csv"
_ABSENT = object()


class _Staleness(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._missing: str | None = None
        # Updates of all ranks by staleness from 0; None until the ranks have combined theirs.
        self._of_all: list[int] | None = None

    def before_training(self, trainer: Any) -> None:
        scheme, communicator = trainer.optimizer, trainer.communicator
        self._missing = None
        if communicator is None or communicator.size == 1:
            self._missing = "training has only one process; remedy: --ranks 2, say"
        elif getattr(scheme, "last_staleness", _ABSENT) is _ABSENT:
            self._missing = (
                f"{type(scheme).__name__} counts no staleness; remedy: the scheme asynchronous or stale_synchronous"
            )

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        # A step without samples on this rank made no update.
        if self._missing is None and (staleness := trainer.optimizer.last_staleness) is not None:
            self._samples.append(Sample(staleness, info.step, info.epoch))

    def state_dict(self) -> dict[str, Any]:
        return {"_samples": self._samples}

    def combine(self, communicator: Communicator) -> None:
        counts = self._counts()
        length = np.array([len(counts)], np.int64)
        communicator.all_reduce(length, op="max")
        every = np.zeros(int(length[0]), np.int64)
        every[: len(counts)] = counts
        communicator.all_reduce(every)
        self._of_all = every.tolist()

    def _counts(self) -> list[int]:
        found = Counter(int(sample.value) for sample in self._samples)
        return [found[staleness] for staleness in range(max(found, default=-1) + 1)]

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        counts = self._counts() if self._of_all is None else self._of_all
        if self._missing is not None or not sum(counts):
            return None
        return sum(staleness * updates for staleness, updates in enumerate(counts)) / sum(counts)

    def files(self) -> dict[str, bytes | str]:
        return {_FILE: staleness_text(self._of_all)} if self._missing is None and self._of_all else {}

    def missing(self) -> str | None:
        return self._missing or ("no rank has made an update" if self._of_all == [] else None)


def staleness_text(updates: list[int]) -> str:
    """A histogram as CSV: the number of updates of each staleness, from 0 to the largest.

    Args:
        updates: Numbers of updates, by staleness.

    >>> print(staleness_text([3, 1]), end="")
    staleness,updates
    0,3
    1,1
    """
    return "".join(
        f"{row}\n" for row in ("staleness,updates", *(f"{age},{count}" for age, count in enumerate(updates)))
    )


class Staleness(Metric):
    """Mean number of updates between the read of the parameters and the update computed from them.

    For schemes whose ranks do not wait for each other, `asynchronous` and `stale_synchronous`: a rank's gradient is
    applied to parameters that other ranks have updated since the rank read them. The value is the mean over the updates
    of all ranks. The result's file `staleness.csv` has the number of updates of each staleness.

    Nothing is on a clock, although the value depends on the speeds of the ranks. With other schemes, or without ranks,
    there is no value.

    References:
        Zhang, Gupta, Lian and Liu, Staleness-aware Async-SGD for distributed deep learning, IJCAI 2016: the staleness
        of a gradient, counted in updates.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.Staleness().observer()
    >>> trainer = SimpleNamespace(optimizer=SimpleNamespace(last_staleness=0), communicator=SimpleNamespace(size=3))
    >>> observer.before_training(trainer)
    >>> for step, staleness in enumerate((0, 2, 2, 1, 0)):
    ...     trainer.optimizer.last_staleness = staleness
    ...     observer.after_step(trainer, d5.StepInfo(step=step, batch_size=8), {}, 0, 1_000_000)
    >>> observer.value()  # of this rank's updates; `combine` takes the mean over all ranks
    1.0
    """

    name = "staleness"
    unit = "updates"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the staleness of every update of this rank."""
        return _Staleness()
