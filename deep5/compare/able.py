"""Whether a candidate could run at all: its files are there and can be run, its framework is installed."""

from __future__ import annotations

import importlib.metadata

from deep5.assemble import make_optimizer
from deep5.assemble_executor import executor_factory
from deep5.check import check_recipe
from deep5.compare.training import of_reference
from deep5.errors import Deep5Error, RecipeError
from deep5.plugins import load, missing_dependency
from deep5.recipe import Recipe

__all__ = ["check_components", "check_framework"]


def check_components(recipe: Recipe, kind: str) -> None:
    """Refuse components that are not there, cannot be run, or are something else.

    Args:
        recipe: As a candidate runs it.
        kind: One of `deep5.compare.plan.KINDS`.

    Raises:
        UsageError: The first of them.
    """
    check_recipe(recipe)
    if kind == "training":
        make_optimizer(of_reference(recipe), "reference")  # what the proof holds the candidate's own against


def check_framework(recipe: Recipe, name: str) -> None:
    """Refuse a framework that is not installed, or one in a file that is none; no registered one's library is loaded.

    Args:
        recipe: As a candidate runs it.
        name: Of the candidate's framework, mode included.

    Raises:
        UsageError: It could not run.
    """
    if ".py:" in name:
        _check_file(recipe, name)
        return
    for package in load("frameworks", name.partition(":")[0]).requires:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            missing = ModuleNotFoundError(name=package)
            raise missing_dependency(f"framework {name!r}", missing) from error


def _check_file(recipe: Recipe, name: str) -> None:
    try:
        executor_factory(recipe)
    except Deep5Error:
        raise
    except Exception as error:  # whatever a user's own class raises
        raise RecipeError(
            f"the framework {name} raised {type(error).__name__} while it was made: {error}; allowed: a "
            "d5.Framework or its class"
        ) from error
