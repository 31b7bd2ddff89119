"""`check_recipe`: whether a recipe could run, found out without running it."""

from __future__ import annotations

from deep5.core.errors import RecipeError, RuleError, UsageError
from deep5.core.plugins import registered
from deep5.recipe.components import (
    check_arguments,
    check_candidates,
    component,
    components_of,
    make,
    schedule_components,
)
from deep5.recipe.recipe import Recipe
from deep5.run.assemble import initial_weights

__all__ = ["check_recipe"]

_TRAINED = {
    "model": "networks",
    "dataset": "datasets",
    "train_sampler": "samplers",
    "validation_sampler": "samplers",
    "optimizer": "optimizers",
    "executor": "frameworks",
    "gradient_modifier": "gradient_modifiers",
}
# What may be named in a file and is no component that takes arguments.
_IN_FILES = ("batch_size", "parameter_groups", "framework")
_LISTED = {"events": "events", "train_transforms": "transforms", "test_transforms": "transforms"}
# Named components of these kinds that deep5 ships load no framework; others are looked up, not loaded.
_LIGHT = {"networks", "datasets", "samplers", "optimizers"}
# What the runner itself hands to a component: so many arguments before the recipe's own, and these by name.
_GIVEN = {"train_sampler": 2, "validation_sampler": 2, "executor": 1}
_BY_NAME = dict.fromkeys(("seed", "device"))


def check_recipe(recipe: Recipe) -> list[str]:
    """Check that a valid recipe's components exist and take the arguments that it gives them.

    No framework is loaded by a name, and nothing is built. An update rule that the recipe brings itself is run under
    `array_api_strict` and checked against its contract.

    Args:
        recipe: At the size and with the settings to be run.

    Returns:
        Notes on what was checked beyond names and arguments.

    Raises:
        RecipeError: A component cannot be found, does not take its arguments, or breaks its contract; or FIXED holds
            what cannot be hashed.
    """
    recipe.describe()  # what cannot be hashed is refused here, not after the run
    if recipe.operators:
        from deep5.bench.record import check_operators

        return check_operators(recipe)
    if recipe.timing:
        check_candidates(recipe, ranks=recipe.ranks is not None)
        return _ranks(recipe)
    if recipe.collectives:
        from deep5.bench.collective.recipe import check_collectives

        return [*check_collectives(recipe), *_ranks(recipe)]
    for key, kind in _TRAINED.items():
        value = recipe.value(key)
        if value is None or (isinstance(value, str) and not _light(kind, value)):
            continue
        check_arguments(recipe, key, component(recipe, key, kind), *(None,) * _GIVEN.get(key, 0), **_BY_NAME)
    for key in _IN_FILES:
        if isinstance(value := recipe.value(key), str) and ".py:" in value:
            component(recipe, key, _TRAINED.get(key, key))
    initial_weights(recipe)
    for key, kind in _LISTED.items():
        for made in components_of(recipe, key, kind):
            if kind == "events" or isinstance(made, type):
                check_arguments(recipe, key, made)
    schedule_components(recipe)
    return [*_ranks(recipe), *_check_rule(recipe)]


def _ranks(recipe: Recipe) -> list[str]:
    ranks, launcher = recipe.ranks, recipe.value("launcher")
    return [] if ranks is None or ranks == 1 else [f"it runs as {ranks} ranks, which {launcher} starts"]


def _light(kind: str, name: str) -> bool:
    """Whether a name may be loaded to look at its signature."""
    point = registered(kind).get(name) if kind in _LIGHT else None
    return ".py:" in name or (point is not None and point.value.startswith("deep5."))


def _check_rule(recipe: Recipe) -> list[str]:
    """Run an update rule of the recipe's own; those that deep5 ships are held to it by deep5's tests."""
    value = recipe.value("optimizer")
    if isinstance(value, str) and ".py:" not in value:
        return []
    made = component(recipe, "optimizer", "optimizers")
    kind = made if isinstance(made, type) else type(made)
    from deep5.training.rule import UpdateRule

    if kind.__module__.startswith("deep5.") or not issubclass(kind, UpdateRule):
        return []
    from deep5.training.check import check_optimizer

    try:
        check_optimizer(make(recipe, "optimizer", made))
    except RuleError as error:
        raise RecipeError(f"{recipe.where('optimizer')}{error}") from error
    except UsageError:
        raise
    except Exception as error:
        raise RecipeError(
            f"{recipe.where('optimizer')}{kind.__name__} raised {type(error).__name__} while it was checked: {error}; "
            "remedy: --debug shows where"
        ) from error
    return [f"{kind.__name__} keeps the contract of an update rule (also under array_api_strict)"]
