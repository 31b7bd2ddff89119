"""What a process of a comparison or a study is requested to do, and the recipe that it does it with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.compare.candidate import Candidate, Plan, settings_of
from deep5.compare.studied import load_study
from deep5.recipe.recipe import Recipe, load_recipe

__all__ = ["recipe_of", "request_of"]


def request_of(plan: Plan, recipe: Recipe, candidate: Candidate, job: str, **more: Any) -> dict[str, Any]:
    """What a process of a candidate is asked for, in JSON's types.

    Args:
        plan: The comparison as declared.
        recipe: As the candidate runs it.
        candidate: One of the plan's.
        job: What the process is to do.
        more: Whatever the job needs beside.
    """
    settings = settings_of(candidate, plan.kind)
    if "threads" not in recipe.fixed:  # what is fixed cannot be set, and is the plan's number already
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
    """What is run: a candidate of a study is one of its file's where it is not given, for it may hold any object.

    Args:
        request: Of the parent.
    """
    if request["kind"] != "study":
        return load_recipe(request["recipe"]).at_size(request["size"]).with_settings(request["settings"])
    recipe, candidates = load_study(request["recipe"], request["size"], request["varied"])
    return recipe.with_settings({**request["settings"], **candidates[request["candidate"]]})
