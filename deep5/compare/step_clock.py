"""The clock of a timed training: whole steps, each reading after a synchronize, and a check that it waits."""

from __future__ import annotations

from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from deep5.core.events import Event, StepInfo, StopTraining
from deep5.core.tensors import Arrays
from deep5.measuring.statistics import steady_part

__all__ = ["StepClock", "timed_read", "unfinished"]

# A reading waits for the device: frequent enough to detect warm-up, rare enough to cost nothing.
_LEAST_SAMPLE_S, _SHORTER = 0.02, 4
_FIRST_SINGLE, _SEVERAL, _PATIENCE_S = 6, 8, 0.2
_FEWEST, _MOST, _EVERY = 20, 400, 5
_PATIENCE = 4
# A read that is slower than a repetition by more than this does more than reading.
_UNFINISHED_S, _UNFINISHED_STEPS, _COPIED_BYTE_S = 2e-3, 2, 1e9


def timed_read(executor: Any) -> float:
    """Seconds to read every parameter to the host."""
    from deep5.core.tensors import to_numpy

    begin = perf_counter()
    for value in executor.parameters().values():
        to_numpy(value).sum()
    return perf_counter() - begin


def unfinished(executor: Any, clock: StepClock) -> str | None:
    """Detect whether reading the trained parameters does work that `synchronize` did not wait for (lazy execution)."""
    from deep5.core.tensors import to_numpy

    first, again = timed_read(executor), timed_read(executor)
    step_s = float(np.median([seconds for _, seconds, _ in clock.samples]))
    size = sum(to_numpy(value).nbytes for value in executor.parameters().values())
    # The second read may use the framework's cached copy of the first.
    if first - again > max(_UNFINISHED_S, _UNFINISHED_STEPS * step_s) + size / _COPIED_BYTE_S:
        return f"reading the parameters took {first:.2g} s after the executor had finished, and {again:.2g} s again"
    return None


class StepClock(Event):
    """Reads the clock every few steps, after a synchronize, and ends the training when it has enough samples."""

    def __init__(self, batch_size: int, budget_s: float) -> None:
        self.batch_size, self._budget_s = batch_size, budget_s
        self.first_call_s = self.first_elapsed_s = 0.0
        self.samples: list[tuple[float, float, int]] = []
        self.warm_up, self.settled = 0, False
        self.outputs: Arrays = {}
        self._each, self._steps, self._seen = 1, 0, 0
        self._origin = self._last = 0

    def before_training(self, trainer: Any) -> None:
        """Start the clock; it includes the first batch."""
        trainer.executor.synchronize()
        self._origin = self._last = perf_counter_ns()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Count the trained samples."""
        self._steps += 1
        self._seen += info.batch_size
        self.outputs = outputs

    def after_all(self, trainer: Any) -> None:
        """Read the clock when the interval is over.

        Raises:
            StopTraining: There are enough samples.
        """
        if self._steps < self._each:
            return
        trainer.executor.synchronize()
        now = perf_counter_ns()
        seconds = (now - self._last) / 1e9 * self.batch_size / self._seen
        if not self.first_call_s:
            self.first_call_s, self.first_elapsed_s = seconds, (now - self._origin) / 1e9
            self._origin = now
        else:
            self.samples.append(((now - self._origin) / 1e9, seconds, self._steps))
            self._decide(trainer)
        self._steps = self._seen = 0
        self._last = perf_counter_ns()

    def _decide(self, trainer: Any) -> None:
        times = [seconds for _, seconds, _ in self.samples]
        if len(times) == _FIRST_SINGLE:
            self._set_interval(float(np.median(times[1:])))
        elif len(times) > _FIRST_SINGLE and len(times) % _EVERY == 0:
            # The first steps may have been slow, because of other programs.
            step_s = float(np.median(times[-_EVERY:]))
            if step_s * self._each < _LEAST_SAMPLE_S / _SHORTER:
                self._set_interval(step_s)
        spent = self.samples[-1][0]
        if (
            len(times) % _EVERY
            or spent < self._budget_s
            or (len(times) < _FEWEST and spent < _PATIENCE * self._budget_s)
        ):
            return
        found = steady_part(times)
        self.warm_up, self.settled = found.begin, found.reached
        steady_s = spent - (self.samples[found.begin - 1][0] if found.begin else 0.0)
        if (
            (found.reached and steady_s >= self._budget_s / 2)
            or spent > _PATIENCE * self._budget_s
            or len(times) > _MOST
        ):
            raise StopTraining("timed")

    def _set_interval(self, step_s: float) -> None:
        """Take several steps per reading if steps are short: a framework may compute one while the next batch is
        fetched."""
        self._each = max(1, round(_LEAST_SAMPLE_S / step_s), min(_SEVERAL, round(_PATIENCE_S / step_s)))
