"""What the trainer drives: an update rule made a `StepOptimizer` by the executor's own whole step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from deep5.errors import UsageError
from deep5.events import StepInfo
from deep5.executors import GraphExecutor, ParameterGroup, StepOptimizer, TrainStep
from deep5.tensors import Arrays
from deep5.training.rule import UpdateRule

__all__ = ["RuleOptimizer", "as_step_optimizer"]


class RuleOptimizer:
    """An update rule as a `StepOptimizer`.

    Args:
        rule: The rule; a schedule changes its hyperparameters there.
        loss: Name of the scalar output to differentiate.
        groups: Parameter groups.
    """

    def __init__(self, rule: UpdateRule, *, loss: str = "loss", groups: Sequence[ParameterGroup] = ()) -> None:
        self.rule = rule
        self._loss, self._groups = loss, tuple(groups)
        self._step: TrainStep | None = None

    @property
    def train_step(self) -> TrainStep:
        """The executor's step.

        Raises:
            UsageError: `bind` was not called.
        """
        if self._step is None:
            raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")
        return self._step

    def bind(self, executor: GraphExecutor) -> None:
        """Make the executor's whole step under this rule."""
        self._step = executor.train_step(self.rule, self._loss, groups=self._groups)
        # The trainer calls `step` every step: the way through this class is paid for once.
        self.step = self._step.__call__  # type: ignore[method-assign]

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One whole step."""
        return self.train_step(inputs, info)

    def averaged(self) -> AbstractContextManager[None]:
        """While inside, the executor holds the rule's `eval_param`."""
        return self.train_step.averaged()

    def state_dict(self) -> dict[str, Any]:
        """The rule's state."""
        return self.train_step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.train_step.load_state_dict(state)

    def describe(self) -> dict[str, Any]:
        """The rule and how it runs."""
        return {**self.rule.describe(), "kernel": getattr(self._step, "how", None)}


def as_step_optimizer(optimizer: UpdateRule | StepOptimizer, *, loss: str = "loss") -> StepOptimizer:
    """An update rule wrapped, a step optimizer as it is.

    Raises:
        UsageError: Neither of the two.
    """
    if isinstance(optimizer, UpdateRule):
        return RuleOptimizer(optimizer, loss=loss)
    if isinstance(optimizer, StepOptimizer):
        return optimizer
    raise UsageError(
        f"got {optimizer!r} as optimizer; allowed: a d5.UpdateRule, or an object with bind, step, state_dict and "
        "load_state_dict"
    )
