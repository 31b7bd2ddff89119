"""`Compiled`: the traces that a step was compiled from, and whether its rule still has them.

A rule may read a value from anywhere: a class, a module that it imports itself, a closure of a helper, the environment.
`Reads` compares before each step what it finds in the rule's code. Any other change shows in a new trace. Traces are
repeated rarely, so that they take no measurable share of a run.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from time import perf_counter_ns, thread_time_ns

from deep5.core.errors import RuleError
from deep5.core.events import StopTraining
from deep5.training.pipeline import Stages
from deep5.training.purity import difference
from deep5.training.reads import recorded_copy
from deep5.training.rule import UpdateRule
from deep5.training.trace import TracedRule, traced_once

__all__ = ["Compiled", "ConfirmedConstants"]

# A trace is repeated if at least this many times its duration has passed since the last.
_SHARE = 200
# In the first steps, which are slower anyway, a trace up to this long is repeated at once.
_FIRST, _SHORT_NS = 4, 20_000_000
_ALIVE: weakref.WeakSet[Compiled] = weakref.WeakSet()


class Compiled:
    """The traces of a compiled step; counts its uses, and traces the rule again after 1, 2, 3, 4, 8, 16, … of them.

    Args:
        rule: The rule.
        stages: The pipeline's stages.
        traces: The trace of each shape; None stands for all shapes.
        taken_ns: Processor time of these traces, each of which ran the rule twice.

    Attributes:
        left: Uses until `counted` is to be called; the owner counts it down, which is faster than a call.
    """

    def __init__(
        self, rule: UpdateRule, stages: Stages, traces: Mapping[tuple[int, ...] | None, TracedRule], taken_ns: int
    ) -> None:
        self._rule, self._stages, self._traces = rule, stages, traces
        self._taken_ns, self._at_ns = taken_ns // 2, perf_counter_ns()
        self._steps, self._gap, self.left = 0, 1, 1
        self._confirmed = 1  # at the time of the first use, the trace is new
        _ALIVE.add(self)

    @property
    def steps(self) -> int:
        """The steps that have begun; the calculation of the initial states may count as one."""
        return self._steps + self._gap - self.left

    def counted(self) -> None:
        """Trace again if these are the first uses, or if the last trace is long past.

        Raises:
            RuleError: See `confirm`.
        """
        self._steps += self._gap
        self._gap = self.left = self._steps if self._steps >= _FIRST else 1
        if 1 < self._steps <= _FIRST and self._taken_ns < _SHORT_NS:
            self.confirm()
        else:
            self.confirm_if_due()

    def confirm_if_due(self) -> None:
        """`confirm` unless it would take a measurable share of the time since the last one."""
        if self.steps > self._confirmed and perf_counter_ns() - self._at_ns > _SHARE * self._taken_ns:
            self.confirm()

    def confirm(self) -> None:
        """Trace the rule again and compare.

        Raises:
            RuleError: The trace differs, or the rule can no longer be traced.
        """
        began, name = thread_time_ns(), type(self._rule).__name__
        for shape, traced in self._traces.items():
            try:
                now = traced_once(recorded_copy(self._rule, set()), traced, self._stages, shape)
                what = difference(traced, now, "in the compiled step", "now")
            except RuleError as error:
                what = f"it can no longer be traced ({error})"
            if what is not None:
                raise RuleError(
                    f"{name} after {self.steps} steps: something that the rule reads has changed: {what}, but the step "
                    f"was compiled with the earlier value; allowed: changes of hyperparameters, "
                    f"{', '.join(self._rule.hyper) or 'here none'}; remedy: name the number in 'hyper' as a float, "
                    "return it from new_input(self, info), or create a new optimizer and bind it"
                )
        self._confirmed, self._at_ns = self.steps, perf_counter_ns()
        self._taken_ns = thread_time_ns() - began


class ConfirmedConstants:
    """Confirms, at the end of a block of training, the compiled steps of this process that were used inside.

    Raises:
        RuleError: At the end, unless the block failed: what a rule reads has changed; see `Compiled`.
    """

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[Compiled, int] = weakref.WeakKeyDictionary()

    def __enter__(self) -> None:
        self._before.clear()
        self._before.update({compiled: compiled.steps for compiled in list(_ALIVE)})

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None or issubclass(kind, StopTraining):
            for compiled in self._used():
                compiled.confirm()

    def confirm_if_due(self) -> None:
        """Inside the block: confirm those whose last trace is long past.

        Raises:
            RuleError: See the class.
        """
        for compiled in self._used():
            compiled.confirm_if_due()

    def _used(self) -> list[Compiled]:
        return [compiled for compiled in list(_ALIVE) if compiled.steps > self._before.get(compiled, 0)]
