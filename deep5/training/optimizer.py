"""`RuleOptimizer`: an update rule as a `StepOptimizer` through the executor's whole step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from deep5.core.arguments import check_callable, is_finite
from deep5.core.errors import RuleError, ShapeError, UnknownName, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup, StepOptimizer, TrainStep
from deep5.core.tensors import Array, Arrays
from deep5.training.accumulation import BatchLayout, accumulated_step, batch_layout
from deep5.training.groups import WatchedGroups, check_groups, matches, owners
from deep5.training.hyper_ranges import hyper_fault
from deep5.training.hyper_state import KEY, apart, check_names, group_values, plain, regrouped
from deep5.training.master_weights import SHORT_FLOATS, update_dtype
from deep5.training.pipeline import GROUP_STAGES, STAGES, GradientPipeline, Stages, check_stage
from deep5.training.rule import UpdateRule

__all__ = ["RuleOptimizer", "as_step_optimizer"]

Modifier = Callable[[str, Array, Array], Array]
Match = Callable[[str], bool]
_UNBOUND = "the optimizer is not bound to an executor; remedy: call bind(executor) first"


class RuleOptimizer:
    """An update rule as a `StepOptimizer`.

    Args:
        rule: The rule; schedules change its hyperparameters there.
        loss: Name of the scalar output to differentiate.
        groups: Parameter groups: the first that matches a parameter's name applies. They may set hyperparameters of the
            rule, `clip_value` and the decays.
        modifier: `gradient_modifier(name, param, grad) -> grad` on native arrays; traced if the framework compiles.
        clip_norm: See `GradientPipeline`; likewise the following.
        clip_value: Largest absolute value of an element of the gradient.
        weight_decay: Decoupled from the gradient.
        coupled_weight_decay: Times the parameter, added to the gradient.
        loss_scale: A number, or `"dynamic"`.
        master_weights: Whether float16 and bfloat16 parameters are updated in float32; None: yes.

    Raises:
        RuleError: `rule` is not a rule, or the pipeline does not fit it.
        UsageError: A value is not allowed.

    Attributes:
        rule: As given.
        loss: As given.
        pipeline: Clipping, decay and scaling; its numbers may change between steps.

    >>> import deep5 as d5
    >>> bias = d5.ParameterGroup(lambda name: name.endswith("bias"), weight_decay=0.0)
    >>> optimizer = d5.RuleOptimizer(d5.Adam(lr=0.001), groups=[bias], weight_decay=0.01, clip_norm=1.0)
    >>> optimizer.set_parameter("lr", 0.0005)
    >>> optimizer.hyper["lr"], optimizer.hyper["clip_norm"]
    (0.0005, 1.0)
    """

    def __init__(
        self,
        rule: UpdateRule,
        *,
        loss: str = "loss",
        groups: Sequence[ParameterGroup] = (),
        modifier: Modifier | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        weight_decay: float | None = None,
        coupled_weight_decay: float | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        master_weights: bool | None = None,
    ) -> None:
        if not isinstance(rule, UpdateRule):
            raise RuleError(f"got {rule!r} as an update rule; allowed: an instance of a subclass of d5.UpdateRule")
        check_groups(groups)
        check_callable("modifier", modifier, "(name, param, grad) -> grad")
        self.rule, self.loss, self._modifier = rule, loss, modifier
        self.pipeline = GradientPipeline(
            clip_value=clip_value,
            clip_norm=clip_norm,
            weight_decay=weight_decay,
            coupled_weight_decay=coupled_weight_decay,
            loss_scale=loss_scale,
            master_weights=master_weights,
        )
        # Own groups: `set_parameter` changes them, and the caller's stay unchanged; the caller may not change those.
        self._given = WatchedGroups(groups)
        self._groups = [ParameterGroup(own.match, frozen=own.frozen, **own.hyper) for own in groups]
        Stages.of(self.pipeline, rule, [group.hyper for group in self._groups])
        for group in self._groups:
            for name, value in group.hyper.items():
                if is_finite(value) and (allowed := hyper_fault(rule, name, float(value))):
                    raise UsageError(f"ParameterGroup: got {name}={value!r:.60}; allowed: {allowed}")
        # Values set for some parameters before their names were known.
        self._waiting: list[tuple[str, float, Match]] = []
        self._executor: GraphExecutor | None = None
        self._step: TrainStep | None = None
        self._layout: BatchLayout | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("rule", "loss", "pipeline") and vars(self).get("_step") is not None:
            raise UsageError(
                f"{name} of a bound optimizer: got another one, but the step holds the earlier one; allowed: set_hyper "
                "and set_parameter; remedy: create a new RuleOptimizer and bind it"
            )
        super().__setattr__(name, value)

    @property
    def train_step(self) -> TrainStep:
        """The executor's step.

        Raises:
            UsageError: `bind` was not called.
        """
        if self._step is None:
            raise UsageError(_UNBOUND)
        return self._step

    @property
    def halves(self) -> TrainStep:
        """The step in two halves, for schemes that exchange gradients between them; see `Halves`."""
        self._given.check()
        return self.train_step

    def frozen(self) -> frozenset[str]:
        """Names of the frozen parameters, which have no gradient."""
        network = self._bound().network
        owned = owners(network.trained_specs, self._groups)
        return network.frozen.union(name for name, own in owned.items() if own >= 0 and self._groups[own].frozen)

    def _bound(self) -> GraphExecutor:
        if self._executor is None:
            raise UsageError(_UNBOUND)
        return self._executor

    @property
    def bare(self) -> bool:
        """Whether the update is only the rule: no groups, no modifier, no pipeline."""
        return not (self._groups or self._modifier or self._asks())

    @property
    def hyper(self) -> dict[str, Any]:
        """Current hyperparameters of the rule and of the pipeline, without groups' own values."""
        stages = {name: value for name in STAGES if (value := getattr(self.pipeline, name)) is not None}
        return {**{name: getattr(self.rule, name) for name in self.rule.hyper}, **stages}

    @property
    def loss_scale(self) -> float:
        """The factor of the next step's loss; reading a dynamic one may wait for the device."""
        return self.train_step.loss_scale

    @property
    def skipped_steps(self) -> int:
        """Number of updates skipped by a dynamic loss scale; reading it may wait for the device."""
        return self.train_step.skipped_steps

    def bind(self, executor: GraphExecutor) -> None:
        """Create the executor's whole step with this rule.

        Args:
            executor: Runs the network, and keeps the parameters.
        """
        self._executor = executor
        for name, value, match in self._waiting:
            self._split(name, value, match)
        self._waiting = []
        options = {"pipeline": self.pipeline} if self._asks() else {}
        self._step = executor.train_step(
            self.rule, self.loss, groups=tuple(self._groups), modifier=self._modifier, **options
        )
        if not self._given.groups:
            # The trainer calls `step` at every step: this avoids repeated look-ups through the class.
            self.step = self._step.__call__  # type: ignore[method-assign]

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One whole step.

        Args:
            inputs: The batch, as for `GraphExecutor.inference`.
            info: The step.

        Returns:
            The network's outputs before the update, as native values.
        """
        self._given.check()
        return self.train_step(inputs, info)

    def accumulated_step(self, batches: Sequence[Arrays], info: StepInfo) -> Arrays:
        """One step from several micro-batches; see `deep5.training.accumulation.accumulated_step`.

        Args:
            batches: The micro-batches.
            info: The step; `batch_size` is that of all micro-batches together.

        Returns:
            The network's outputs for all samples.

        Raises:
            Unsupported: The sample dimension of the inputs is unknown.
        """
        self._given.check()
        step, executor = self.train_step, self._bound()
        self._layout = layout = batch_layout(executor.network, self._layout)
        try:
            return accumulated_step(step, executor, batches, info, layout)
        except BaseException:
            # For any exit between two micro-batches: a step that works in place holds the gradient's point.
            getattr(step, "cancel", _nothing)()
            raise

    @property
    def changeable(self) -> tuple[str, ...]:
        """The hyperparameters that `set_hyper` accepts."""
        return (*self.rule.hyper, *(stage for stage in STAGES if stage not in self.rule.hyper))

    def set_hyper(self, name: str, value: float) -> None:
        """Set a hyperparameter of the rule or of the pipeline, from the next step on; groups keep their own values.

        Args:
            name: One of `changeable`.
            value: The new value.

        Raises:
            UnknownName: There is no such hyperparameter.
            UsageError: A value is not allowed.
        """
        self._check(name, value)
        if name in self.rule.hyper:
            setattr(self.rule, name, value)
            return
        new = getattr(self.pipeline, name) is None
        setattr(self.pipeline, name, value)
        if new and self._step is not None:
            self._regroup()

    def set_parameter(self, name: str, value: float, match: Match | None = None) -> None:
        """Set a hyperparameter from the next step on, for all parameters or for some.

        The rule's state does not change. Once bound, nothing is traced again if the parameters are whole groups that
        already have an own value; otherwise new groups are created and the step is traced once: repeated changes for
        the same parameters are cheap from the second time on.

        Args:
            name: A hyperparameter of the rule or of the pipeline; for some parameters, one that a group may set.
            value: A number.
            match: Selects the parameters by name; None: all, including groups' own values.

        Raises:
            RuleError: `match` matches no parameter that is trained.
            UnknownName: There is no such hyperparameter.
            UsageError: A value is not allowed, or `match` is not a function or does not return a bool.
        """
        self._check(name, value)
        check_callable("match", match, "(name) -> bool")
        if match is None:
            for group in self._groups:
                if name in group.hyper:
                    group.hyper[name] = value
            self._waiting = [entry for entry in self._waiting if entry[0] != name]
            self.set_hyper(name, value)
            return
        if name in STAGES and name not in (*self.rule.hyper, *GROUP_STAGES):
            raise UsageError(f"{name} is one for the model; allowed: match=None, got {match!r}")
        if self._executor is None:
            self._waiting.append((name, value, match))
        elif self._split(name, value, match):
            self._regroup()

    def averaged(self) -> AbstractContextManager[None]:
        """Inside the context, the executor holds the rule's `eval_param`."""
        return self.train_step.averaged()

    def state_dict(self) -> dict[str, Any]:
        """The rule's state, that of a dynamic loss scale, and under `"hyper"` the current hyperparameters."""
        return {**self.train_step.state_dict(), KEY: self._hyper_state()}

    def state_views(self) -> dict[str, Any]:
        """Like `state_dict`, with views of live memory if the step has them: read them before the next step."""
        step = self.train_step
        views: dict[str, Any] = step.state_views() if hasattr(step, "state_views") else step.state_dict()
        return {**views, KEY: self._hyper_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; its hyperparameters replace the current ones.

        A state of an earlier deep5 has none and does not change them.

        Args:
            state: A result of `state_dict`, for the same network.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype; or the hyperparameters belong to
                another rule.
            UsageError: A hyperparameter is not allowed.
        """
        rest, held = apart(state)
        if held is not None:
            self._check_held(held)
        self.train_step.load_state_dict(rest)
        if held is not None:
            self._restore_hyper(held)

    def describe(self) -> dict[str, Any]:
        """The rule, its pipeline and groups, and how it runs; in JSON types."""
        found = {**self.rule.describe(), **self.pipeline.describe()}
        if self._groups:
            names = [] if self._executor is None else list(self._executor.network.trained_specs)
            owned = owners(names, self._groups)
            found["groups"] = [
                {
                    **({"frozen": True} if group.frozen else {}),
                    **group.hyper,
                    **({"parameters": [name for name, own in owned.items() if own == index]} if names else {}),
                }
                for index, group in enumerate(self._groups)
            ]
        if self._modifier is not None:
            found["gradient_modifier"] = getattr(self._modifier, "__qualname__", type(self._modifier).__qualname__)
        specs = () if self._executor is None else self._executor.network.trained_specs.values()
        if any(spec.dtype in SHORT_FLOATS for spec in specs):
            found["update_dtype"] = update_dtype(specs, self.pipeline.master_weights)
        return {**found, "kernel": getattr(self._step, "how", None)}

    def _asks(self) -> bool:
        """Whether anything of the pipeline is set; if not, a framework without pipelines is accepted."""
        return self.pipeline.master_weights is not None or bool(
            Stages.of(self.pipeline, self.rule, [group.hyper for group in self._groups]).names
        )

    def _check(self, name: str, value: Any) -> None:
        if name not in self.changeable:
            raise UnknownName(f"hyperparameter of {type(self.rule).__name__}", name, self.changeable)
        if name in self.rule.hyper:
            if not is_finite(value):
                raise UsageError(f"{name}: got {value!r:.60}; allowed: a finite number")
            if allowed := hyper_fault(self.rule, name, float(value)):
                raise UsageError(f"{name}: got {value!r:.60}; allowed: {allowed}")
            return
        check_stage(name, value)
        if name == "loss_scale" and self.pipeline.dynamic:
            raise UsageError(
                f"loss_scale: got {value!r:.60}, but it is dynamic and the step finds it; remedy: RuleOptimizer(…, "
                "loss_scale=1024.0), say"
            )
        if name == "weight_decay" and "lr" not in self.rule.hyper:
            Stages.of(GradientPipeline(weight_decay=value), self.rule, ())  # raises the error

    def _split(self, name: str, value: float, match: Match) -> bool:
        """Set an own value for the matching parameters; returns whether the groups changed."""
        owned = owners(self._bound().network.trained_specs, self._groups)
        chosen = {parameter for parameter in owned if matches(match, parameter, "predicate")}
        if not chosen - self.frozen():
            raise RuleError(f"set_parameter: match matches no parameter that is trained; allowed: {', '.join(owned)}")
        groups: list[ParameterGroup] = []
        changed = False
        for index, group in [*enumerate(self._groups), (-1, None)]:
            members = frozenset(parameter for parameter, own in owned.items() if own == index)
            inside = members & chosen
            if group is not None and inside == members and name in group.hyper:
                group.hyper[name] = value
            elif inside and not (group is not None and group.frozen):
                hyper: dict[str, Any] = {**(group.hyper if group is not None else {}), name: value}
                groups.append(ParameterGroup(inside.__contains__, **hyper))
                changed = True
                if inside == members:
                    continue  # an empty group would match nothing
            if group is not None:
                groups.append(group)
        self._groups = groups
        return changed

    def _hyper_state(self) -> dict[str, Any]:
        """`values` of the rule and the pipeline, and `groups`; whether a loss scale is dynamic is not included."""
        own = {name: value for name, value in plain(self.hyper).items() if not isinstance(value, str)}
        return {"values": own, "groups": group_values(self._bound().network.trained_specs, self._groups)}

    def _check_held(self, held: Mapping[str, Any]) -> None:
        """Check all hyperparameters of a state before anything changes."""
        values, names = held["values"], self._bound().network.trained_specs
        check_names(values, self.rule.hyper, self.changeable[len(self.rule.hyper) :])
        for name, value in values.items():
            self._check(name, value)
        for entry in held.get("groups", ()):
            if unknown := [name for name in entry["parameters"] if name not in names]:
                raise ShapeError(
                    f"the optimizer's state has hyperparameters of unknown parameters: {unknown}; allowed: "
                    f"{', '.join(names)}"
                )
            check_names(entry["values"], (), dict.fromkeys((*self.rule.hyper, *GROUP_STAGES)))
            for name, value in entry["values"].items():
                self._check(name, value)

    def _restore_hyper(self, held: Mapping[str, Any]) -> None:
        values, pipeline = held["values"], self.pipeline
        for name in self.rule.hyper:
            setattr(self.rule, name, values[name])
        requested = [getattr(pipeline, name) is not None for name in STAGES]
        for name in STAGES:
            if name not in self.rule.hyper and not (name == "loss_scale" and pipeline.dynamic):
                setattr(pipeline, name, values.get(name))
        groups = regrouped(self._bound().network.trained_specs, self._groups, held.get("groups", ()))
        if groups is not None:
            self._groups = groups
        if groups is not None or requested != [getattr(pipeline, name) is not None for name in STAGES]:
            self._regroup()

    def _regroup(self) -> None:
        self.train_step.regroup(tuple(self._groups), self.pipeline)


def _nothing() -> None:
    """The default of `cancel`, for a step that changes nothing before its update."""


def as_step_optimizer(optimizer: UpdateRule | StepOptimizer, *, loss: str = "loss") -> StepOptimizer:
    """A step optimizer unchanged, an update rule wrapped.

    Raises:
        UsageError: The argument is neither.
    """
    if isinstance(optimizer, UpdateRule):
        return RuleOptimizer(optimizer, loss=loss)
    if isinstance(optimizer, StepOptimizer):
        return optimizer
    raise UsageError(
        f"got {optimizer!r} as optimizer; allowed: a d5.UpdateRule, or an object with bind, step, state_dict and "
        "load_state_dict"
    )
