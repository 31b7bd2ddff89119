"""Wall-clock time, throughput and step latency, by the trainer's host clock (`time.perf_counter_ns`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.canonical import copied
from deep5.core.events import StepInfo
from deep5.core.metric import FirstCalls, Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.unsampled import ended_within_epoch

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["StepLatency", "Throughput", "WallClockTime"]


def _in_any_process(state: dict[str, Any]) -> dict[str, Any]:
    """A state without the batch sizes seen so far: a resumed process compiles for them again."""
    return {name: value for name, value in state.items() if name != "_is_first"}


class _WallClock(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._note(trainer)

    def after_training(self, trainer: Any) -> None:
        if ended_within_epoch(trainer, self._samples):
            self._note(trainer)

    def _note(self, trainer: Any) -> None:
        elapsed = trainer.elapsed_ns() / 1e9
        # A new list: earlier states hold the old one.
        self._samples = [*self._samples, Sample(elapsed, trainer.step, trainer.epoch, elapsed)]

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None


class WallClockTime(Metric):
    """Seconds of host time from the start of the first epoch to the end of the last, or to where training stopped.

    On the clock: data, training steps (also the first, which may compile), evaluations, events. Off it: building the
    executor, compiling rules, events before the first epoch and after training; and in a resumed run, the time between
    its interruption and its first step after the resume, and the repeated steps since its last checkpoint.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> from deep5.core.metric import parse_goal
    >>> observer = d5.WallClockTime().observer()
    >>> for epoch in range(2):
    ...     elapsed_ns = (epoch + 1) * 45 * 10**9
    ...     trainer = SimpleNamespace(step=6 * (epoch + 1), epoch=epoch + 1, elapsed_ns=lambda: elapsed_ns)
    ...     observer.after_epoch(trainer, epoch)
    >>> goal = parse_goal(d5.WallClockTime(), "< 2 min")
    >>> observer.value(), str(goal), goal.met(observer.value())
    (90.0, '< 120', True)
    """

    name = "wall_clock_time"
    unit = "s"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the time at the end of every epoch, and where an event stopped training in mid-epoch."""
        return _WallClock()


class _Throughput(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._is_first = FirstCalls()
        # Samples and nanoseconds of the steps that count, and of the first steps of each batch size.
        self._steady, self._warm_up = [0, 0], [0, 0]
        self._count = self._first = self._first_ns = self._begin_ns = 0
        self._open = False

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self._count, self._first, self._first_ns, self._open = 0, 0, 0, True
        self._begin_ns = trainer.elapsed_ns()  # on the run's clock, to allow a resume before the epoch's end

    def state_dict(self) -> dict[str, Any]:
        return _in_any_process(copied(super().state_dict()))

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        if self._is_first(info):
            self._first += info.batch_size
            self._first_ns += end_ns - begin_ns
        else:
            self._count += info.batch_size

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        # The trainer synchronizes at the end of an epoch's steps, before this call.
        self._close(trainer)

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._close(trainer)

    def after_training(self, trainer: Any) -> None:
        if ended_within_epoch(trainer, self._samples) and (self._count or self._first):
            self._close(trainer)

    def _close(self, trainer: Any) -> None:
        if self._open:
            self._open = False
            busy = trainer.elapsed_ns() - self._begin_ns
            if self._count:
                self._add(self._steady, self._count, busy - self._first_ns, trainer)
            else:
                self._add(self._warm_up, self._first, busy, trainer)

    def _add(self, total: list[int], count: int, busy: int, trainer: Any) -> None:
        total[0] += count
        total[1] += busy
        self._samples.append(Sample(count / (busy / 1e9), trainer.step, trainer.epoch))

    def combine(self, communicator: Communicator) -> None:
        # The samples of all ranks in the time of the slowest.
        counts = np.array([self._steady[0], self._warm_up[0]], np.int64)
        busy = np.array([self._steady[1], self._warm_up[1]], np.int64)
        communicator.all_reduce(counts, op="sum")
        communicator.all_reduce(busy, op="max")
        self._steady, self._warm_up = [[int(count), int(ns)] for count, ns in zip(counts, busy, strict=True)]

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        count, busy = self._steady if self._steady[1] else self._warm_up
        return count / (busy / 1e9) if busy else None


class Throughput(Metric):
    """Training samples per second over all epochs, without the first step of each batch size, which may compile.

    On the clock: data, training steps, events. Off it: evaluations, those first steps (unless there are no others),
    events before the first epoch and after training; and in a resumed run, the time between its interruption and its
    first step after the resume, and the repeated steps since its last checkpoint. An epoch stopped by an event counts
    up to there. The device is synchronized at the end of every epoch's steps, also of a stopped one, before the clock
    is read.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> from deep5.core.metric import parse_goal
    >>> observer, clock = d5.Throughput().observer(), SimpleNamespace(ns=0)
    >>> trainer = SimpleNamespace(step=3, epoch=1, elapsed_ns=lambda: clock.ns)
    >>> observer.before_epoch(trainer, epoch=0)
    >>> for step, took_ns in enumerate((500_000_000, 100_000_000, 100_000_000)):
    ...     clock.ns += took_ns
    ...     observer.after_step(trainer, d5.StepInfo(step=step, batch_size=64), {}, clock.ns - took_ns, clock.ns)
    >>> observer.after_epoch(trainer, epoch=0)
    >>> observer.value()  # 128 samples in 0.2 s; the first step of a batch size may compile
    640.0
    >>> str(parse_goal(d5.Throughput(), 500))  # at least
    '>= 500'
    """

    name = "throughput"
    unit = "samples/s"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: the throughput of every epoch, including a stopped one."""
        return _Throughput()


class _Latency(Observer):
    synchronous = True

    def __init__(self) -> None:
        # One list per quantity: appending numbers is cheap, and the garbage collector has nothing to track.
        self._times_ns: list[int] = []
        self._steps: list[int] = []
        self._epochs: list[int] = []
        self._first: list[bool] = []
        self._is_first = FirstCalls()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        self._times_ns.append(end_ns - begin_ns)
        self._steps.append(info.step)
        self._epochs.append(info.epoch)
        self._first.append(self._is_first(info))

    def state_dict(self) -> dict[str, Any]:
        return _in_any_process(super().state_dict())

    def samples(self) -> list[Sample]:
        return list(map(Sample, (ns / 1e6 for ns in self._times_ns), self._steps, self._epochs))

    def _steady(self) -> list[float]:
        """Steps that are not the first of their batch size; if possible, only those from the second epoch.

        First steps compile and select algorithms; the first epoch allocates memory and fills caches.
        """
        raw = self.samples()
        steady = [sample for sample, first in zip(raw, self._first, strict=True) if not first] or raw
        return [sample.value for sample in steady if sample.epoch] or [sample.value for sample in steady]

    def value(self) -> float | None:
        import statistics

        return statistics.median(self._steady()) if self._times_ns else None

    def interval(self) -> tuple[float, float] | None:
        from deep5.core.errors import TooFewSamples
        from deep5.measuring.samples import median_interval

        try:
            interval = median_interval(self._steady())
        except TooFewSamples:
            return None
        return interval.low, interval.high


class StepLatency(Metric):
    """Median milliseconds of a training step from the second epoch (or of the first, if there is only one).

    On the clock: forward, backward, update; the device is synchronized after every step. Off it: data, events, and the
    first step of each batch size, which may compile (unless there are no others); after a resume there is such a first
    step again. Steps repeated after a resume count once.

    >>> import deep5 as d5
    >>> from deep5.core.metric import parse_goal
    >>> observer = d5.StepLatency().observer()
    >>> for step, took_ns in enumerate((90_000_000, 2_000_000, 3_000_000, 5_000_000)):
    ...     observer.after_step(None, d5.StepInfo(step=step, batch_size=64), {}, 0, took_ns)
    >>> observer.value(), observer.interval()  # milliseconds; an interval requires six steps
    (3.0, None)
    >>> str(parse_goal(d5.StepLatency(), "< 500 us"))
    '< 0.5'
    """

    name = "step_latency"
    unit = "ms"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: every step."""
        return _Latency()
