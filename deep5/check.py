"""`check_recipe`: whether a recipe could run, found out without running it."""

from __future__ import annotations

import inspect
from typing import Any

from deep5.assemble import check_arguments, component
from deep5.errors import RecipeError, RuleError
from deep5.plugins import registered
from deep5.recipe import Recipe

__all__ = ["check_recipe"]

# What the runner itself hands to a component before the recipe's own arguments.
_GIVEN = {"train_sampler": 2, "validation_sampler": 2}
# Named components of these kinds that deep5 ships load no framework; others are looked up, not loaded.
_LIGHT = {"model": "networks", "dataset": "datasets", "train_sampler": "samplers", "validation_sampler": "samplers",
          "optimizer": "optimizers"}


def check_recipe(recipe: Recipe) -> list[str]:
    """Check that a valid recipe's components exist and take the arguments that it gives them.

    An update rule that the recipe brings itself is run under `array_api_strict` and checked against its contract.

    Args:
        recipe: At the size and with the settings to be run.

    Returns:
        Notes on what was checked beyond names and arguments.

    Raises:
        RecipeError: A component cannot be found, does not take its arguments, or breaks its contract.
    """
    recipe.describe()  # what cannot be hashed is refused here, not after the run
    if recipe.timing:
        return []
    for key, kind in _LIGHT.items():
        value = recipe.value(key)
        if isinstance(value, str) and (value.startswith("native:") or not _ours(kind, value)):
            continue
        made = component(recipe, key, kind)
        if callable(made):
            kwargs = dict(recipe.value(f"{key}_kwargs"))
            check_arguments(recipe, key, made, (None,) * _GIVEN.get(key, 0) + tuple(recipe.value(f"{key}_args")), kwargs)
    return _check_rule(recipe)


def _ours(kind: str, name: str) -> bool:
    point = registered(kind).get(name)
    return ".py:" in name or (point is not None and point.value.startswith("deep5."))


def _check_rule(recipe: Recipe) -> list[str]:
    value = recipe.value("optimizer")
    if isinstance(value, str) and ".py:" not in value:
        return []
    made = component(recipe, "optimizer", "optimizers")
    from deep5.training.rule import UpdateRule

    rule: Any = made
    if isinstance(made, type) and issubclass(made, UpdateRule):
        rule = made(*recipe.value("optimizer_args"), **recipe.value("optimizer_kwargs"))
    if not isinstance(rule, UpdateRule) or inspect.getmodule(type(rule)).__name__.startswith("deep5."):  # type: ignore[union-attr]
        return []
    from deep5.training.check import check_optimizer

    try:
        check_optimizer(rule)
    except RuleError as error:
        raise RecipeError(f"{recipe.where('optimizer')}{error}") from error
    return [f"{type(rule).__name__} keeps the contract of an update rule (also under array_api_strict)"]
