"""`SampleSaver`: what a run under way writes down of its samples and of its first calls."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from deep5.core.events import Event, StepInfo
from deep5.core.metric import FirstCalls
from deep5.core.tensors import Arrays

if TYPE_CHECKING:
    from deep5.run.record import RunRecord

__all__ = ["SampleSaver"]

# Samples are written this often at most: after a kill, what is missing is no older.
_SAVE_INTERVAL_S = 5.0


class SampleSaver(Event):
    """Writes samples while the run goes on, and notes how long the calls took that no steady state counts."""

    def __init__(self, record: RunRecord) -> None:
        self._record, self._last = record, perf_counter()
        self._is_first = FirstCalls()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """After the first step, and after the first of every other size of batch."""
        if self._is_first(info):
            measurement, seconds = self._record.document["measurement"], (end_ns - begin_ns) / 1e9
            if measurement["first_call_s"] is None:
                measurement |= {"first_call_s": seconds, "warm_up_s": 0.0, "warmups": 0}
            else:
                measurement["warm_up_s"] += seconds
                measurement["warmups"] += 1

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        """After the first evaluation, and after one that met other sizes of batch."""
        first, *others = trainer.first_evaluations_s.values()
        self._record.document["measurement"] |= {
            "evaluation_first_call_s": first,
            "evaluation_warm_up_s": sum(others, 0.0),
            "evaluation_warmups": len(others),
        }

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Every few seconds, at the end of an epoch."""
        if perf_counter() - self._last >= _SAVE_INTERVAL_S:
            self._record.save_samples()
            self._last = perf_counter()
