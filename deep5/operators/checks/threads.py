"""Checks a C++ operator on one, two and three threads: repeated runs agree up to the order of sums."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from deep5.core.arguments import THREADS
from deep5.core.errors import Deep5Error, NetworkError
from deep5.core.tensors import TensorSpec
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.inputs import floating, larger, widened
from deep5.operators.checks.subject import Subject, specs
from deep5.operators.checks.tolerance import Deviation, condition, deviation, tolerance_text
from deep5.operators.contract import is_floating, several, specs_of
from deep5.operators.cpp import CppOperator

__all__ = ["COUNTS", "check_threads", "too_large"]

COUNTS = (1, 2, 3)
"""Numbers of threads: one, an even split, and a split with a remainder."""

# Races are rarely visible: they need many runs, which have to be short. The runs of a batch follow each other
# immediately; then their results are compared, while they are still in memory.
_RUNS, _BUNCH, _BUDGET_S = 500, 50, 0.0035
_OUTPUTS = 1 << 18  # maximum number of output elements for larger inputs


def too_large(outputs: Sequence[TensorSpec]) -> bool:
    """Whether outputs for larger inputs would take too long to compute."""
    return sum(math.prod(map(int, spec.shape)) for spec in outputs) > _OUTPUTS


def check_threads(subject: Subject, inputs: Sequence[np.ndarray], backward: bool, into: Collector) -> None:
    """Compare forward, or backward, on two and three threads with one thread.

    Args:
        subject: Runs the operator; only C++ operators use deep5's threads.
        inputs: The given inputs; larger ones are tried too, if the operator accepts them.
        backward: Whether to check backward.
        into: Receives a row per number of threads.
    """
    operator = subject.operator
    if not subject.direct or not isinstance(operator, CppOperator):
        return
    tried = [tuple(inputs)]
    if (more := larger(inputs)) is not None:
        # It need not accept them.
        with into.guarded(f"{'backward' if backward else 'forward'} on larger inputs"), suppress(NetworkError):
            tried += [] if too_large(specs_of(operator, specs(more))) else [more]
    # The number of threads is a setting of the calling thread: a worker keeps this thread's setting unchanged.
    worker = threading.Thread(target=_judge, args=(subject, tried, backward, into))
    before = THREADS[0]
    try:
        worker.start()
        worker.join()
    finally:
        THREADS[0] = before


def _judge(subject: Subject, tried: Sequence[Sequence[np.ndarray]], backward: bool, into: Collector) -> None:
    what = "backward" if backward else "forward"
    THREADS[0] = 1
    try:
        cases = [_Case(subject, inputs, backward) for inputs in tried]
    except Deep5Error as error:
        into.say(f"{what} on one thread", "FAILED", str(error))
        return
    for count in COUNTS[1:]:
        check = f"{what} on {count} threads"
        with into.guarded(check):
            parts = [part for case in cases for part in case.differing(count)]
            if parts:
                own = next((str(v.dtype) for v in cases[0].plain if is_floating(str(v.dtype))), "float64")
                into.compare(check, parts, f"against one thread: {tolerance_text(own, twice=True)}", itself=True)
            else:
                into.same(check)


class _Case:
    """Forward, or backward of ones, on inputs, with its results on one thread.

    Args:
        subject: Runs it.
        inputs: The given inputs, or larger ones.
        backward: Whether to run backward.
    """

    def __init__(self, subject: Subject, inputs: Sequence[np.ndarray], backward: bool) -> None:
        self._subject, self._inputs, self._backward = subject, inputs, backward
        self._outputs = subject.forward(inputs)
        self._grads = [np.ones_like(value) if is_floating(str(value.dtype)) else None for value in self._outputs]
        self.plain = self._run(inputs)
        self._bits = [value.tobytes() for value in self.plain]
        self._scales: list[np.ndarray | None] | None = None

    def differing(self, count: int) -> list[tuple[str, Deviation]]:
        """The deviations of those runs on `count` threads that differ."""
        found: list[tuple[str, Deviation]] = []
        THREADS[0] = count
        runs, end = 0, time.monotonic() + _BUDGET_S
        while runs < _RUNS and (runs == 0 or time.monotonic() < end):
            made = [self._at_once(), self._at_once()]
            while len(made) < _BUNCH and time.monotonic() < end:
                made.append(self._at_once())
            runs += len(made)
            for got in made:
                if [value.tobytes() for value in got] != self._bits:
                    found += self._parts(got)
                    if any(part.story for _, part in found):
                        return found
        return found

    def _at_once(self) -> list[np.ndarray]:
        """As `_run`, without any other work: idle threads go to sleep, and then start one after another."""
        if not self._backward:
            return list(several(self._subject.operator.forward(*self._inputs)))
        made = self._subject.operator.backward(self._grads, self._inputs, self._outputs, floating(self._inputs))
        return [value for value in made if value is not None]

    def _run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = self._subject.forward(inputs)
        if not self._backward:
            return list(outputs)
        grads = [np.ones_like(value) if is_floating(str(value.dtype)) else None for value in outputs]
        made = self._subject.pull(inputs, outputs, grads, floating(inputs))
        return [value for value in made if value is not None]

    def _parts(self, got: Sequence[np.ndarray]) -> list[tuple[str, Deviation]]:
        if self._scales is None:
            THREADS[0] = 1
            self._scales = self._sizes()
        name = "gradient" if self._backward else "output"
        return [
            (f"{name} {number}", deviation(value, want, scale, twice=True))
            for number, (value, want, scale) in enumerate(zip(got, self.plain, self._scales, strict=True))
        ]

    def _sizes(self) -> list[np.ndarray | None]:
        """The scale of each result, from its condition in float64; if float64 is not accepted, from its largest
        element.
        """
        try:
            known = condition(self._run, widened(self._inputs), np.random.default_rng(0))
        except Deep5Error:
            count = np.sqrt(sum(value.size for value in self._inputs))
            wide = [np.abs(np.asarray(value, np.float64)) for value in self.plain]
            return [value + count * np.max(value, initial=0.0) for value in wide]
        return [None if total is None else known.scale(number) for number, total in enumerate(known.total)]
