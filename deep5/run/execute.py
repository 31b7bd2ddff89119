"""`execute` and `execute_as_rank`: a recipe to a result."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from deep5.core.errors import RecipeError, UsageError
from deep5.core.events import Event
from deep5.recipe.experiment import Experiment
from deep5.recipe.recipe import Recipe
from deep5.run.choice import workload_of
from deep5.run.workload import Options, Workload

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.results.result import Result
    from deep5.training.checkpointer import Checkpointer

__all__ = ["execute", "execute_as_rank", "run_alone", "run_as_rank"]


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
    options = Options(out=out, events=tuple(events), quiet=quiet, checkpointer=checkpointer)
    # What cannot be hashed is refused before anything is loaded or built.
    return run_alone(workload_of(Experiment.of(recipe)), options, resume)


def run_alone(workload: Workload, options: Options, resume: str | Path | None = None) -> Result:
    """Run a workload in this process; as `execute`.

    Args:
        workload: What to run.
        options: How.
        resume: The folder to resume in.
    """
    name, ranks = workload.experiment.name, workload.experiment.ranks
    if ranks is None:
        return cast("Result", _carried_out(workload, options, resume, None))
    if ranks > 1:
        raise UsageError(
            f"{name} asks for {ranks} ranks, and this is one process; allowed: deep5.run.execute_as_rank in "
            "every rank, or deep5 run; remedy: with_settings({'ranks': None}) for a single process"
        )
    from deep5.core.communicator import SingleRank

    return cast("Result", run_as_rank(workload, SingleRank(), options, resume))


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
    options = Options(out=out, events=tuple(events), quiet=quiet, checkpointer=checkpointer)
    return run_as_rank(workload_of(Experiment.of(recipe)), communicator, options, resume)


def run_as_rank(
    workload: Workload, communicator: Communicator, options: Options, resume: str | Path | None = None
) -> Result | None:
    """Run a workload as one of several ranks; as `execute_as_rank`.

    Args:
        workload: What to run.
        communicator: Of all ranks.
        options: How the first rank runs.
        resume: The folder to resume in.
    """
    workload.check_shares()
    if communicator.rank:
        options = replace(options, events=(), quiet=True)
    return _carried_out(_with_own_objects(workload, communicator), options, resume, communicator)


def _carried_out(
    workload: Workload, options: Options, resume: str | Path | None, communicator: Communicator | None
) -> Result | None:
    if resume is None:
        return workload.run(options, communicator)
    return workload.resume(Path(resume), options, communicator)


# Objects that a run changes: what listens, and what may own its step. Of update rules, copies are made in any case.
_CHANGED = ("events", "optimizer")


def _with_own_objects(workload: Workload, communicator: Communicator) -> Workload:
    """The workload with objects of this rank's own, where ranks are threads and would share them; the first keeps the
    given ones, which its caller may look at.

    Raises:
        RecipeError: One cannot be copied.
    """
    from deep5.distributed.communicators.threads import ThreadCommunicator

    if not isinstance(communicator, ThreadCommunicator) or communicator.size == 1:
        return workload
    try:
        return workload if communicator.rank == 0 else workload_of(_with_copies(workload.experiment))
    finally:
        # Nobody changes what others still copy.
        communicator.barrier()


def _with_copies(experiment: Experiment) -> Experiment:
    parts = dict(experiment.parts)
    for key in _CHANGED:
        part = parts.get(key)
        if part is not None and part.stated:
            try:
                parts[key] = replace(part, value=copy.deepcopy(part.value))
            except Exception as error:
                raise RecipeError(
                    f"{part.where}{key!r} holds an object that ranks which are threads would share, and that "
                    f"cannot be copied ({type(error).__name__}: {error}); remedy: its class or name with {key}_kwargs, "
                    "or --launcher mpiexec"
                ) from error
    return replace(experiment, parts=parts)
