"""`SampleSaver`: writes the samples and first-call times of a running run."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from deep5.core.events import Event, StepInfo
from deep5.core.metric import FirstCalls
from deep5.core.tensors import Arrays

if TYPE_CHECKING:
    from deep5.run.record import RunRecord

__all__ = ["SampleSaver"]

# Minimum interval between writes of the samples: a kill loses no more than this.
_SAVE_INTERVAL_S = 5.0


class SampleSaver(Event):
    """Writes samples during the run, and records the times of calls that do not belong to the steady state."""

    def __init__(self, record: RunRecord) -> None:
        self._record, self._last = record, perf_counter()
        self._is_first = FirstCalls()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Record the first step, and the first step of every other batch size."""
        if self._is_first(info):
            measurement, seconds = self._record.document["measurement"], (end_ns - begin_ns) / 1e9
            if measurement["first_call_s"] is None:
                measurement |= {"first_call_s": seconds, "warm_up_s": 0.0, "warmups": 0}
            else:
                measurement["warm_up_s"] += seconds
                measurement["warmups"] += 1

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """Record the first evaluation, and later ones with new batch sizes."""
        first, *others = trainer.first_evaluations_s.values()
        self._record.document["measurement"] |= {
            "evaluation_first_call_s": first,
            "evaluation_warm_up_s": sum(others, 0.0),
            "evaluation_warmups": len(others),
        }

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Write every few seconds, at the end of an epoch."""
        if perf_counter() - self._last >= _SAVE_INTERVAL_S:
            self._record.save_samples()
            self._last = perf_counter()
