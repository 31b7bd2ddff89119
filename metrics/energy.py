"""Energy consumption of a run."""

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

# CPU counters overflow after a few minutes under load.
_INTERVAL_S = 5.0


class _Energy(Observer):
    def __init__(self, of: str) -> None:
        self._of = of
        self._counters: list[Counter] = []
        # Joules of earlier processes of a resumed run.
        self._before = 0.0
        self._samples: list[Sample] = []
        self._missing: str | None = None
        self._next = 0.0
        # The last reading: joules, and the run's clock and the host's in nanoseconds.
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
            # Other events may have worked after training before this one: exclude their share of the time.
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
        # If one part could not be measured, here or before, there is no sum.
        self._missing = here or self._missing

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples and self._missing is None else None

    def missing(self) -> str | None:
        return self._missing


class Energy(Metric):
    """Joules from the start of the first epoch to the end of the last, or to where an event stopped training.

    Measured by Zeus if it is installed (`pip install 'deep5[energy]'`), else by the CPU counters (RAPL) and NVIDIA's
    driver (NVML). They count everything that runs on the device, including other processes; idle power is not
    subtracted. If one of them is missing or not readable, there is no value, and the result gives the reason: "not
    available here", never zero.

    On the clock: everything that `WallClockTime` includes, and events before the first epoch that run after this
    metric. Off it: in a resumed run, the time between its interruption and its resume, and the repeated steps since its
    last checkpoint. Counters are read every 5 s, between steps. If an event stops training in mid-epoch, the energy
    since the last reading is divided by time between training and the work after it.

    Args:
        of: `"device"`: the device of the run, i.e. the CPU packages and their memory, or the GPU; `"all"`: for a run on
            a GPU, also the host's CPUs.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> metric = d5.Energy()
    >>> observer = metric.observer()
    >>> trainer.train(epochs=2, events=[observer])
    >>> (observer.value() is None) == (observer.missing() is not None)  # joules, or the reason why there are none
    True
    >>> metric.unit, d5.Energy("all").describe()
    ('J', {'metric': 'energy', 'of': 'all'})
    """

    name = "energy"
    unit = "J"
    direction = "lower"

    def __init__(self, of: str = "device") -> None:
        if of not in ("device", "all"):
            raise UsageError(f"energy of {of!r:.60}; allowed: 'device', 'all'")
        self.of = of

    def observer(self) -> Observer:
        """Samples: the energy at the end of every epoch, and where an event stopped training in mid-epoch."""
        return _Energy(self.of)
