"""`StepNumbers`: the numbers that a kernel or compiled step receives at every step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from time import thread_time_ns

from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.training.expression import ShapeNeeded
from deep5.training.pipeline import GROUP_STAGES, GradientPipeline, Stages
from deep5.training.reads import Reads
from deep5.training.retrace import Compiled
from deep5.training.rule import UpdateRule
from deep5.training.trace import TracedRule, trace_rule

__all__ = ["StepNumbers", "needs_shapes", "traces_of"]


class StepNumbers:
    """A traced rule with the numbers of each parameter group: hyperparameters, `new_input`, pipeline numbers.

    Args:
        rule: Its hyperparameters are read at every step.
        pipeline: Its numbers are read at every step, too.
        hypers: Each group's own values; read at every step, so values (not names) may change.
        fused: Whether the rule divides the gradient by the loss scale; otherwise the caller has done so.
        shapes: The parameters' shapes, for a rule that depends on them.

    Raises:
        RuleError: The rule breaks its contract, the pipeline does not fit it, or a group sets an unknown
            hyperparameter.

    Attributes:
        traced: The rule with the pipeline around it; of any of the parameters if it depends on the shape.
        shaped: Whether the rule is traced per shape.
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
        shapes: Iterable[tuple[int, ...]] = (),
    ) -> None:
        self.rule, self.pipeline, self._hypers = rule, pipeline or GradientPipeline(), list(hypers)
        self.stages = Stages.of(self.pipeline, rule, hypers, fused=fused)
        began = thread_time_ns()
        self._of_shape = traces_of(rule, self.stages, shapes)
        self._compiled = Compiled(rule, self.stages, self._of_shape, thread_time_ns() - began)
        self.traced: TracedRule = next(iter(self._of_shape.values()))
        self.shaped = None not in self._of_shape
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
        found = [traced.reads.names for traced in self._of_shape.values() if traced.reads is not None]
        self._reads = Reads(rule, frozenset().union(*found))
        self._names = [set(hyper) for hyper in hypers]
        self._pipeline_kept = dict(vars(self.pipeline))
        self._plain = len(self._hypers) == 1 and not self._hypers[0] and not self.stages.names

    def values(self, info: StepInfo, scale: float = 1.0) -> list[float]:
        """The numbers of all groups, concatenated in the order of `TracedRule.given`.

        Args:
            info: The step that begins.
            scale: The loss scale if it is dynamic.

        Raises:
            RuleError: The rule returns other names than those traced, or values that are not numbers; or something else
                that the compiled step holds as a constant has changed.
            UsageError: A number of the pipeline is out of range.
        """
        if (what := self._reads.changed()) is not None:
            raise RuleError(
                f"{type(self.rule).__name__} at step {info.step}: {what}, but the step was compiled with the earlier "
                f"value; allowed: changes of hyperparameters, {', '.join(self.rule.hyper) or 'here none'}; "
                "remedy: name the number in 'hyper' as a float, or create a new optimizer and bind it"
            )
        self._compiled.left -= 1
        if not self._compiled.left:
            self._compiled.counted()
        if vars(self.pipeline) != self._pipeline_kept:
            self._check_pipeline()
        if self._plain:
            if self._hypers[0]:
                self._check_names()
            return self.traced.numbers(self.rule, info)
        self._check_names()
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

    def traced_of(self, shape: tuple[int, ...]) -> TracedRule:
        """The trace for parameters of a shape."""
        return self._of_shape[shape] if self.shaped else self.traced

    def _check_names(self) -> None:
        """Reject hyperparameters that a group did not set when the step was made: they would have no effect."""
        for hyper, names in zip(self._hypers, self._names, strict=True):
            if hyper.keys() != names:
                raise RuleError(
                    f"a parameter group sets {sorted(hyper)}, but the step was made for {sorted(names)}; remedy: "
                    "RuleOptimizer.set_parameter(name, value, match)"
                )

    def _check_pipeline(self) -> None:
        """Reject changes of the pipeline that its numbers do not show; keep the new numbers."""
        now = dict(vars(self.pipeline))
        for name, before in self._pipeline_kept.items():
            value = now.get(name)
            switched = (value is None) != (before is None) or isinstance(value, str) != isinstance(before, str)
            if switched or (name == "master_weights" and value is not before):
                raise RuleError(
                    f"the pipeline's {name} is {value!r}, but the step was made with {before!r}; allowed: changes from "
                    "number to number; remedy: RuleOptimizer.set_hyper(name, value), or create a new optimizer"
                )
        self._pipeline_kept = now


def traces_of(
    rule: UpdateRule, stages: Stages, shapes: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...] | None, TracedRule]:
    """The trace of a rule for all shapes, under None; or one per shape if the rule depends on it.

    Raises:
        RuleError: The rule cannot be traced.
    """
    try:
        return {None: trace_rule(rule, stages)}
    except ShapeNeeded:
        found: dict[tuple[int, ...] | None, TracedRule] = {
            shape: _traced_for(rule, stages, shape) for shape in dict.fromkeys(shapes)
        }
        # Without any parameter, only what the rule is as such counts.
        return found or {(1, 1): trace_rule(rule, stages, (1, 1))}


def needs_shapes(rule: UpdateRule) -> bool:
    """Whether a rule depends on the shapes of the parameters.

    Raises:
        RuleError: It cannot be traced.
    """
    try:
        trace_rule(rule)
    except ShapeNeeded:
        return True
    return False


def _traced_for(rule: UpdateRule, stages: Stages, shape: tuple[int, ...]) -> TracedRule:
    try:
        return trace_rule(rule, stages, shape)
    except RuleError as error:
        raise RuleError(f"{type(rule).__name__} for a parameter of shape {shape}: {error}") from error
