"""Metrics of the recipes: workspace relative to the limit, memory of a step, and difference of the losses."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.timing import Rounds

__all__ = ["LossDifference", "StepMemory", "UndividedStepMemory", "UndividedWorkspace", "Workspace"]


class _Once(Observer):
    """A value that the two sides of a recipe report in addition to their times."""

    def __init__(self, metric: _Told) -> None:
        self._metric = metric
        self._value: float | None = None

    def after_timing(self, rounds: Rounds) -> None:
        self._value = self._metric.of(rounds.reported["candidate"], rounds.reported["baseline"])

    def samples(self) -> list[Sample]:
        return [] if self._value is None else [Sample(self._value)]

    def value(self) -> float | None:
        return self._value


class _Told(Metric):
    direction: ClassVar[Literal["higher", "lower"]] = "lower"

    def of(self, candidate: Any, baseline: Any) -> float | None:
        """The value, computed from the reports of both sides."""
        raise NotImplementedError

    def observer(self) -> Observer:
        """Samples: the value."""
        return _Once(self)


class Workspace(_Told):
    """Workspace of the divided layers as a percentage of the limit: of the largest one, or of all if it is shared.

    Operators of level 0 count it themselves, byte for byte; nothing is on a clock.
    """

    name = "workspace"
    unit = "% of the limit"

    def of(self, candidate: Any, baseline: Any) -> float | None:
        """From the plan."""
        plan = candidate["plan"]
        return None if plan.limit_bytes is None else 100 * plan.workspace_bytes / plan.limit_bytes


class UndividedWorkspace(_Told):
    """`Workspace` of the undivided layers: above 100 % plain execution exceeds the limit."""

    name = "undivided_workspace"
    unit = "% of the limit"
    direction: ClassVar[Literal["higher", "lower"]] = "higher"

    def of(self, candidate: Any, baseline: Any) -> float | None:
        """From the plan, which measured both."""
        plan = candidate["plan"]
        return None if plan.limit_bytes is None else 100 * plan.undivided_workspace_bytes / plan.limit_bytes


class StepMemory(_Told):
    """MiB by which a divided training step raises the resident memory of the process: activations and workspace.

    Reused memory of the process is not visible; large blocks are freed after each step.
    """

    name = "step_memory"
    unit = "MiB"

    def of(self, candidate: Any, baseline: Any) -> float | None:
        """From the candidate."""
        return _mib(candidate["step_bytes"])


class UndividedStepMemory(_Told):
    """`StepMemory` of the same network undivided."""

    name = "undivided_step_memory"
    unit = "MiB"

    def of(self, candidate: Any, baseline: Any) -> float | None:
        """From the baseline."""
        return _mib(baseline["step_bytes"])


class LossDifference(_Told):
    """The largest difference of the losses of the first training steps, relative to the undivided loss.

    The first loss is bit-identical if layers compute each sample independently. Weight gradients are summed in another
    order, which shows in the last float32 digits of the following losses.
    """

    name = "loss_difference"
    unit = "ratio"

    def of(self, candidate: Any, baseline: Any) -> float | None:
        """From the losses of both sides, step by step."""
        pairs = zip(candidate["losses"], baseline["losses"], strict=True)
        return float(max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs))


def _mib(count: int | None) -> float | None:
    return None if count is None else count / 2**20
