"""Tracing: runs an update rule once on symbols, which record its operations as an expression graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.arguments import is_finite
from deep5.core.errors import RecipeError, RuleError, contained, described
from deep5.core.events import StepInfo
from deep5.training.expression import Expr, ShapeNeeded, lift, topological
from deep5.training.frozen_value import frozen
from deep5.training.hyper_ranges import hyper_fault
from deep5.training.pipeline import Stages
from deep5.training.purity import check_inputs, traced_twice
from deep5.training.reads import Reads, own_attributes
from deep5.training.refusals import TraceError, refusals
from deep5.training.rule import UpdateRule
from deep5.training.rule_namespace import NAMESPACE

__all__ = ["TracedRule", "trace_rule", "traced_once"]


@dataclass(frozen=True, kw_only=True)
class TracedRule:
    """The result of tracing a rule.

    Attributes:
        hyper: Hyperparameters, in the kernel's order.
        inputs: Names that `new_input` returns, likewise.
        shape: The parameter's shape; None if the trace is for all shapes.
        states: Initial value of every state by name; an element expression, or a scalar one for a state of shape ().
        arrays: Names of the states of the parameter's shape.
        scalars: Names of the states of shape ().
        sums: The expression of each sum.
        prepare: The gradient's point, or None if it is the parameter itself.
        param: The new parameter.
        new_states: The new states.
        evaluate: The value for evaluation, or None if it is the parameter itself.
        stages: Numbers of the gradient pipeline, after `inputs` in the kernel's order.
        norm: The gradient whose norm over the model is clipped, or None.
        overflow: An expression that is zero for finite elements of a gradient, otherwise NaN.
        given: Names of all numbers of a step, in the kernel's order.
        reads: What else the rule has read, which is constant in its step; set after the trace.
    """

    hyper: tuple[str, ...]
    inputs: tuple[str, ...]
    shape: tuple[int, ...] | None
    states: dict[str, Expr]
    arrays: tuple[str, ...]
    scalars: tuple[str, ...]
    sums: dict[str, Expr]
    prepare: Expr | None
    param: Expr
    new_states: dict[str, Expr]
    evaluate: Expr | None
    stages: tuple[str, ...]
    norm: Expr | None
    overflow: Expr | None
    given: tuple[str, ...]
    reads: Reads | None = None

    def numbers(self, rule: UpdateRule, info: StepInfo) -> list[float]:
        """The numbers of a step: the current hyperparameters, and the results of `new_input`.

        Raises:
            RuleError: Names other than those traced, values that are not numbers, or a hyperparameter that is not
                finite.
        """
        values = [getattr(rule, name) for name in self.hyper]
        try:
            if not all(map(math.isfinite, values)):
                got = ", ".join(f"{name}={value!r}" for name, value in zip(self.hyper, values, strict=True))
                raise RuleError(f"{type(rule).__name__} at step {info.step}: got {got}; allowed: finite numbers")
            if self.inputs:
                extra = rule.new_input(info)
                more = [extra[name] for name in self.inputs]
                list(map(math.isnan, more))  # raises unless all are numbers
                values += more
        except (KeyError, TypeError, OverflowError) as error:
            names = ", ".join((*self.hyper, *self.inputs))
            raise RuleError(
                f"{type(rule).__name__} at step {info.step}: {type(error).__name__}: {error}; allowed: numbers named "
                f"{names}, the same at every step"
            ) from error
        return values

    def roots(self) -> list[Expr]:
        """All expressions that a kernel computes."""
        points = (self.prepare, self.param, self.evaluate, self.norm, self.overflow)
        found = [*self.states.values(), *self.sums.values(), *self.new_states.values()]
        return found + [point for point in points if point is not None]


def trace_rule(rule: UpdateRule, stages: Stages | None = None, shape: tuple[int, ...] | None = None) -> TracedRule:
    """Run a rule on symbols, twice, to see that it computes the same whenever it is called.

    Args:
        rule: The rule.
        stages: Of the surrounding gradient pipeline: the rule sees the gradient after these stages.
        shape: The parameter's shape; None: the trace is for all shapes.

    Raises:
        ShapeNeeded: `shape` is None, and the rule depends on the parameter's shape.
        RuleError: The rule violates the contract of `UpdateRule`; the message states how. Among others, its two traces
            differ.
    """
    name = type(rule).__name__
    if not isinstance(rule, UpdateRule):
        raise RuleError(f"got {rule!r} as an update rule; allowed: an instance of a subclass of d5.UpdateRule")
    if rule.scope not in ("element", "tensor", "model"):
        raise RuleError(f"{name}.scope is {rule.scope!r}; allowed: 'element', 'tensor', 'model'")
    _check_attributes(rule, name)
    inputs = _host_inputs(rule, name)
    return traced_twice(rule, lambda bound: _traced(bound, rule.hyper, inputs, stages or Stages(), shape))


def traced_once(bound: UpdateRule, like: TracedRule, stages: Stages, shape: tuple[int, ...] | None) -> TracedRule:
    """A trace to compare with an earlier one.

    Args:
        bound: A copy of the rule, whose attributes are replaced by symbols.
        like: The earlier trace, of the same hyperparameters and inputs.
        stages: As for `trace_rule`.
        shape: As for `trace_rule`.

    Raises:
        RuleError: The rule cannot be traced.
    """
    return _traced(bound, like.hyper, like.inputs, stages, shape)


def _traced(
    bound: UpdateRule, hyper: tuple[str, ...], inputs: tuple[str, ...], stages: Stages, shape: tuple[int, ...] | None
) -> TracedRule:
    """One trace of a copy of a rule, whose attributes it replaces by symbols."""
    name = type(bound).__name__
    for attribute in (*hyper, *inputs):
        object.__setattr__(bound, attribute, Expr("input", (attribute,), element=False))
    raw = Expr("load", ("grad",), element=True, shape=shape)
    param = Expr("load", ("param",), element=True, shape=shape)

    initial = _states(_mapping(_call(bound, "init_state", param), name, "init_state"), name, "init_state", shape)
    state = {
        key: Expr("load", (f"state:{key}",), element=True, shape=value.dimensions)
        if value.element
        else Expr("input", (f"state:{key}",), element=False)
        for key, value in initial.items()
    }
    # Nothing of an empty parameter can change, and a mean of it is undefined: its states stay as they begin.
    empty = shape is not None and 0 in shape
    # A rule that modifies its state argument would work here and fail on arrays: pass copies.
    prepared = param if empty else _call(bound, "prepare_param", param, dict(state))
    point = None if prepared is param else _element(prepared, name, "prepare_param", shape)
    grad, norm = _conditioned(raw, stages)
    if "coupled_weight_decay" in stages.names:
        grad = grad + _stage("coupled_weight_decay") * (param if point is None else point)
    sums = _sums(_mapping(_call(bound, "sums", grad, param, dict(state)), name, "sums"), bound, name)
    for attribute in sums:
        if attribute in (*hyper, *inputs):
            raise RuleError(f"{name}.sums returned {attribute!r}, which has another meaning; remedy: another name")
        object.__setattr__(bound, attribute, Expr("input", (f"sum:{attribute}",), element=False))
    result = (param, state) if empty else _call(bound, "update_rule", grad, param, dict(state))
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuleError(f"{name}.update_rule returned {type(result).__name__}; allowed: the pair (param, state)")
    new_state = _mapping(result[1], name, "update_rule")
    if new_state.keys() != initial.keys():
        raise RuleError(
            f"{name}.update_rule returned the states {sorted(new_state)}; allowed: those of init_state, "
            f"{sorted(initial)}"
        )
    new_states = _states(new_state, name, "update_rule", shape)
    for key, value in new_states.items():
        new_states[key] = _as_before(value, initial[key], f"{name}.update_rule made the state {key!r}")
    evaluated = param if empty else _call(bound, "eval_param", param, dict(state))
    shown = None if evaluated is param else _element(evaluated, name, "eval_param", shape)
    _check_evaluated(evaluated, name, inputs, sums)
    new_param = _element(result[0], name, "update_rule", shape)
    if "weight_decay" in stages.names:
        rate = object.__getattribute__(bound, "lr")
        new_param = new_param - (rate * _stage("weight_decay")) * param
    traced = TracedRule(
        hyper=tuple(hyper),
        inputs=inputs,
        shape=shape,
        states=initial,
        arrays=tuple(key for key, value in initial.items() if value.element),
        scalars=tuple(key for key, value in initial.items() if not value.element),
        sums=sums,
        prepare=point,
        param=new_param,
        new_states=new_states,
        evaluate=shown,
        stages=stages.names,
        norm=norm,
        overflow=raw - raw if "loss_scale" in stages.names else None,
        given=(*hyper, *inputs, *(f"stage:{stage}" for stage in stages.names)),
    )
    if any(node.op == "sum" for node in topological(traced.roots())):
        raise RuleError(
            f"{name} used xp.sum outside of 'sums'; remedy: return it from sums(self, grad, param, state) under a "
            "name, declare the scope, and read it as self.<name>"
        )
    return traced


def _as_before(value: Expr, initial: Expr, what: str) -> Expr:
    """A new state in the form of the initial one."""
    if value.element and not initial.element:
        raise RuleError(f"{what} an array; init_state gave it the shape ()")
    if value.element and value.dimensions != initial.dimensions:
        raise RuleError(f"{what} an array of shape {value.dimensions}; init_state gave it {initial.dimensions}")
    if initial.element and not value.element and initial.dimensions is not None:
        return Expr("broadcast", (value,), element=True, shape=initial.dimensions)
    return value


def _conditioned(raw: Expr, stages: Stages) -> tuple[Expr, Expr | None]:
    """The gradient that a rule sees, and the one whose norm is clipped; see `GradientPipeline`."""
    grad, xp = raw, NAMESPACE
    if "loss_scale" in stages.names and stages.fused:
        grad = grad * (1.0 / _stage("loss_scale"))
    if "clip_value" in stages.names:
        grad = xp.clip(grad, -_stage("clip_value"), _stage("clip_value"))
    if "clip_norm" not in stages.names:
        return grad, None
    # A NaN norm makes the factor, and everything after it, NaN.
    norm = xp.sqrt(Expr("input", ("total:norm",), element=False))
    return grad * xp.minimum(_stage("clip_norm") / norm, 1.0), grad


def _stage(name: str) -> Expr:
    return Expr("input", (f"stage:{name}",), element=False)


def _call(bound: UpdateRule, method: str, *args: Any) -> Any:
    """Call a method on symbols; convert any exception, and an assigned attribute, to a `RuleError`."""
    name, before = type(bound).__name__, dict(own_attributes(bound))
    try:
        with refusals() as caught, contained():
            result = getattr(bound, method)(*args)
        if caught:  # and the rule went another way
            raise caught[0]
    except RuleError:
        raise
    except RecipeError as error:
        raise RuleError(f"{name}.{method}: {error}") from error
    except Exception as error:
        raise RuleError(
            f"{name}.{method} cannot be traced: {described(error)}; allowed: operators and the functions "
            "of xp = d5.array_namespace(param), and the states that init_state returned"
        ) from error
    _check_unchanged(bound, before, method)
    return result


def _check_unchanged(rule: UpdateRule, before: Mapping[str, Any], method: str) -> None:
    now = own_attributes(rule)
    changed = [key for key, value in now.items() if key not in before or before[key] is not value]
    if changed:
        raise RuleError(
            f"{type(rule).__name__}.{method} assigned self.{changed[0]}; allowed: nothing, rules are pure; remedy: a "
            "state from init_state, or info.step in new_input"
        )


def _check_attributes(rule: UpdateRule, name: str) -> None:
    if not isinstance(rule.hyper, tuple):
        raise RuleError(f"{name}.hyper is {rule.hyper!r}; allowed: a tuple of names, such as ('lr',)")
    for attribute in rule.hyper:
        value = getattr(rule, attribute, None)
        if frozen(value) != frozen(getattr(rule, attribute, None)):
            raise RuleError(f"the hyperparameter {name}.{attribute} is another number each time; allowed: a number")
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise RuleError(f"the hyperparameter {name}.{attribute} is {value!r}; allowed: a number")
        if not is_finite(value):  # the first step would make every parameter NaN
            raise RuleError(f"the hyperparameter {name}.{attribute} is {value!r}; allowed: a finite number")
        if allowed := hyper_fault(rule, attribute, float(value)):
            raise RuleError(f"the hyperparameter {name}.{attribute} is {value!r}; allowed: {allowed}")
    attributes = {key: value for base in reversed(type(rule).__mro__) for key, value in vars(base).items()} | vars(rule)
    for attribute, value in attributes.items():
        if attribute.startswith("__") or attribute in rule.hyper:
            continue
        if isinstance(value, (float, np.floating)):
            raise RuleError(
                f"the attribute {name}.{attribute} is a float that 'hyper' does not name, so it would be baked into "
                f"the compiled step; remedy: hyper = {(*rule.hyper, attribute)!r}"
            )
        if _holds_floats(value):
            raise RuleError(
                f"the attribute {name}.{attribute} holds floats ({value!r}), which would be baked into the compiled "
                "step; remedy: an attribute a number, each named in 'hyper'"
            )


def _holds_floats(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(isinstance(part, (float, np.floating)) or _holds_floats(part) for part in value)
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _host_inputs(rule: UpdateRule, name: str) -> tuple[str, ...]:
    before = dict(vars(rule))
    given = _mapping(rule.new_input(StepInfo(batch_size=1)), name, "new_input")
    _check_unchanged(rule, before, "new_input")
    for key, value in given.items():
        if key in rule.hyper:
            raise RuleError(f"{name}.new_input returned {key!r}, which is a hyperparameter; remedy: another name")
        try:
            float(value)
        except (TypeError, ValueError):
            raise RuleError(f"{name}.new_input returned {value!r} as {key!r}; allowed: a number") from None
    if given:
        check_inputs(rule)
    return tuple(given)


def _check_evaluated(value: Any, name: str, inputs: Collection[str], sums: Collection[str]) -> None:
    """Reject values that are known only within a step: evaluation comes after it, and after a resume, too."""
    own = {**{key: (key, "new_input") for key in inputs}, **{f"sum:{key}": (key, "sums") for key in sums}}
    for node in topological([lift(value)]):
        if node.op == "input" and node.args[0] in own:
            attribute, method = own[node.args[0]]
            raise RuleError(
                f"{name}.eval_param reads self.{attribute}, which {method} gives only to a step; allowed: "
                "hyperparameters and states; remedy: keep it in a state of shape ()"
            )


def _sums(given: Mapping[str, Any], rule: UpdateRule, name: str) -> dict[str, Expr]:
    if given and rule.scope == "element":
        raise RuleError(
            f"{name}.sums returned {sorted(given)} but its scope is 'element'; allowed: 'tensor' or 'model'"
        )
    return {key: _summed(value, f"{name}.sums returned {key!r}") for key, value in given.items()}


def _summed(value: Any, what: str) -> Expr:
    """The operand of a sum over all elements."""
    inner = value
    if isinstance(value, Expr) and value.op == "item":  # traced with shapes
        inner = value.args[0]
        whole = inner.op == "reduce_sum" and len(inner.args[1]) == len(inner.args[0].shape)
    else:
        whole = isinstance(value, Expr) and value.op == "sum"
    if not whole:
        raise RuleError(f"{what}, which is not a sum; allowed: xp.sum(expression) itself")
    found: Expr = inner.args[0]
    return found


def _states(given: Mapping[str, Any], name: str, method: str, shape: tuple[int, ...] | None) -> dict[str, Expr]:
    states = {key: lift(value) for key, value in given.items()}
    for key, value in states.items():
        _check_mode(value, shape)
        if value.boolean:
            raise RuleError(f"{name}.{method} made the state {key!r} a truth value; allowed: an array of numbers")
    return states


def _mapping(value: Any, name: str, method: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key.isidentifier() for key in value):
        raise RuleError(f"{name}.{method} returned {value!r}; allowed: a dict whose keys are identifiers")
    return value


def _check_mode(value: Expr, shape: tuple[int, ...] | None) -> None:
    if shape is None and value.element and value.dimensions is not None:
        raise ShapeNeeded("an update rule made an array of another shape than the parameter's")


def _element(value: Any, name: str, method: str, shape: tuple[int, ...] | None) -> Expr:
    try:
        expression = lift(value)
    except TraceError:
        raise RuleError(
            f"{name}.{method} returned {type(value).__name__} as parameter; allowed: an array of the parameter's shape"
        ) from None
    if expression.boolean:
        raise RuleError(
            f"{name}.{method} returned a truth value as parameter; allowed: an array of the parameter's shape"
        )
    _check_mode(expression, shape)
    if not expression.element:
        return Expr("broadcast", (expression,), element=True, shape=shape)
    if expression.dimensions != shape:
        raise RuleError(
            f"{name}.{method} returned an array of shape {expression.dimensions} for a parameter of shape {shape}; "
            "allowed: an array of the parameter's shape"
        )
    return expression
