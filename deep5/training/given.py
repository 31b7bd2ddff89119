"""`StepNumbers`: the numbers that a kernel or compiled step receives at every step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.training.pipeline import GROUP_STAGES, GradientPipeline, Stages
from deep5.training.rule import UpdateRule
from deep5.training.trace import TracedRule, trace_rule

__all__ = ["StepNumbers"]


class StepNumbers:
    """A traced rule with the numbers of each parameter group: hyperparameters, `new_input`, pipeline numbers.

    Args:
        rule: Its hyperparameters are read at every step.
        pipeline: Its numbers are read at every step, too.
        hypers: Each group's own values; read at every step, so values (not names) may change.
        fused: Whether the rule divides the gradient by the loss scale; otherwise the caller has done so.

    Raises:
        RuleError: The rule breaks its contract, the pipeline does not fit it, or a group sets an unknown
            hyperparameter.

    Attributes:
        traced: The rule with the pipeline around it.
        stages: The pipeline's stages.
        width: Numbers per group.
    """

    def __init__(
        self,
        rule: UpdateRule,
        pipeline: GradientPipeline | None,
        hypers: Sequence[Mapping[str, float]],
        *,
        fused: bool = True,
    ) -> None:
        self.rule, self.pipeline, self._hypers = rule, pipeline or GradientPipeline(), list(hypers)
        self.stages = Stages.of(self.pipeline, rule, hypers, fused=fused)
        self.traced: TracedRule = trace_rule(rule, self.stages)
        self.width = len(self.traced.given)
        for hyper in hypers:
            own = [key for key in GROUP_STAGES if key in self.stages.names]
            if unknown := set(hyper) - {*rule.hyper, *own}:
                allowed = ", ".join(dict.fromkeys((*rule.hyper, *GROUP_STAGES)))
                raise RuleError(
                    f"a parameter group sets {sorted(unknown)}; allowed: hyperparameters of {type(rule).__name__}, "
                    f"{allowed}"
                )
        # One copy per group, updated at every step: `new_input` reads hyperparameters from the rule.
        self._copies = [copy.copy(rule) if hyper else rule for hyper in hypers]
        self._plain = len(self._hypers) == 1 and not self._hypers[0] and not self.stages.names

    def values(self, info: StepInfo, scale: float = 1.0) -> list[float]:
        """The numbers of all groups, concatenated in the order of `TracedRule.given`.

        Args:
            info: The step that begins.
            scale: The loss scale if it is dynamic.

        Raises:
            RuleError: The rule returns other names than those traced, or values that are not numbers.
            UsageError: A number of the pipeline is out of range.
        """
        if self._plain:
            return self.traced.numbers(self.rule, info)
        found: list[float] = []
        base: list[float] | None = None
        for hyper, own in zip(self._hypers, self._copies, strict=True):
            if not hyper or not any(key in self.rule.hyper for key in hyper):
                base = base or self.traced.numbers(self.rule, info)
                found += base
            else:
                vars(own).update(vars(self.rule))
                for name, value in hyper.items():
                    object.__setattr__(own, name, value)
                found += self.traced.numbers(own, info)
            if self.stages.names:
                found += self.stages.numbers(self.pipeline, hyper, info, scale)
        return found
