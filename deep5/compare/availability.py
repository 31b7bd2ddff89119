"""Checks whether the candidates of a comparison can run at all, those of files in a separate process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from deep5.compare.candidate import Candidate, Plan
from deep5.compare.candidate_check import check_candidate
from deep5.compare.processes import run_process
from deep5.compare.request import request_of
from deep5.core.errors import OutputError, RecipeError
from deep5.recipe.recipe import Recipe
from deep5.recipe.registered import registered_recipe

__all__ = ["check_able"]

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
