"""Requests to the processes of a comparison, and the recipe that a request refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.compare.candidate import Candidate, Plan, settings_of
from deep5.recipe.recipe import Recipe, load_recipe

__all__ = ["recipe_of", "request_of"]


def request_of(plan: Plan, recipe: Recipe, candidate: Candidate, job: str, **more: Any) -> dict[str, Any]:
    """The request to a process of a candidate, in JSON types.

    Args:
        plan: The comparison as declared.
        recipe: As the candidate runs it.
        candidate: One of the plan's.
        job: The job of the process.
        more: Further values that the job needs.
    """
    settings = settings_of(candidate, plan.kind)
    if "threads" not in recipe.fixed:  # a fixed value cannot be set, and already equals the plan's
        settings["threads"] = plan.threads
    return {
        "job": job,
        "kind": plan.kind,
        "mode": plan.mode,
        "recipe": plan.recipe,
        "size": plan.size,
        "settings": settings,
        "content": plan.contents[candidate.label],
        "threads": plan.threads,
        "steps": plan.steps,
        **more,
    }


def recipe_of(request: Mapping[str, Any]) -> Recipe:
    """The recipe to run.

    Args:
        request: The request of the parent.
    """
    return load_recipe(request["recipe"]).at_size(request["size"]).with_settings(request["settings"])
