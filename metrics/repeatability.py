"""Repeatability: whether the same steps from the same state are bit-identical."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo, StopTraining
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays, to_numpy

__all__ = ["Repeatability", "spread"]


class _Repeatability(Observer):
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._before: dict[str, Any] = {}
        self._after: dict[str, Any] = {}
        self._place = (0, 0)
        self._seen: list[tuple[StepInfo, Any]] = []
        self._last: StepInfo | None = None
        self._samples: list[Sample] = []
        self._missing: str | None = None

    def before_training(self, trainer: Any) -> None:
        self._before, self._place = _state(trainer), (trainer.epoch, trainer.batch)

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        self._last = info
        if len(self._seen) < self._steps:
            self._seen.append((info, outputs[trainer.loss]))  # read after training, so no step waits for it
            if len(self._seen) == self._steps:
                self._after = _state(trainer)

    def after_training(self, trainer: Any) -> None:
        if trainer.status not in ("success", "stopped") or not self._seen:
            self._missing = "training did not finish"
            return
        final = _state(trainer)
        try:
            self._compare(trainer, self._after or final)
        finally:
            _restore(trainer, final)
            self._steer(trainer, self._last)
        self._before, self._after, self._seen = {}, {}, []

    def _compare(self, trainer: Any, after: Mapping[str, Any]) -> None:
        _restore(trainer, self._before)
        optimizer = trainer.optimizer
        learn = optimizer.step if trainer.accumulate == 1 else optimizer.accumulated_step
        with closing(_batches(trainer.train_sampler, *self._place)) as batches:
            self._learn_again(trainer, learn, batches, after)

    def _learn_again(self, trainer: Any, learn: Any, batches: Iterator[tuple[Any, Any]], after: Any) -> None:
        for info, loss in self._seen:
            ids, inputs = _gathered(batches, info.batch_size, trainer.accumulate)
            if info.sample_ids is not None and not np.array_equal(ids, info.sample_ids):
                # Another order is a different run, which is not comparable with the first.
                self._samples.append(Sample(math.inf, info.step, info.epoch))
                return
            self._steer(trainer, info)
            again = learn(inputs, info)[trainer.loss]
            self._samples.append(Sample(spread(to_numpy(loss), to_numpy(again)), info.step, info.epoch))
        last = self._seen[-1][0]
        found = _state(trainer)
        self._samples.append(Sample(_largest(after, found), last.step + 1, last.epoch))

    def _steer(self, trainer: Any, info: StepInfo | None) -> None:
        """Let schedules set the hyperparameters of this step again."""
        if info is None:
            return
        place = trainer.step, trainer.epoch
        trainer.step, trainer.epoch = info.step, info.epoch
        try:
            for event in trainer.listeners.events:
                if not isinstance(event, Observer):
                    with suppress(StopTraining):
                        event.before_step(trainer, info)
        finally:
            trainer.step, trainer.epoch = place

    def state_dict(self) -> dict[str, Any]:
        # A resumed run repeats the first steps after its checkpoint.
        return {}

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return max((sample.value for sample in self._samples), default=None)

    def missing(self) -> str | None:
        return None if self._samples else self._missing


def _state(trainer: Any) -> dict[str, Any]:
    """Copies: the states of some frameworks may be views of live data."""
    return {part: _copied(getattr(trainer, part).state_dict()) for part in ("executor", "optimizer")}


def _restore(trainer: Any, state: Mapping[str, Any]) -> None:
    trainer.executor.load_state_dict(state["executor"])
    trainer.optimizer.load_state_dict(state["optimizer"])


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return np.array(value) if isinstance(value, np.ndarray) else value


def _batches(source: Any, epoch: int, start: int) -> Generator[tuple[Any, Any], None, None]:
    while True:
        yield from source.batches(epoch, start) if start else source.batches(epoch)
        epoch, start = epoch + 1, 0


def _gathered(batches: Iterator[tuple[Any, Any]], size: int, accumulate: int) -> tuple[Any, Any]:
    """The batches of one step: one, or as many as its samples require."""
    if accumulate == 1:
        return next(batches)
    ids: list[Any] = []
    inputs: list[Any] = []
    while sum(len(own) for own in ids) < size:
        own, arrays = next(batches)
        if own is None:
            own = np.full(len(next(iter(arrays.values()))), -1)
        ids.append(own)
        inputs.append(arrays)
    return np.concatenate(ids), inputs


def _largest(first: Any, second: Any) -> float:
    """The largest spread between two states."""
    if isinstance(first, Mapping):
        return max((_largest(first[key], second[key]) for key in first), default=0.0)
    if isinstance(first, (list, tuple)):
        if len(first) != len(second):  # e.g. parameter groups added in between
            return math.inf
        return max((_largest(one, other) for one, other in zip(first, second, strict=True)), default=0.0)
    if isinstance(first, (np.ndarray, np.generic, int, float)):
        return spread(np.asarray(first), np.asarray(second))
    return 0.0 if first == second else math.inf


def spread(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of two arrays relative to their largest value; 0 if and only if they are bit-identical.

    >>> spread(np.array([1.0, 4.0]), np.array([1.0, 4.0])), spread(np.array([1.0, 4.0]), np.array([1.0, 5.0]))
    (0.0, 0.2)
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return math.inf
    if first.tobytes() == second.tobytes():
        return 0.0
    one, other = (np.asarray(array, dtype=np.float64) for array in (first, second))
    size = max(float(np.abs(one).max()), float(np.abs(other).max()))
    with np.errstate(invalid="ignore"):
        apart = float(np.abs(one - other).max())
    if not (math.isfinite(apart) and math.isfinite(size)):
        return math.inf
    # E.g. zeros of both signs: different bits without a distance.
    return max(apart / size if size else 0.0, math.ulp(0.0))


class Repeatability(Metric):
    """Difference between the first steps and their repetition: 0 if they are bit-identical.

    After training, network and optimizer are reset to their initial state (in a resumed run: their state at the resume)
    and train on the same batches again. The value is the largest relative difference of losses, weights and the
    optimizer's state: 0 if and only if all of them are bit-identical, infinite if the sampler returns the samples in
    another order. Then the trained state is restored. The initial state is kept in host memory until then.

    Nothing is on a clock.

    Args:
        steps: The number of steps to repeat; all of them if training has fewer.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.Repeatability(steps=5).observer()
    >>> trainer.train(epochs=1, events=[observer])
    >>> observer.value(), len(observer.samples())  # bit-identical: the losses of five steps, and the state after them
    (0.0, 6)
    """

    name = "repeatability"
    unit = "relative"
    direction = "lower"

    def __init__(self, steps: int = 10) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise UsageError(f"repeatability with steps={steps!r:.60}; allowed: an integer of at least 1")
        self.steps = steps

    def observer(self) -> Observer:
        """Samples: the difference of every step's loss, then that of weights and optimizer after the last step."""
        return _Repeatability(self.steps)
