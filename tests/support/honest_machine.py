"""What honest results suffer: clocks that are set, slow disks, slow hooks, a busy machine, interruptions, plug-ins."""

from __future__ import annotations

import datetime as standard
import importlib
import importlib.metadata
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import deep5 as d5
from deep5.core import plugins

__all__ = ["Clock", "Hooks", "Interruption", "busy", "plugged_in", "slow_disk"]

# Modules that read the system clock for what they store.
_DATED = (
    "deep5.results.clock", "deep5.results.folder", "deep5.compare.record", "deep5.study.study",
)  # fmt: skip
_LONGEST_S = 0.3


class Clock:
    """The system clock as deep5 sees it: a test may not set the real one.

    Attributes:
        off_s: Seconds that it is set by.
    """

    def __init__(self) -> None:
        self.off_s = 0.0

    @contextmanager
    def seen(self) -> Iterator[Clock]:
        """Deep5 sees this clock until the block ends."""
        clock = self

        class Shifted(standard.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return standard.datetime.now(tz) + standard.timedelta(seconds=clock.off_s)

        log = SimpleNamespace(
            time_ns=lambda: time.time_ns() + int(clock.off_s * 1e9), perf_counter_ns=time.perf_counter_ns
        )
        with ExitStack() as stack:
            for name in _DATED:
                stack.enter_context(mock.patch.object(importlib.import_module(name), "datetime", Shifted))
            stack.enter_context(mock.patch("deep5.results.mllog.time", log))
            yield self


class Hooks(d5.Event):
    """Sets the clock after a step, and sleeps in random hooks."""

    def __init__(self, drawn: random.Random, clock: Clock, step: int | None, by_s: float, *, slow: bool) -> None:
        self._drawn, self._clock, self._step, self._by_s, self._slow = drawn, clock, step, by_s, slow

    def _wait(self) -> None:
        if self._slow and self._drawn.random() < 0.2:
            time.sleep(self._drawn.uniform(0, _LONGEST_S / 3))

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self._wait()

    def before_step(self, trainer: Any, info: Any) -> None:
        self._wait()

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.step == self._step:
            self._clock.off_s += self._by_s
            self._step = None  # once, even if a resumed run repeats the step
        self._wait()

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        self._wait()


class Interruption(d5.Event):
    """Ends a run at a step."""

    def __init__(self, step: int, how: BaseException) -> None:
        self._step, self._how = step, how

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.step == self._step:
            raise self._how


@contextmanager
def slow_disk(drawn: random.Random) -> Iterator[None]:
    """A disk on which one of three writes waits, for up to 0.3 s."""

    def waits(function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **keywords: Any) -> Any:
            if drawn.random() < 1 / 3:
                time.sleep(drawn.uniform(0, _LONGEST_S))
            return function(*arguments, **keywords)

        return slow

    with (
        mock.patch.object(os, "fsync", waits(os.fsync)),
        mock.patch.object(os, "replace", waits(os.replace)),
        mock.patch.object(Path, "replace", waits(Path.replace)),
    ):
        yield


def _spin(until: float) -> None:
    while time.monotonic() < until:
        sum(range(10_000))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """A machine on which so many other processes compute, for ten minutes at most."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_spin, args=(time.monotonic() + 600,), daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join(10)


_PLUGIN = '''
import deep5 as d5


class LargestStep(d5.Metric):
    """Largest change of the training loss from one step to the next. Nothing is on a clock."""

    name, unit, direction = "largest_step", "nat", "lower"

    def observer(self):
        return Changes()


class Changes(d5.Observer):
    def __init__(self):
        self._last, self._samples = None, []

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        loss = float(d5.to_numpy(outputs["loss"]))
        if self._last is not None:
            self._samples.append(d5.Sample(abs(loss - self._last), step=info.step, epoch=info.epoch))
        self._last = loss

    def samples(self):
        return list(self._samples)

    def value(self):
        return max((sample.value for sample in self._samples), default=None)
'''


@contextmanager
def plugged_in(folder: Path) -> Iterator[None]:
    """A package with the metric `largest_step` is installed, for this process and those that it starts."""
    about = folder / "largest_step-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: largest-step\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[deep5.metrics]\nlargest_step = largest_step_plugin:LargestStep\n")
    (folder / "largest_step_plugin.py").write_text(_PLUGIN)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(paths)):
        sys.path.insert(0, str(folder))
        _forget()
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            _forget()


def _forget() -> None:
    importlib.invalidate_caches()
    for cached in (plugins._installed, plugins.registered, plugins.load):
        cached.cache_clear()
