"""Time breakdown of a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from deep5.core.events import StepInfo
from deep5.core.metric import FirstCalls, Metric, Observer, Sample
from deep5.core.tensors import Arrays
from deep5.metrics.training_set import first_batch
from deep5.metrics.unsampled import ended_within_epoch
from deep5.training.native_optimizer import NativeOptimizer
from deep5.training.optimizer import RuleOptimizer

__all__ = ["TimeBreakdown"]

_FILE = "time_breakdown.csv"
# Rounds of forward, forward and backward, and whole step, in turn: minimum, maximum, and time limit in seconds.
_LEAST_ROUNDS, _MOST_ROUNDS, _SECONDS = 5, 50, 2.0
# The separately measured parts are accepted if their sum is within these multiples of the step's time.
_ADD_UP = (0.8, 1.25)


class _Part(NamedTuple):
    """A row of the CSV file; the fields are its columns."""

    part: str
    seconds: float | None
    percent: float | None
    how: str


class _TimeBreakdown(Observer):
    synchronous = True

    def __init__(self) -> None:
        self._ns = {"data": 0, "first_steps": 0, "steps": 0, "evaluation": 0}
        self._count = 0
        self._total_ns = 0
        self._begin = 0
        self._is_first = FirstCalls()
        self._samples: list[Sample] = []
        self._split: tuple[float, float, float] | None = None
        self._no_split = "not available: training did not finish"

    def before_batch(self, trainer: Any, epoch: int) -> None:
        self._begin = perf_counter_ns()

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        self._ns["data"] += perf_counter_ns() - self._begin

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        if self._is_first(info):
            self._ns["first_steps"] += end_ns - begin_ns
        else:
            self._ns["steps"] += end_ns - begin_ns
            self._count += 1
        self._total_ns = end_ns - trainer.origin_ns

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        self._begin = perf_counter_ns()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        self._ns["evaluation"] += perf_counter_ns() - self._begin

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._note(trainer)

    def _note(self, trainer: Any) -> None:
        self._total_ns = trainer.elapsed_ns()
        share = Sample(self._outside(), trainer.step, trainer.epoch, self._total_ns / 1e9)
        self._samples = [*self._samples, share]  # a new list: earlier states hold the old one

    def _outside(self) -> float:
        return 100.0 * (1 - (self._ns["first_steps"] + self._ns["steps"]) / self._total_ns)

    def after_training(self, trainer: Any) -> None:
        if ended_within_epoch(trainer, self._samples):
            self._note(trainer)
        if trainer.status in ("success", "stopped"):
            self._split, self._no_split = _split_step(trainer)

    def state_dict(self) -> dict[str, Any]:
        left_out = ("_is_first", "_begin", "_split", "_no_split")
        return {name: value for name, value in super().state_dict().items() if name not in left_out}

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._outside() if self._total_ns else None

    def files(self) -> dict[str, bytes | str]:
        if not self._total_ns:
            return {}
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(_Part._fields)
        for row in self._parts():
            cells = [None if cell is None else f"{cell:.6g}" for cell in (row.seconds, row.percent)]
            writer.writerow([row.part, *("" if cell is None else cell for cell in cells), row.how])
        return {_FILE: out.getvalue()}

    def _parts(self) -> list[_Part]:
        total_s = self._total_ns / 1e9
        seconds = {name: ns / 1e9 for name, ns in self._ns.items()}

        def part(name: str, value: float | None, how: str) -> _Part:
            return _Part(name, value, None if value is None else 100 * value / total_s, how)

        every = "measured in every step of training"
        rows = [
            part("data", seconds["data"], "waiting for batches, measured before every step"),
            part("first_steps", seconds["first_steps"], "the first step of each size of batch, which may compile"),
            part("steps", seconds["steps"], every),
            *self._split_rows(part, seconds["steps"]),
            part("evaluation", seconds["evaluation"], "measured around every evaluation"),
        ]
        other = total_s - sum(seconds.values())
        rows.append(part("other", other, "events, metrics and the trainer: the total less all that was measured"))
        rows.append(part("total", total_s, "the run's clock"))
        return rows

    def _split_rows(self, part: Callable[[str, float | None, str], _Part], steps_s: float) -> list[_Part]:
        names = ("forward", "backward", "optimizer")
        if self._split is None:
            return [part(name, None, self._no_split) for name in names]
        whole = sum(self._split)
        how = (
            f"of the steps, in proportion to {len(names)} parts measured apart after training: together "
            f"{100 * whole * self._count / steps_s:.3g} % of the steps' time"
            if self._count
            else "there were no steps but the first ones"
        )
        if not self._count or not _ADD_UP[0] <= whole * self._count / steps_s <= _ADD_UP[1]:
            return [part(name, None, f"not available: they do not add up; {how}") for name in names]
        return [part(name, steps_s * own / whole, how) for name, own in zip(names, self._split, strict=True)]


def _split_step(trainer: Any) -> tuple[tuple[float, float, float] | None, str]:
    """Seconds of forward, backward and optimizer of one step, or the reason why they are unknown."""
    executor, optimizer = trainer.executor, trainer.optimizer
    if "whole_step" in executor.capabilities:
        return None, "not available: the framework compiles the whole step as one"
    if not isinstance(optimizer, (RuleOptimizer, NativeOptimizer)):
        return None, f"not available: {type(optimizer).__name__} owns its step"
    if trainer.accumulate != 1:
        return None, "not available: a step learns from several batches"
    ids, inputs = first_batch(trainer.train_sampler)
    size = len(ids) if ids is not None else len(next(iter(inputs.values())))
    info = StepInfo(trainer.step, trainer.epoch, size, ids, trainer.seed)
    kept = executor.state_dict(), optimizer.state_dict()
    try:
        times = _in_turn(
            {
                "forward": lambda: executor.inference(inputs, training=True, info=info),
                "gradients": lambda: executor.inference_and_backprop(inputs, trainer.loss, info=info),
                "step": lambda: optimizer.step(inputs, info),
            },
            executor.synchronize,
        )
    finally:
        executor.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    forward, backward, update = (
        times["forward"],
        times["gradients"] - times["forward"],
        times["step"] - times["gradients"],
    )
    if min(backward, update) < 0:
        return None, "not available: a part measured apart took longer than the whole"
    return (forward, backward, update), ""


def _in_turn(calls: Mapping[str, Callable[[], object]], synchronize: Callable[[], None]) -> dict[str, float]:
    """Median seconds of calls made in turn, each synchronized before the next; the first round is excluded."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = perf_counter()
    for number in range(_MOST_ROUNDS + 1):
        for name, call in calls.items():
            before = perf_counter_ns()
            call()
            synchronize()
            if number:
                times[name].append((perf_counter_ns() - before) / 1e9)
        if number >= _LEAST_ROUNDS and perf_counter() - begin > _SECONDS:
            break
    return {name: median(own) for name, own in times.items()}


class TimeBreakdown(Metric):
    """Percentage of the run's time outside training steps: data, evaluation, events, and the trainer itself.

    The result's file `time_breakdown.csv` has the seconds of every part: data, first steps, steps (split into forward,
    backward, optimizer), evaluation, and the rest. The parts of a step are measured separately after training, on a
    batch of the training set: a training-mode forward pass, forward and backward, and a whole step in turn, each
    synchronized before the next. The time of the steps is divided in proportion to their medians. The file says "not
    available" if they do not add up to the step's time, if the framework compiles the whole step (TensorFlow, JAX), or
    if the optimizer owns its step. Network and optimizer are restored afterwards.

    On the clock: everything that `WallClockTime` includes; the device is synchronized after every step. Off it:
    building the executor, compiling rules, events before the first epoch and after training; in a resumed run, the time
    between its interruption and its first step after the resume, and the repeated steps since its last checkpoint.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.TimeBreakdown().observer()
    >>> trainer.train(epochs=2, events=[observer])
    >>> 0 < observer.value() < 100
    True
    >>> [line.partition(",")[0] for line in observer.files()["time_breakdown.csv"].splitlines()[1:]]
    ['data', 'first_steps', 'steps', 'forward', 'backward', 'optimizer', 'evaluation', 'other', 'total']
    """

    name = "time_breakdown"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the percentage from the start of training to the end of every epoch, or to where it stopped."""
        return _TimeBreakdown()
