"""`FunctionalStep`: the common part of steps that a back-end compiles as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.core.tensors import Arrays
from deep5.training.evaluator import ArrayFunctions
from deep5.training.functional import FunctionalRule
from deep5.training.groups import require_trained
from deep5.training.loss_scale import CompiledScale
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import Modifier, RuleStep, check_gradient, refuse_inside

__all__ = ["FunctionalStep"]


class FunctionalStep(RuleStep):
    """Base of steps whose rule is a `FunctionalRule`, traced together with the passes of the executor.

    Arguments and errors are `RuleStep`'s.
    """

    _rule: FunctionalRule
    _dynamic: CompiledScale | None

    def __init__(self, executor: GraphExecutor, rule: UpdateRule, loss: str, modifier: Modifier | None) -> None:
        super().__init__(rule, loss, modifier)
        self._network = executor.network
        self._loss_dtype = self._network.outputs[loss].dtype

    def _build_rule(
        self,
        functions: ArrayFunctions,
        groups: Sequence[ParameterGroup],
        pipeline: GradientPipeline,
        **orders: Callable[[str, Any], Any],
    ) -> None:
        """Trace the rule for the trained parameters; the loss scale starts anew.

        Args:
            functions: The back-end's functions.
            groups: Parameter groups.
            pipeline: The stages around the rule.
            orders: `present` and `store` of `FunctionalRule`.
        """
        specs = self._network.trained_specs
        require_trained(self.rule, self._network.parameter_specs, specs)
        self._rule = FunctionalRule(
            self.rule, specs, functions, groups=groups, pipeline=pipeline, modified=self._modifier is not None, **orders
        )
        self.averages = self._rule.averages
        self.pipeline, self._scales = pipeline, pipeline.loss_scale is not None
        self._dynamic = CompiledScale(self._rule.given, self._loss_dtype) if pipeline.dynamic else None
        self._given = self._rule.given if self._dynamic is None else self._dynamic.vector

    def _checked(self, gradients: Arrays, native: Callable[[Any], Any]) -> list[Any]:
        """The arguments of `apply`, in the order of the rule's parameters; see `check_gradient`."""
        if self._inside:
            refuse_inside()
        specs = self._network.parameter_specs
        return [check_gradient(name, gradients, specs[name], native) for name in self._rule.names]
