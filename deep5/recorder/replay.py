"""`Replay`: shows a recorded loop to deep5's metrics, with the recorded times, as if deep5's trainer had run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.events import Event, StepInfo
from deep5.core.metric import Observer
from deep5.core.tensors import to_numpy
from deep5.recorder.epoch_times import EpochTimes
from deep5.recorder.series import Series

if TYPE_CHECKING:
    from deep5.recorder.buffers import Buffers

__all__ = ["PLACES", "Replay"]

PLACES = ("time[{}]", "time[between steps: {}]", "time[evaluation: {}]")
"""Labels of the samples of a region: in steps, between steps, in evaluations."""

_NO_OUTPUTS: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class _Network:
    outputs: dict[str, None] = field(default_factory=lambda: {"loss": None})


@dataclass(frozen=True, kw_only=True)
class _Executor:
    network: _Network = field(default_factory=_Network)


class Replay:
    """The place of the trainer for metrics that watch a recorded loop.

    Args:
        log: Writes the events; it receives epochs and evaluations.
        observers: Of the metrics of the loop.
        watch: Reports a loss that is not finite.
        series: Receives the raw times.
        measurement: The entry of the result, which receives the times of first calls.

    Attributes:
        epoch: Epochs done.
        times: Times of the last epoch; None before the first one.
        log_ns: The time of the event being written, in `time.perf_counter_ns` without the pauses of the recorder.
        step: Steps done.
        losses: Losses logged for training.
        mean_losses: Those of several steps.
        scored_epoch: The last epoch with an accuracy, from 1; 0: none.
        seen: The largest score of each kind.
        loss: Name of the loss.
    """

    executor = _Executor()
    communicator = None
    origin_ns, seed, loss, reason = 0, 0, "loss", ""

    def __init__(
        self, log: Event, observers: Sequence[Observer], watch: Event, series: Series, measurement: dict[str, Any]
    ) -> None:
        self._listeners: tuple[Event, ...] = (log, *observers, watch)
        # Only these read outputs; not every step has a loss.
        watching = [event for event in self._listeners if type(event).after_step is not Event.after_step]
        self._watch = watch
        self._of_losses = tuple(event for event in watching if _reads_losses(event) and event is not watch)
        self._of_steps = tuple(event for event in watching if not _reads_losses(event))
        self._series, self._measurement = series, measurement
        self.status = "running"
        self.step = self.batch = self.losses = 0
        self.epoch, self._unread, self._ns = 0, 0, 0
        self._last = 0, 0
        self._first_calls: set[int] = set()  # batch sizes seen
        self._means: list[tuple[int, int, Any]] = []
        self.times: EpochTimes | None = None
        self._origin_ns = self.log_ns = 0
        self.mean_losses = self.scored_epoch = 0
        self.seen: dict[str, float] = {}

    def elapsed_ns(self) -> int:
        """The run's clock at the replayed moment."""
        return self._ns

    def _at(self, ns: int, log_ns: int | None = None) -> None:
        self._ns = ns
        self.log_ns = self._origin_ns + (ns if log_ns is None else log_ns)

    def begin(self, origin_ns: int) -> None:
        """The loop begins.

        Args:
            origin_ns: The origin of the run's clock, in `time.perf_counter_ns`.
        """
        self._origin_ns = origin_ns
        self._at(0)
        self._call("before_training")

    def begin_epoch(self, ns: int) -> None:
        """An epoch begins."""
        self.times, self.batch = EpochTimes(ns), 0
        self._at(ns)
        self._call("before_epoch", self.epoch)

    def drain(self, buffers: Buffers) -> None:
        """Show the buffered steps to the metrics, and empty the buffers.

        Args:
            buffers: Has the buffers.
        """
        count, first = buffers.slot, self.step
        numbers = np.arange(first, first + count + 1)
        times = buffers.begins, buffers.ends, buffers.sizes
        begins, ends, sizes = (np.array(own[:count], np.int64) for own in times)
        if count:
            self._series.extend("batch_size", sizes, "samples", numbers[:-1], self.epoch)
            self._series.extend("time[step]", (ends - begins) / 1e9, "s", numbers[:-1], self.epoch)
            self._replay(buffers, count)
        self._drain_regions(buffers, numbers)
        buffers.slot = 0

    def _replay(self, buffers: Buffers, count: int) -> None:
        """Show the steps one by one; an hour of a loop has millions."""
        shift = (buffers.origin_ns or 0) + buffers.paused_ns
        losses, buffers.losses[:count] = buffers.losses[:count], [None] * count
        watching = [event.after_step for event in self._of_steps]
        means = iter(self._means)
        mean = next(means, None)
        for begin, end, size, loss in zip(buffers.begins, buffers.ends, buffers.sizes, losses, strict=False):
            begin_ns, end_ns = begin - shift, end - shift
            self._unread += size
            info = StepInfo(self.step, self.epoch, size)
            if size not in self._first_calls:
                self._first_call(size, end_ns - begin_ns)
            self.batch += 1
            for after_step in watching:
                after_step(self, info, _NO_OUTPUTS, begin_ns, end_ns)
            if loss is not None:
                self._show_loss(info, loss, begin_ns, end_ns)
            self.step += 1
            while mean is not None and mean[0] == self.step - 1:
                step, epoch, value = mean
                self._show_loss(StepInfo(step, epoch, self._unread), value, begin_ns, end_ns)
                mean = next(means, None)
        self._last = begin_ns, end_ns
        self._means.clear()

    def _show_loss(self, info: StepInfo, loss: Any, begin: int, end: int) -> None:
        if info.batch_size != self._unread:
            info = info._replace(batch_size=self._unread)
        self._unread = 0
        self.losses += 1
        outputs = {"loss": loss}
        for event in self._of_losses:
            event.after_step(self, info, outputs, begin, end)
        if type(loss) is not float or not isfinite(loss):
            self._watch.after_step(self, info, outputs, begin, end)

    def _first_call(self, size: int, ns: int) -> None:
        self._first_calls.add(size)
        if self._measurement["first_call_s"] is None:
            self._measurement |= {"first_call_s": ns / 1e9, "warm_up_s": 0.0, "warmups": 0}
        else:
            self._measurement["warm_up_s"] += ns / 1e9
            self._measurement["warmups"] += 1

    def _drain_regions(self, buffers: Buffers, numbers: Any) -> None:
        """Regions between steps may follow the last buffered step."""
        for region in buffers.regions.values():
            for label, own in zip(PLACES, region.ns, strict=True):
                times = np.array(own[: len(numbers)], np.int64)
                if len(slots := times.nonzero()[0]):
                    self._series.extend(label.format(region.name), times[slots] / 1e9, "s", numbers[slots], self.epoch)
                    own[: len(numbers)] = [0] * len(numbers)

    def log_mean(self, value: Any, buffers: Buffers) -> None:
        """Add a mean loss of the steps since the last loss.

        Args:
            value: The loss.
            buffers: Has the buffered steps.

        Raises:
            UsageError: There was no step since the last loss.
        """
        last = self.step + buffers.slot - 1
        logged = any(loss is not None for loss in buffers.losses[max(0, buffers.slot - 1) : buffers.slot])
        if (self._means and self._means[-1][0] == last) or logged or (not buffers.slot and not self._unread):
            raise UsageError("a mean loss is logged without a step since the last loss; allowed: after such steps")
        self.mean_losses += 1
        if buffers.slot:
            self._means.append((last, self.epoch, value))
        else:
            self._show_loss(StepInfo(last, self.epoch, self._unread), value, *self._last)

    def end_epoch(self) -> None:
        """The last epoch has ended, with its evaluations."""
        times, number = self.times, self.epoch
        if times is None:
            return
        busy = times.busy_ns(self.step)
        self._series.add("time[epoch]", busy / 1e9, "s", self.step, number)
        scores = {name: float(to_numpy(value)) for name, value in times.scores.items()}
        if times.scored_step >= 0:
            self._series.add("time[evaluation]", times.evaluated_ns / 1e9, "s", self.step, number)
        for name, value in scores.items():
            self.seen[name] = max(value, self.seen.get(name, value))
        if "accuracy" in scores:
            self.scored_epoch = number + 1
        self._at(times.begin_ns + busy, times.scored_begin_ns if scores else None)
        self.epoch += 1
        if scores:
            self._call("before_evaluation", number)
            self._at(times.scored_end_ns)
            for event in self._listeners:
                if "loss" in scores or not _needs_loss(event):
                    event.after_evaluation(self, number, scores)
        else:
            # Metrics of throughput end here; the log has no evaluation.
            for event in self._listeners[1:]:
                event.before_evaluation(self, number)
        self._at(times.end_ns)
        self._call("after_epoch", number)

    def end(self, status: str) -> None:
        """The loop has ended.

        Args:
            status: "success", or how it ended otherwise.
        """
        self.status = status
        self._call("after_training")

    def _call(self, hook: str, *arguments: Any) -> None:
        for event in self._listeners:
            call: Callable[..., None] = getattr(event, hook)
            call(self, *arguments)


def _reads_losses(event: Event) -> bool:
    return type(event).__module__ in ("deep5.metrics.loss", "deep5.training.divergence")


def _needs_loss(event: Event) -> bool:
    return type(event).__module__ == "deep5.metrics.loss"
