"""The recipe's optimizer with its gradient processing, and the recipe's events, including its schedules."""

from __future__ import annotations

import copy
import inspect
import math
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, RecipeError, UnknownName
from deep5.core.events import Event
from deep5.core.executors import StepOptimizer
from deep5.core.plugins import framework
from deep5.recipe.part import Part, Parts, where_of

if TYPE_CHECKING:
    from deep5.core.network_spec import NetworkSpec

__all__ = ["events_of", "float16_warnings", "make_optimizer"]


def make_optimizer(parts: Parts, framework_name: str) -> Any:
    """Create the recipe's optimizer.

    Args:
        parts: The recipe's parts, by key.
        framework_name: The framework of a native optimizer.

    Raises:
        RecipeError: It cannot be found or created, or the gradient processing is incompatible with it.
    """
    value = parts["optimizer"].value
    if isinstance(value, str) and value.startswith("native:"):
        try:
            native = framework(framework_name).optimizer(value.removeprefix("native:"))
        except UnknownName as error:
            raise RecipeError(f"{parts['optimizer'].where}{error}") from error
        optimizer = parts["optimizer"].make(native)
    else:
        optimizer = parts["optimizer"].made()
    from deep5.training.optimizer import RuleOptimizer
    from deep5.training.rule import UpdateRule

    if not isinstance(optimizer, (UpdateRule, StepOptimizer)):
        raise parts["optimizer"].not_a(
            optimizer, "a d5.UpdateRule, or an object with bind, step, state_dict and load_state_dict"
        )
    if isinstance(optimizer, UpdateRule):
        # A schedule changes the optimizer, and the recipe may run again.
        optimizer = copy.copy(optimizer)
    given = {name: value for name in _PIPELINE if (value := parts[name].value) not in (None, ())}
    if not given:
        return optimizer
    if not isinstance(optimizer, UpdateRule):
        first = next(iter(given))
        where = where_of(parts[first], parts["optimizer"])
        raise RecipeError(
            f"{where}{first!r} is for an update rule, and {type(optimizer).__name__} owns its step; remedy: an update "
            f"rule ('deep5 list optimizers' shows them), or no {first!r}"
        )
    modifier = _modifier(parts["gradient_modifier"])
    try:
        return RuleOptimizer(
            optimizer,
            groups=_groups(parts["parameter_groups"]),
            modifier=modifier,
            **{name: parts[name].value for name in _NUMBERS},
        )
    except Deep5Error as error:
        raise RecipeError(f"{parts[next(iter(given))].where}{error}") from error


def float16_warnings(network: NetworkSpec, optimizer: Any) -> list[str]:
    """A warning if gradients are computed in float16 without a loss scale; none of an optimizer in the user's code that
    owns its step, which may scale the loss itself.

    Args:
        network: What is trained.
        optimizer: The result of `make_optimizer`.
    """
    from deep5.networks.transforms.mixed_precision import float16_gradients
    from deep5.training.rule import UpdateRule

    by_rule = isinstance(optimizer, UpdateRule) or hasattr(optimizer, "pipeline")
    if getattr(getattr(optimizer, "pipeline", None), "loss_scale", None) is not None:
        return []
    if not by_rule and not type(optimizer).__module__.startswith("deep5."):
        return []
    names = float16_gradients(network)
    if not names:
        return []
    listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    scaled = "loss_scale='dynamic' (--set loss_scale=dynamic)"
    return [
        f"the gradients of {len(names)} of {len(network.trained_specs)} parameters ({listed}) are computed in float16 "
        "without a loss scale: those below 6e-8 become zero; remedy: "
        f"{scaled if by_rule else f'an update rule with {scaled}'}, or bfloat16"
    ]


def _modifier(part: Part) -> Any:
    """The gradient modifier: a function itself, or what a class, or a function with arguments, makes.

    Raises:
        RecipeError: It is not a function of three arguments, or cannot be made.
    """
    found = part.component()
    if isinstance(found, type) or part.args or part.kwargs:
        found = part.make(found)
    allowed = "a function (name, param, grad) -> grad"
    if found is None:
        return None
    if not callable(found):
        raise part.not_a(found, allowed)
    try:
        inspect.signature(found).bind("name", "param", "grad")
    except TypeError as error:
        raise RecipeError(f"{part.where}{part.key!r} cannot be called: {error}; allowed: {allowed}") from error
    except ValueError:  # a compiled function has no signature
        pass
    return found


def _groups(part: Part) -> tuple[Any, ...]:
    groups = part.component()
    if not isinstance(groups, (list, tuple)):
        raise part.not_a(groups, "a list of d5.ParameterGroup")
    return tuple(groups)


# Processing of gradients between the backward pass and the update rule.
_NUMBERS = ("clip_norm", "clip_value", "weight_decay", "coupled_weight_decay", "loss_scale", "master_weights")
_PIPELINE = ("parameter_groups", "gradient_modifier", *_NUMBERS)


def events_of(parts: Parts, optimizer: Any) -> tuple[Event, ...]:
    """The recipe's events, the one that applies its schedules first.

    Raises:
        RecipeError: An event cannot be found or created, or is not an event.
    """
    from deep5.training.checkpointer import Checkpointer

    events: list[Event] = []
    if schedules := parts["schedules"].schedules():
        from deep5.training.hyper_ranges import hyper_fault
        from deep5.training.optimizer import RuleOptimizer
        from deep5.training.rule import UpdateRule

        bound = RuleOptimizer(optimizer) if isinstance(optimizer, UpdateRule) else optimizer
        # An optimizer without a list of its hyperparameters is checked when one is set.
        allowed = getattr(bound, "changeable", None)
        for name in schedules:
            if allowed is not None and name not in allowed:
                unknown = UnknownName(
                    f"hyperparameter of {type(getattr(bound, 'rule', bound)).__name__}", name, allowed
                )
                where = where_of(parts["schedules"], parts["optimizer"])
                raise RecipeError(f"{where}'schedules': {unknown}")
            given = schedules[name]
            number = isinstance(given, (int, float)) and math.isfinite(given)
            if number and (fault := hyper_fault(bound, name, float(given))):
                raise RecipeError(
                    f"{parts['schedules'].where}'schedules': the schedule of {name!r} is {given!r}; allowed: {fault}"
                )
        from deep5.training.schedules import Scheduled

        try:
            # First, so that the other events see the hyperparameters that the step uses.
            events.append(Scheduled(schedules))
        except Deep5Error as error:
            raise RecipeError(f"{parts['schedules'].where}'schedules': {error}") from error
    for made in parts["events"].components():
        event = parts["events"].make(made)
        if not isinstance(event, Event):
            raise parts["events"].not_a(event, "d5.Event objects, their classes or names")
        events.append(event)
    if len(savers := [event for event in events if isinstance(event, Checkpointer)]) > 1:
        raise RecipeError(f"{parts['events'].where}{len(savers)} of 'events' are a Checkpointer; allowed: one")
    return tuple(events)
