"""Check whether candidates can run at all: their files exist and run, and their frameworks are installed."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deep5.compare.candidate import Candidate, Plan
from deep5.compare.processes import run_process
from deep5.compare.request import request_of
from deep5.compare.training import of_reference
from deep5.core.errors import Deep5Error, OutputError, RecipeError
from deep5.core.plugins import load, missing_dependency
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe
from deep5.recipe.registered import registered_recipe
from deep5.run.assemble_executor import executor_factory
from deep5.run.assemble_optimizer import make_optimizer
from deep5.run.check import check_recipe

__all__ = ["check_able", "check_candidate"]

# Time limit for importing a file; a slower one is left to the proof, which has the user's limit.
_LIMIT_S = 60.0


def check_able(plan: Plan, recipes: Mapping[str, Recipe]) -> float:
    """Reject candidates that cannot run, before anything is proved.

    Args:
        plan: The comparison as declared.
        recipes: By label, the recipe as each candidate runs it.

    Returns:
        Seconds spent in separate processes.

    Raises:
        UsageError: For the first candidate that cannot run.
    """
    spent_s = 0.0
    # One candidate per group and one per framework represent the others.
    groups = {candidate.group: candidate for candidate in plan.candidates}
    frameworks = {candidate.framework: candidate for candidate in plan.candidates}
    for candidate in {own.label: own for own in (*groups.values(), *frameworks.values())}.values():
        if registered_recipe(plan.recipe) is None or any(".py:" in text for text in candidate.texts):
            spent_s += _check_apart(plan, recipes[candidate.label], candidate)
        else:
            check_candidate(recipes[candidate.label], plan.kind, candidate.framework)
    return spent_s


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


def _check_apart(plan: Plan, recipe: Recipe, candidate: Candidate) -> float:
    """Run the content of a user's file in a separate process, so that its settings and imports affect no other
    candidate."""
    try:
        with tempfile.TemporaryDirectory(prefix="deep5-compare-") as scratch:
            outcome = run_process(
                request_of(plan, recipe, candidate, "check", framework=candidate.framework),
                Path(scratch),
                threads=plan.threads,
                time_limit_s=min(_LIMIT_S, plan.time_limit_s),
                memory_limit_bytes=plan.memory_limit_bytes,
            )
    except OSError as error:
        raise OutputError(f"the comparison cannot start: {error}") from error
    # A crash or hang is not a usage error: the proof reports it, and the other candidates continue.
    if outcome.answer is not None and outcome.reason is not None:
        raise RecipeError(outcome.reason)
    return outcome.wall_s


def _check_file(recipe: Recipe, name: str) -> None:
    try:
        executor_factory(recipe_parts(recipe))
    except Deep5Error:
        raise
    except Exception as error:  # a user's class may raise anything
        raise RecipeError(
            f"the framework {name} raised {type(error).__name__} when it was constructed: {error}; allowed: a "
            "d5.Framework or its class"
        ) from error
