"""Energy that a run takes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from deep5.errors import Unsupported, UsageError
from deep5.events import StepInfo
from deep5.metric import Metric, Observer, Sample
from deep5.metrics.energy_counters import Counter, counters
from deep5.tensors import Arrays

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

    def before_training(self, trainer: Any) -> None:
        try:
            self._counters = counters(trainer.executor.device, host=self._of == "all")
        except Unsupported as error:
            self._missing = str(error)

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        if perf_counter() >= self._next:
            self._read()

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        if perf_counter() >= self._next:
            self._read()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        total = self._read()
        if self._missing is None:
            self._samples.append(Sample(total, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def _read(self) -> float:
        self._next = perf_counter() + _INTERVAL_S
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
    """Joules from the start of training to the end of the last epoch.

    Measured by Zeus where it is installed (`pip install 'deep5[energy]'`), else read from the processors' own counters
    (RAPL) and from NVIDIA's driver (NVML). They count all that runs on the device, also for others; nothing is taken
    off for what it takes at rest. Where one of them is missing or may not be read, there is no value, and the result
    says why: "not available here", never zero.

    On the clock: what `WallClockTime` has on it. Off it: in a run that was resumed, the time between its end and its
    resume, and the steps since its last checkpoint, which are done anew.

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
        """Samples: the energy at the end of every epoch."""
        return _Energy(self.of)
