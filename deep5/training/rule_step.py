"""`RuleStep`: the common part of all back-ends' training steps for an update rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, TypedDict

import numpy as np
from typing_extensions import override

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import ParameterGroup, TrainStep
from deep5.core.tensors import Array, Arrays, TensorSpec, dtype_name
from deep5.training.loss_scale import KEYS, CompiledScale, LossScale, check_scaling
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule

__all__ = ["Modifier", "RuleStep", "StepOptions", "by_updates", "check_gradient", "refuse_inside"]

Modifier = Callable[[str, Array, Array], Array]
"""`gradient_modifier(name, param, grad) -> grad`"""


class StepOptions(TypedDict):
    """Arguments of a step besides rule and loss; see `RuleStep`."""

    groups: Sequence[ParameterGroup]
    modifier: Modifier | None
    pipeline: GradientPipeline | None


class RuleStep(TrainStep, ABC):
    """Base of deep5's own training steps: groups, loss scale, averages and state.

    A subclass also takes `executor`, which holds parameters and buffers, `groups`, of which the first that matches a
    name determines its hyperparameters, and `pipeline`. It stores its executor, and calls `_build` at the end of its
    constructor.

    Args:
        rule: The update rule.
        loss: Name of the scalar output to differentiate.
        modifier: `gradient_modifier(name, param, grad) -> grad`.

    Raises:
        RuleError: The rule breaks its contract, the pipeline does not fit it, all parameters are frozen, or a group
            sets an unknown hyperparameter or matches nothing.
        UsageError: `groups` is not a sequence of groups, a group's `match` does not return a bool, or `modifier` is not
            a function.

    Attributes:
        rule: As given.
        pipeline: Clipping, decay and loss scaling.
        averages: Whether evaluation uses other values than the parameters.
    """

    pipeline: GradientPipeline
    averages: bool

    def __init__(self, rule: UpdateRule, loss: str, modifier: Modifier | None) -> None:
        check_callable("modifier", modifier, "(name, param, grad) -> grad")
        self.rule, self._loss, self._modifier = rule, loss, modifier
        self._dynamic: LossScale | CompiledScale | None = None
        self._inside = self._scales = False

    @abstractmethod
    def _build(self, groups: Sequence[ParameterGroup], pipeline: GradientPipeline) -> None:
        """Trace the rule for these groups and stages, with an initial state."""

    @abstractmethod
    def _evaluation_point(self) -> AbstractContextManager[None]:
        """Inside the context, the executor's parameters hold the rule's `eval_param`."""

    @abstractmethod
    def _rule_state(self) -> dict[str, Any]:
        """The rule's state as NumPy arrays, copied."""

    @abstractmethod
    def _load_rule_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_rule_state`; raises before anything changes."""

    def _load_scaling(self, scaling: np.ndarray) -> None:
        """Restore a dynamic loss scale."""
        if self._dynamic is not None:
            self._dynamic.load(scaling)

    def _before_regrouping(self) -> None:
        """A hook before the step is rebuilt; does nothing by default."""

    @override
    def regroup(self, groups: Sequence[ParameterGroup], pipeline: Any) -> None:
        if self._inside:
            refuse_inside()
        self._before_regrouping()
        state = self.state_dict()
        self._build(groups, pipeline)
        self.load_state_dict(state)

    @property
    @override
    def loss_scale(self) -> float:
        return float(self.pipeline.loss_scale or 1.0) if self._dynamic is None else float(self._dynamic.values()[0])

    @property
    @override
    def skipped_steps(self) -> int:
        return 0 if self._dynamic is None else int(self._dynamic.values()[2])

    def _scaled(self, loss_scale: float) -> float:
        """A factor of the loss times the loss scale; a dynamic one is read here, which waits for the last update."""
        return loss_scale * self.loss_scale if self._scales else loss_scale

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the context, the executor's parameters hold the rule's `eval_param`.

        Raises:
            UsageError: A step is requested inside, or the call is between `backprop` and `apply`.
        """
        if self._inside or not self.averages:
            yield
            return
        with self._evaluation_point():
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def state_dict(self) -> dict[str, Any]:
        """The rule's state, and that of a dynamic loss scale, as NumPy arrays, copied."""
        found = self._rule_state()
        return found if self._dynamic is None else {**found, **self._dynamic.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` exactly.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        if self._dynamic is None:
            self._load_rule_state(state)
            return
        scaling = check_scaling(state)  # before anything changes
        self._load_rule_state({key: value for key, value in state.items() if key not in KEYS})
        self._load_scaling(scaling)


def by_updates(info: StepInfo, skipped: int) -> StepInfo:
    """The step in the rule's count, which counts updates, so that bias corrections match the state."""
    return info._replace(step=max(info.step - skipped, 0)) if skipped else info


def check_gradient(name: str, gradients: Arrays, spec: TensorSpec, native: Callable[[Any], Any]) -> Any:
    """The gradient of a parameter from the arguments of `apply`.

    Args:
        name: The parameter's name.
        gradients: By name.
        spec: The parameter's spec.
        native: Converts another framework's array to this framework's.

    Raises:
        ShapeError: It is missing, or of another shape or dtype than its parameter.
    """
    if name not in gradients:
        raise ShapeError(f"no gradient of {name!r}; got: {', '.join(gradients) or 'none'}; allowed: one a parameter")
    value = native(gradients[name])
    if reason := spec.mismatch(tuple(value.shape), dtype_name(value.dtype)):
        raise ShapeError(f"the gradient of {name!r}: {reason}")
    return value


def refuse_inside() -> NoReturn:
    """Reject a training step inside `averaged`.

    Raises:
        UsageError: Always.
    """
    raise UsageError("a training step inside averaged(); remedy: leave the block first")
