"""Eager evaluation of an update rule: the semantics that kernels and compiled steps must reproduce."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays, array_namespace, to_numpy
from deep5.training.rule import UpdateRule

__all__ = ["EagerRule"]

_ARGUMENTS = {
    "init_state": ("param",),
    "prepare_param": ("param", "state"),
    "sums": ("grad", "param", "state"),
    "update_rule": ("grad", "param", "state"),
    "eval_param": ("param", "state"),
}


class EagerRule:
    """A rule applied to parameters of any library with an array namespace. Slow; checks every call.

    Args:
        rule: Its hyperparameters are read at every step.
        parameters: Arrays of one library and one dtype, by name; they are not changed.

    Raises:
        RuleError: A method fails, modifies its arguments, or returns another shape, dtype or set of states.

    Attributes:
        parameters: The parameters after the last step.
        states: The states of each parameter after the last step.
    """

    def __init__(self, rule: UpdateRule, parameters: Arrays) -> None:
        self.rule, self.parameters = rule, dict(parameters)
        self._xp, self._name = array_namespace(*parameters.values()), type(rule).__name__
        self._dtype = next(iter(parameters.values())).dtype
        bound = self._bound(StepInfo(batch_size=1))
        self.states: dict[str, dict[str, Array]] = {
            name: dict(self._call(bound, "init_state", param)) for name, param in parameters.items()
        }
        for states in self.states.values():
            for key, value in states.items():
                if getattr(value, "dtype", None) != self._dtype:
                    got = getattr(value, "dtype", type(value).__name__)
                    raise RuleError(f"{self._name}.init_state made the state {key!r} {got}; allowed: {self._dtype}")

    def prepare(self, info: StepInfo) -> dict[str, Array]:
        """The points for the gradients, by name."""
        bound = self._bound(info)
        return {
            name: self._like("prepare_param", self._call(bound, "prepare_param", param, self.states[name]), param)
            for name, param in self.parameters.items()
        }

    def update(self, gradients: Arrays, info: StepInfo) -> None:
        """One step: the sums over the rule's scope, then the update of each parameter."""
        bound = self._bound(info)
        sums = {
            name: dict(self._call(bound, "sums", gradients[name], param, self.states[name]))
            for name, param in self.parameters.items()
        }
        if self.rule.scope == "model":
            first, *others = sums.values()
            total = {key: sum((other[key] for other in others), start=value) for key, value in first.items()}
            sums = dict.fromkeys(sums, total)
        updated = {name: self._updated(bound, name, gradients[name], sums[name]) for name in self.parameters}
        self.parameters = {name: param for name, (param, _) in updated.items()}
        self.states = {name: states for name, (_, states) in updated.items()}

    def evaluated(self) -> dict[str, Array]:
        """The values for evaluation, by name."""
        bound = self._bound(None)
        return {
            name: self._like("eval_param", self._call(bound, "eval_param", param, self.states[name]), param)
            for name, param in self.parameters.items()
        }

    def _bound(self, info: StepInfo | None) -> UpdateRule:
        """A copy of the rule whose hyperparameters and, in a step, inputs are arrays of shape ()."""
        bound = copy.copy(self.rule)
        scalars = {name: getattr(self.rule, name) for name in self.rule.hyper}
        scalars |= {} if info is None else dict(self.rule.new_input(info))
        for name, value in scalars.items():
            object.__setattr__(bound, name, self._xp.asarray(float(value), dtype=self._dtype))
        return bound

    def _updated(self, bound: UpdateRule, name: str, gradient: Array, sums: Arrays) -> tuple[Array, dict[str, Array]]:
        own = copy.copy(bound)
        for key, value in sums.items():
            object.__setattr__(own, key, value)
        param, states = self._call(own, "update_rule", gradient, self.parameters[name], self.states[name])
        before = self.states[name]
        if states.keys() != before.keys():
            raise RuleError(
                f"{self._name}.update_rule returned the states {sorted(states)}; allowed: those of init_state, "
                f"{sorted(before)}"
            )
        kept = {
            key: self._like("update_rule", value, before[key], f"the state {key!r}") for key, value in states.items()
        }
        return self._like("update_rule", param, self.parameters[name]), kept

    def _like(self, method: str, value: Array, wanted: Array, what: str = "the parameter") -> Array:
        if getattr(value, "dtype", None) != wanted.dtype or tuple(value.shape) != tuple(wanted.shape):
            got = f"{value.dtype}{tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
            raise RuleError(
                f"{self._name}.{method} returned {what} as {got}; allowed: {wanted.dtype}{tuple(wanted.shape)}; "
                "remedy: xp.full_like(param, value) for what is the same everywhere"
            )
        return value

    def _call(self, bound: UpdateRule, method: str, *args: Any) -> Any:
        given = [dict(arg) if isinstance(arg, Mapping) else arg for arg in args]
        before, attributes = [_copied(arg) for arg in args], dict(vars(bound))
        try:
            result = getattr(bound, method)(*given)
        except Exception as error:
            raise RuleError(
                f"{self._name}.{method} fails on arrays of {self._xp.__name__}: {type(error).__name__}: {error}; "
                f"allowed: operators and the functions of xp = d5.array_namespace(param){_also(method)}"
            ) from error
        for argument, after, was in zip(_ARGUMENTS[method], given, before, strict=True):
            if not _same(after, was):
                raise RuleError(
                    f"{self._name}.{method} changed its argument '{argument}' in place; allowed: new arrays, rules are "
                    "pure; remedy: x = x * y instead of x *= y, and a new dictionary of states"
                )
        if any(attributes.get(key) is not value for key, value in vars(bound).items()):
            raise RuleError(f"{self._name}.{method} assigned an attribute; allowed: nothing, rules are pure")
        return result


def _also(method: str) -> str:
    if method != "eval_param":
        return ""
    return ", hyperparameters and states; remedy: keep what new_input and sums give in a state of shape ()"


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    return np.array(to_numpy(value), copy=True)


def _same(value: Any, before: Any) -> bool:
    if isinstance(value, Mapping):
        return value.keys() == before.keys() and all(_same(part, before[key]) for key, part in value.items())
    return np.array_equal(to_numpy(value), before, equal_nan=True)
