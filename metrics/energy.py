"""Energy that a run takes."""

from __future__ import annotations

from time import perf_counter, perf_counter_ns
from typing import Any

from deep5.core.errors import Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.energy_counters import Counter, counters
from deep5.metrics.unsampled import ended_within_epoch

__all__ = ["Energy"]

# The processors' counters overflow after a few minutes under load.
_INTERVAL_S = 5.0


class _Energy(Observer):
    def __init__(self, of: str) -> None:
        self._of = of
        self._counters: list[Counter] = []
        # Joules before this process, where the run was resumed.
        self._before = 0.0
        self._samples: list[Sample] = []
        self._missing: str | None = None
        self._next = 0.0
        # Of the last reading: joules, and the run's clock and the host's in nanoseconds.
        self._last: tuple[float, int, int] | None = None

    def before_training(self, trainer: Any) -> None:
        self._next, self._last = 0.0, None
        try:
            self._counters = counters(trainer.executor.device, host=self._of == "all")
        except Unsupported as error:
            self._missing = str(error)

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        if perf_counter() >= self._next:
            self._reading(trainer)

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        if perf_counter() >= self._next:
            self._reading(trainer)

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._note(trainer, self._reading(trainer))

    def after_training(self, trainer: Any) -> None:
        if not ended_within_epoch(trainer, self._samples):
            return
        total, joules = self._before, self._read()
        if self._last is not None:
            # What works when training is over may have been told of it first: its share of the time is left out.
            total, run_ns, host_ns = self._last
            trained, passed = trainer.elapsed_ns() - run_ns, perf_counter_ns() - host_ns
            total += (joules - total) * min(1.0, trained / max(passed, 1))
        self._note(trainer, total)

    def _note(self, trainer: Any, total: float) -> None:
        if self._missing is None:
            self._samples.append(Sample(total, trainer.step, trainer.epoch, trainer.elapsed_ns() / 1e9))

    def _reading(self, trainer: Any) -> float:
        total = self._read()
        self._next = perf_counter() + _INTERVAL_S
        self._last = (total, trainer.elapsed_ns(), perf_counter_ns())
        return total

    def _read(self) -> float:
        try:
            return self._before + sum(counter.joules() for counter in self._counters)
        except Unsupported as error:
            self._missing, self._counters = str(error), []
            return self._before

    def state_dict(self) -> dict[str, Any]:
        return {"_before": self._read(), "_samples": list(self._samples), "_missing": self._missing}

    def load_state_dict(self, state: Any) -> None:
        here = self._missing
        super().load_state_dict(state)
        # One part that could not be measured, here or before, leaves no sum.
        self._missing = here or self._missing

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples and self._missing is None else None

    def missing(self) -> str | None:
        return self._missing


class Energy(Metric):
    """Joules from the start of the first epoch to the end of the last, or to where an event stopped it.

    Measured by Zeus where it is installed (`pip install 'deep5[energy]'`), else read from the processors' own counters
    (RAPL) and from NVIDIA's driver (NVML). They count all that runs on the device, also for others; nothing is taken
    off for what it takes at rest. Where one of them is missing or may not be read, there is no value, and the result
    says why: "not available here", never zero.

    On the clock: what `WallClockTime` has on it, and what events do before the first epoch that are told of it behind
    this metric. Off it: in a run that was resumed, the time between its end and its resume, and the steps since its
    last checkpoint, which are done anew. Counters are read every 5 s, between steps; where an event stopped training
    within an epoch, what they count behind the last of these readings is divided, by time, between training and what
    came after it.

    Args:
        of: `"device"`: what the run computes on: the processors' packages and their memory, or the graphics processor;
            `"all"`: of a run on a graphics processor the host's processors too.
    """

    name = "energy"
    unit = "J"
    direction = "lower"

    def __init__(self, of: str = "device") -> None:
        if of not in ("device", "all"):
            raise UsageError(f"energy of {of!r:.60}; allowed: 'device', 'all'")
        self.of = of

    def observer(self) -> Observer:
        """Samples: the energy at the end of every epoch, and where an event stopped training within one."""
        return _Energy(self.of)
