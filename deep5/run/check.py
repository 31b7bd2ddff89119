"""`check_recipe`: whether a recipe could run, found out without running it."""

from __future__ import annotations

from deep5.recipe.experiment import Experiment
from deep5.recipe.recipe import Recipe
from deep5.run.choice import workload_of

__all__ = ["check_recipe"]


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
    return workload_of(Experiment.of(recipe)).check()
