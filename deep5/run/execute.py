"""`run_recipe` and `execute`: a recipe to a result."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from deep5.core.errors import Deep5Error, RecipeError, UsageError
from deep5.core.events import Event
from deep5.recipe.recipe import FULL, Recipe, defaults

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.results.result import Result
    from deep5.training.checkpointer import Checkpointer

__all__ = ["check_shares", "execute", "execute_as_rank", "progress", "run_recipe"]


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

    Called from a recipe's own `if __name__ == "__main__":`, it ends a program that cannot go on with a message and
    an exit status, as `deep5 run` does; called from other code it raises. A recipe with ranks has the program started
    once for each of them; those other than the first end here.

    Args:
        fixed: Components that must not change.
        mutable: Components that may.
        metrics: Pairs of metric and goal. None of the three is changed.
        sizes: Changes by name of size.
        size: Which of them is run.
        settings: Mutable parts set anew, by key.
        out: Where the result folder goes.
        quiet: Print nothing.

    Returns:
        The result; true where the run succeeded and met every goal.

    Raises:
        RecipeError: The recipe is not valid.
        UsageError: It asks for ranks that only a program of its own could start.
        RunFailed: The run started and could not be completed.
    """
    caller = sys._getframe(1).f_globals
    script = caller.get("__name__") == "__main__"
    path = Path(str(caller["__file__"])) if script and "__file__" in caller else None
    path = path if path is not None and path.is_file() else None  # a script may come from standard input
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
        if not script:
            raise
        print(f"deep5: {str(error) or 'interrupted'}", file=sys.stderr)  # noqa: T201 - this is the recipe's own terminal
        sys.exit(error.exit_status if isinstance(error, Deep5Error) else 130)
    if not quiet and not shown:
        from rich.console import Console

        from deep5.results.table import verdict_table

        verdict_table(result, Console())
    return result


def _run(recipe: Recipe, program: Path | None, *, script: bool, **options: Any) -> tuple[Result, bool]:
    """The result, and whether it was shown: as one process, or by the ranks that the recipe or a launcher asks for."""
    if not recipe.operators:
        from deep5.distributed.launch.launcher import launched

        if recipe.ranks is not None or (script and launched() is not None):
            from deep5.run.ranks import run_program

            return run_program(recipe, program, **options)
    return execute(recipe, events=() if options["quiet"] else progress(recipe), **options), False


def progress(recipe: Recipe) -> tuple[Event, ...]:
    """The listeners that show a run on a terminal."""
    from deep5.training.progress import ProgressBar

    return (ProgressBar(),) if recipe.trains else ()


def execute(
    recipe: Recipe,
    *,
    out: str | Path = "results",
    events: Iterable[Event] = (),
    quiet: bool = False,
    resume: str | Path | None = None,
    checkpointer: Checkpointer | Literal["default"] | None = "default",
) -> Result:
    """Run a recipe into a new result folder, or go on in one that a run left before its end.

    A run that trains writes checkpoints, every 30 s where nobody says otherwise; those that nobody asked for are
    deleted when it is done.

    Args:
        recipe: The recipe, at the size and with the settings to run.
        out: Where the folder goes.
        events: Listeners beside those of the recipe; a progress bar that the recipe has already is not doubled.
        quiet: Leave the recipe's own progress bar out.
        resume: The folder to go on in. Its run has to be of this recipe, at the same size and with the same settings,
            data and weights; what may change bits all the same (threads, versions) becomes a warning. A run that was
            finished is returned as it is.
        checkpointer: How often checkpoints are written, in place of the recipe's own; where it has one, that says how
            many are kept and whether the best is. None: there are none.

    Raises:
        CheckpointError: A run that cannot be gone on with.
        UsageError: The recipe cannot be assembled, or asks for several ranks, or the folder cannot be written; nothing
            is left behind.
        RunFailed: The run started and could not be completed; its folder is named, marked and readable.
    """
    recipe.describe()  # what cannot be hashed is refused before anything is loaded or built
    if (ranks := recipe.ranks) is not None:
        if ranks > 1:
            raise UsageError(
                f"{recipe.name} asks for {ranks} ranks, and this is one process; allowed: deep5.run.execute_as_rank in "
                "every rank, or deep5 run; remedy: with_settings({'ranks': None}) for a single process"
            )
        from deep5.core.communicator import SingleRank

        single: Any = execute_as_rank(
            recipe, SingleRank(), out=out, events=events, quiet=quiet, resume=resume, checkpointer=checkpointer
        )
        return cast("Result", single)
    if recipe.operators or recipe.timing:
        _check_trains(recipe, resume, checkpointer)
        if recipe.timing:
            from deep5.run.timing import time_code

            return cast("Result", time_code(recipe, out))
        from deep5.bench.record import time_operators

        return time_operators(recipe, out, quiet=quiet, judged=True)
    if resume is not None and (left := _finished(recipe, resume, quiet=quiet)) is not None:
        return left
    from deep5.run.training import train

    folder = None if resume is None else Path(resume)
    return cast("Result", train(recipe, out, tuple(events), quiet, folder, checkpointer))


def execute_as_rank(
    recipe: Recipe,
    communicator: Communicator,
    *,
    out: str | Path = "results",
    events: Iterable[Event] = (),
    quiet: bool = False,
    resume: str | Path | None = None,
    checkpointer: Checkpointer | Literal["default"] | None = "default",
) -> Result | None:
    """Run a recipe as one of several ranks, each of which calls this with the same arguments.

    The ranks make sure first that they run the same recipe with the same code and versions. The first one writes the
    result folder, which the others reach under the same path; only its events beside the recipe's own are of use.

    Args:
        recipe: As for `execute`, as the following; its batch size is that of all ranks together.
        communicator: Of all ranks.
        out: Where the folder goes.
        events: Listeners beside those of the recipe.
        quiet: Leave the recipe's own progress bar out.
        resume: The folder to go on in; as many ranks as wrote its checkpoints, or others.
        checkpointer: How often checkpoints are written.

    Returns:
        The result on the first rank, None on the others.

    Raises:
        UsageError: As `execute`; or ranks have nothing to share of the recipe, or they do not run the same.
        CheckpointError: As `execute`.
        RunFailed: The run started and could not be completed.
    """
    recipe.describe()
    check_shares(recipe)
    recipe = _own_objects(recipe, communicator)
    if recipe.timing:
        _check_trains(recipe, resume, checkpointer)
        from deep5.run.timing import time_code

        return time_code(recipe, out, communicator)
    if recipe.collectives:
        _check_trains(recipe, resume, checkpointer)
        from deep5.run.collectives import time_collectives

        return time_collectives(recipe, out, communicator, quiet=quiet)
    if resume is not None and (left := _finished(recipe, resume, quiet=quiet or communicator.rank > 0)) is not None:
        return left if communicator.rank == 0 else None
    from deep5.run.training import train

    folder, listening = None if resume is None else Path(resume), tuple(events) if communicator.rank == 0 else ()
    return train(recipe, out, listening, quiet or communicator.rank > 0, folder, checkpointer, communicator)


# Objects that a run changes: what listens, and what may own its step. Of update rules, copies are made in any case.
_CHANGED = ("events", "optimizer")


def _own_objects(recipe: Recipe, communicator: Communicator) -> Recipe:
    """The recipe with objects of this rank's own, where ranks are threads and would share them; the first keeps the
    given ones, which its caller may look at.

    Raises:
        RecipeError: One cannot be copied.
    """
    from deep5.distributed.communicators.threads import ThreadCommunicator

    if not isinstance(communicator, ThreadCommunicator) or communicator.size == 1:
        return recipe
    try:
        parts = [_with_copies(recipe, part) if communicator.rank else part for part in (recipe.fixed, recipe.mutable)]
    finally:
        # Nobody changes what others still copy.
        communicator.barrier()
    return replace(recipe, fixed=parts[0], mutable=parts[1])


def _with_copies(recipe: Recipe, part: Mapping[str, Any]) -> dict[str, Any]:
    copies = {}
    for key in _CHANGED:
        if key in part:
            try:
                copies[key] = copy.deepcopy(part[key])
            except Exception as error:
                raise RecipeError(
                    f"{recipe.where(key)}{key!r} holds an object that ranks which are threads would share, and that "
                    f"cannot be copied ({type(error).__name__}: {error}); remedy: its class or name with {key}_kwargs, "
                    "or --launcher mpiexec"
                ) from error
    return {**part, **copies}


def check_shares(recipe: Recipe) -> None:
    """Refuse a recipe that ranks have nothing to share of.

    Raises:
        RecipeError: It times collectives, and a part of it cannot be read.
        UsageError: It times operators; or code that takes no communicator.
    """
    if recipe.operators:
        raise UsageError(f"{recipe.name} times operators and trains nothing; allowed: one process; remedy: no --ranks")
    if recipe.timing:
        from deep5.recipe.components import check_candidates

        check_candidates(recipe, ranks=True)
    if recipe.collectives:
        from deep5.bench.collective.recipe import plan_of

        plan_of(recipe)


def _check_trains(recipe: Recipe, resume: str | Path | None, checkpointer: Any) -> None:
    if resume is not None or checkpointer not in ("default", None):
        raise UsageError(
            f"{recipe.name} times operators, code or collectives and trains nothing; allowed: neither --resume nor "
            "--checkpoint-every; remedy: run it again"
        )


def _finished(recipe: Recipe, folder: str | Path, *, quiet: bool) -> Result | None:
    """The result of a run of this recipe that is not to be gone on with because it is done; None: it is not."""
    from deep5.results.continuing import check_recipe
    from deep5.results.result import load

    if (left := load(folder)).status != "success":
        return None
    check_recipe(left.document["run_id"], left.document["recipe"], recipe.document(), defaults(recipe))
    if not quiet:
        print("deep5: the run is finished; nothing was run", file=sys.stderr)  # noqa: T201 - the run's terminal
    return left
