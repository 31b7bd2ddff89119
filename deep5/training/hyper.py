"""Hyperparameters of any optimizer, by name: schedules set them and loggers read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UnknownName, UsageError
from deep5.training.rule import UpdateRule

__all__ = ["hyper_reader", "hyper_setter", "hyper_value"]


def hyper_setter(optimizer: Any, name: str) -> Callable[[float], None]:
    """A function that sets a hyperparameter, effective from the next step.

    Args:
        optimizer: A `RuleOptimizer`, or an object with `set_hyper(name, value)`.
        name: The hyperparameter.

    Raises:
        UnknownName: The rule has no such hyperparameter.
        UsageError: The optimizer owns its step and has no `set_hyper`.
    """
    rule, set_hyper = getattr(optimizer, "rule", None), getattr(optimizer, "set_hyper", None)
    if isinstance(rule, UpdateRule) and (name in rule.hyper or not callable(set_hyper)):
        if name not in rule.hyper:
            raise UnknownName(f"hyperparameter of {type(rule).__name__}", name, rule.hyper)
        return partial(setattr, rule, name)
    if not callable(set_hyper):
        raise UsageError(
            f"{type(optimizer).__name__} does not let its hyperparameters be set; allowed: a d5.UpdateRule, a native "
            "optimizer, or one that has set_hyper(name, value)"
        )
    return partial(set_hyper, name)


def hyper_value(optimizer: Any, name: str) -> float | None:
    """The current value of a hyperparameter of a rule or of an optimizer that owns its step; None if unknown."""
    rule = getattr(optimizer, "rule", None)
    value = getattr(rule, name, None) if isinstance(rule, UpdateRule) else None
    if value is None:
        # `hyper` of a native optimizer has the initial values.
        hyper = getattr(optimizer, "hyper_now", None) or getattr(optimizer, "hyper", None)
        value = hyper.get(name) if isinstance(hyper, dict) else None
    return float(value) if value is not None and is_finite(value) else None


def hyper_reader(optimizer: Any, names: Sequence[str], scheduled: Sequence[Any]) -> Callable[[], tuple[Any, ...]]:
    """A function that reads the current values of several hyperparameters in about 1 us; unknown ones are None.

    Args:
        optimizer: The trainer's optimizer.
        names: The hyperparameters.
        scheduled: Events whose `values` are the values that they set.
    """
    rule = getattr(optimizer, "rule", None)
    if not names:
        return tuple
    if isinstance(rule, UpdateRule) and set(names) <= set(rule.hyper):
        read = attrgetter(*names)
        return (lambda: (read(rule),)) if len(names) == 1 else lambda: read(rule)
    readers = [_reader(optimizer, name, scheduled) for name in names]
    return lambda: tuple([read() for read in readers])


def _reader(optimizer: Any, name: str, scheduled: Sequence[Any]) -> Callable[[], Any]:
    rule = getattr(optimizer, "rule", None)
    if isinstance(rule, UpdateRule) and name in rule.hyper:
        return partial(getattr, rule, name)

    def read() -> Any:
        for event in reversed(scheduled):
            if name in event.values:
                return event.values[name]
        return hyper_value(optimizer, name)

    return read
