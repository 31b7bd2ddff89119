"""Wall-clock time, throughput and step latency, by one host clock (`time.perf_counter_ns`)."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from deep5.events import StepInfo
from deep5.metric import Metric, Observer, Sample
from deep5.tensors import Arrays

__all__ = ["StepLatency", "Throughput", "WallClockTime"]


class _WallClock(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def before_training(self, trainer: Any) -> None:
        self._begin = perf_counter_ns()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        elapsed = (perf_counter_ns() - self._begin) / 1e9
        self._samples.append(Sample(elapsed, trainer.step, epoch + 1, elapsed))

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None


class WallClockTime(Metric):
    """Seconds of host time from the start of training to the end of the last epoch.

    On the clock: data, training steps, evaluations, events. Off it: building the executor, compiling rules.
    """

    name = "wall_clock_time"
    unit = "s"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the time at the end of every epoch."""
        return _WallClock()


class _Throughput(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._total, self._busy_ns = 0, 0

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self._count, self._open = 0, True
        self._begin = perf_counter_ns()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        self._count += info.batch_size

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        # The trainer synchronises at the end of an epoch's steps, before this is called.
        self._close(trainer, epoch)

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._close(trainer, epoch)

    def _close(self, trainer: Any, epoch: int) -> None:
        if self._open:
            self._open = False
            busy = perf_counter_ns() - self._begin
            self._total += self._count
            self._busy_ns += busy
            self._samples.append(Sample(self._count / (busy / 1e9), trainer.step, epoch + 1))

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._total / (self._busy_ns / 1e9) if self._busy_ns else None


class Throughput(Metric):
    """Training samples a second over all epochs, the first included.

    On the clock: data, training steps, events. Off it: evaluations. The device is synchronised at the end of every
    epoch's steps, before the clock is read.
    """

    name = "throughput"
    unit = "samples/s"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: the throughput of every epoch."""
        return _Throughput()


class _Latency(Observer):
    synchronous = True

    def __init__(self) -> None:
        self._raw: list[tuple[int, int, int]] = []

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        self._raw.append((end_ns - begin_ns, info.step, info.epoch))

    def samples(self) -> list[Sample]:
        return [Sample(nanoseconds / 1e6, step, epoch) for nanoseconds, step, epoch in self._raw]

    def _steady(self) -> list[float]:
        """Without the first epoch: its steps allocate, choose kernels and fill caches. A single epoch counts whole."""
        later = [nanoseconds / 1e6 for nanoseconds, _, epoch in self._raw if epoch > 0]
        return later or [nanoseconds / 1e6 for nanoseconds, _, _ in self._raw]

    def value(self) -> float | None:
        import statistics

        return statistics.median(self._steady()) if self._raw else None

    def interval(self) -> tuple[float, float] | None:
        from deep5.errors import TooFewSamples
        from deep5.samples import median_interval

        try:
            interval = median_interval(self._steady())
        except TooFewSamples:
            return None
        return interval.low, interval.high


class StepLatency(Metric):
    """Median milliseconds of a training step from the second epoch on (of the first, where there is only one).

    On the clock: forward, backward, update; the device is synchronised after every step. Off it: data, events.
    """

    name = "step_latency"
    unit = "ms"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: every step."""
        return _Latency()
