"""`run_recipe`: run a recipe from its own file, or from other code."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error
from deep5.core.files import is_file
from deep5.recipe.experiment import Experiment
from deep5.recipe.recipe import FULL, Recipe
from deep5.run.choice import workload_of
from deep5.run.execute import run_alone
from deep5.run.workload import Options

if TYPE_CHECKING:
    from deep5.results.result import Result

__all__ = ["run_recipe"]


def run_recipe(
    fixed: Mapping[str, Any],
    mutable: Mapping[str, Any],
    metrics: Sequence[tuple[Any, Any]],
    *,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
    size: str = FULL,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "results",
    quiet: bool = False,
) -> Result:
    """Run a recipe and print its table.

    Called from a recipe's own `if __name__ == "__main__":`, it ends the program on an error with a message and an exit
    status, as `deep5 run` does; called from other code, and in a notebook or any interactive interpreter, it raises.
    For a recipe with ranks, the program is started once per rank; all ranks other than the first end here.

    Args:
        fixed: Components that must not change.
        mutable: Components that may change.
        metrics: Pairs of metric and goal. None of the three is modified.
        sizes: Changes by name of size.
        size: The size to run.
        settings: New values of mutable parts, by key.
        out: Parent of the result folder.
        quiet: Print nothing.

    Returns:
        The result; true if the run succeeded and met every goal.

    Raises:
        RecipeError: The recipe is not valid.
        UsageError: It requests ranks that only a separate program could start.
        RunFailed: The run started and could not be completed.

    >>> import tempfile
    >>> import deep5 as d5
    >>> fixed = {
    ...     "model": "mlp", "model_kwargs": {"features": 16, "hidden": 8, "classes": 3}, "epochs": 2,
    ...     "dataset": "synthetic", "dataset_kwargs": {"shape": (16,), "classes": 3, "train": 48, "test": 12},
    ... }
    >>> mutable = {"batch_size": 16, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.1}}
    >>> metrics = [(d5.TestAccuracy(), ">= 50 %"), (d5.TrainingLoss(), None)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = d5.run_recipe(fixed, mutable, metrics, settings={"batch_size": 8}, out=folder, quiet=True)
    ...     print(result.status, bool(result), result.metric("test_accuracy") >= 50)
    success True True
    """
    caller = sys._getframe(1).f_globals
    script = caller.get("__name__") == "__main__"
    path = Path(str(caller["__file__"])) if script and "__file__" in caller else None
    path = path if path is not None and is_file(path) else None  # a script may come from standard input
    try:
        recipe = Recipe.make(
            fixed,
            mutable,
            metrics,
            name=path.stem if path else "recipe",
            sizes=caller.get("SIZES") if sizes is None and script else sizes,
            path=path,
            source=path.read_bytes() if path else None,
        )
        recipe = recipe.at_size(size).with_settings(settings or {})
        result, shown = _run(recipe, path if script else None, script=script, out=out, quiet=quiet)
    except (Deep5Error, KeyboardInterrupt) as error:
        if not script or _is_interactive():
            raise
        print(f"deep5: {str(error) or 'interrupted'}", file=sys.stderr)  # noqa: T201 - this is the recipe's own terminal
        raise SystemExit(error.exit_status if isinstance(error, Deep5Error) else 130) from error
    if not quiet and not shown:
        from deep5.core.terminal import printed
        from deep5.results.table import verdict_table

        print(printed(partial(verdict_table, result)))  # noqa: T201 - as above
    return result


def _is_interactive() -> bool:
    """Whether a user types into this process, which an exit would take away: Python's prompt, IPython, a notebook."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")


def _run(recipe: Recipe, program: Path | None, *, script: bool, **options: Any) -> tuple[Result, bool]:
    """The result, and whether it was printed; runs as one process, or by the ranks that the recipe or launcher
    requests."""
    workload = workload_of(Experiment.of(recipe))
    if workload.shared:
        from deep5.distributed.launch.launcher import launched

        if workload.experiment.ranks is not None or (script and launched() is not None):
            from deep5.run.ranks import run_program

            return run_program(recipe, program, **options)
    events = () if options["quiet"] else workload.progress()
    return run_alone(workload, Options(events=events, **options)), False
