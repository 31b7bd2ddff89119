"""A whole run of a recipe, with its result folder: what a study is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deep5.machine_load import machine_state, share_of_others
from deep5.recipe import Recipe

__all__ = ["JOBS"]


def _run(
    recipe: Recipe, request: Mapping[str, Any], tell: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The name of the result's folder, which holds what was measured; and what others took of the processors."""
    from deep5.run import execute

    before = machine_state()
    tell("the run")
    name = execute(recipe, out=request["out"], quiet=True).folder.name
    return {"run": name, "others_share": share_of_others([(before, machine_state())])}, {}


JOBS = {"run": _run}
