"""Checks whether a candidate can run at all: its files exist and run, and its framework is installed."""

from __future__ import annotations

import importlib.util

from deep5.compare.training import of_reference
from deep5.core.errors import Deep5Error, RecipeError
from deep5.core.plugins import load, missing_dependency
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe
from deep5.run.assemble_executor import executor_factory
from deep5.run.assemble_optimizer import make_optimizer
from deep5.run.check import check_recipe

__all__ = ["check_candidate"]


def check_candidate(recipe: Recipe, kind: str, framework: str) -> None:
    """Reject components that do not exist, cannot run, or are of the wrong type; loads no registered framework.

    Args:
        recipe: As a candidate runs it.
        kind: One of `deep5.compare.candidate.KINDS`.
        framework: The candidate's, mode included.

    Raises:
        UsageError: For the first such component.
    """
    check_recipe(recipe)
    if kind == "training":
        make_optimizer(
            recipe_parts(of_reference(recipe)), "reference"
        )  # the proof compares the candidate's own with it
    if ".py:" in framework:
        _check_file(recipe, framework)
        return
    for package in load("frameworks", framework.partition(":")[0]).requires:
        if importlib.util.find_spec(package) is None:
            missing = ModuleNotFoundError(name=package)
            raise missing_dependency(f"framework {framework!r}", missing) from missing


def _check_file(recipe: Recipe, name: str) -> None:
    try:
        executor_factory(recipe_parts(recipe))
    except Deep5Error:
        raise
    except Exception as error:  # a user's class may raise anything
        raise RecipeError(
            f"the framework {name} raised {type(error).__name__} while it was made: {error}; allowed: a "
            "d5.Framework or its class"
        ) from error
