"""A whole run of a recipe, with its result folder: what a study is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deep5.recipe import Recipe

__all__ = ["JOBS"]


def _run(
    recipe: Recipe, request: Mapping[str, Any], tell: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The name of the result's folder; what was measured is in it."""
    from deep5.run import execute

    tell("the run")
    return {"run": execute(recipe, out=request["out"], quiet=True).folder.name}, {}


JOBS = {"run": _run}
