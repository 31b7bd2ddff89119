"""`check_recipe`: check whether a recipe can run, without running it."""

from __future__ import annotations

from deep5.core.errors import RecipeError, UsageError
from deep5.recipe.experiment import Experiment, recipe_parts
from deep5.recipe.recipe import FULL, Recipe
from deep5.run.choice import workload_of

__all__ = ["check_recipe"]


def check_recipe(recipe: Recipe) -> list[str]:
    """Check that a valid recipe's components exist and accept their arguments.

    It loads no framework by name and builds nothing. It runs an update rule that the recipe defines itself under
    `array_api_strict` and checks it against its contract. Of a recipe as its file states it, the components at all
    sizes and of all candidates of its STUDY must accept their arguments, too.

    Args:
        recipe: At the size and with the settings of the run.

    Returns:
        Notes on checks beyond names and arguments.

    Raises:
        RecipeError: A component cannot be found, does not accept its arguments, or breaks its contract; or FIXED holds
            a value that cannot be hashed.
    """
    workload = workload_of(Experiment.of(recipe))
    notes = workload.check()
    if recipe.size != FULL or recipe.settings:
        return notes
    for size in recipe.sizes:
        workload.check_arguments(recipe_parts(recipe.at_size(size)))
    for name, own in (recipe.study or {}).items():
        try:
            workload.check_arguments(recipe_parts(recipe.with_settings(own)))
        except UsageError as error:
            raise RecipeError(f"{recipe.lines.at('STUDY', name)}the candidate {name!r}: {error}") from error
    return notes
