"""A whole run of a recipe with its result folder: the unit of a study."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deep5.core.python_child import python_command
from deep5.measuring.machine_load import machine_state, share_of_others
from deep5.recipe.recipe import Recipe

__all__ = ["JOBS", "main"]


def _run(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The name of the result folder, which holds the measurements; and the share of processors that others used.

    A recipe that requests ranks is run by ranks on the processors that this process is pinned to.
    """
    before = machine_state()
    report("the run")
    if recipe.ranks is None:
        from deep5.run.execute import execute

        folder = execute(recipe, out=request["out"], quiet=True).folder
    else:
        from deep5.run.ranks import run_by_command

        # A rank finds modules where this process does.
        command = python_command(main, request["folder"])
        folder = run_by_command(recipe, command, out=request["out"], quiet=True)
    return {"run": folder.name, "others_share": share_of_others([(before, machine_state())])}, {}


def main(folder: str) -> None:
    """Run as one of the ranks of a run.

    Args:
        folder: The folder of the job.
    """
    from deep5.compare.request import recipe_of
    from deep5.run.ranks import run_with_ranks

    request = json.loads(Path(folder, "request.json").read_text())
    run_with_ranks(recipe_of(request), None, None, (), out=request["out"], quiet=True)


JOBS = {"run": _run}
