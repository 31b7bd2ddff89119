"""`check_recipe`: check whether a recipe can run, without running it."""

from __future__ import annotations

from deep5.recipe.experiment import Experiment
from deep5.recipe.recipe import Recipe
from deep5.run.choice import workload_of

__all__ = ["check_recipe"]


def check_recipe(recipe: Recipe) -> list[str]:
    """Check that a valid recipe's components exist and accept their arguments.

    It loads no framework by name and builds nothing. It runs an update rule that the recipe defines itself under
    `array_api_strict` and checks it against its contract.

    Args:
        recipe: At the size and with the settings of the run.

    Returns:
        Notes on checks beyond names and arguments.

    Raises:
        RecipeError: A component cannot be found, does not accept its arguments, or breaks its contract; or FIXED holds
            a value that cannot be hashed.
    """
    return workload_of(Experiment.of(recipe)).check()
