"""`execute` and `execute_as_rank`: run a recipe and return its result."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from deep5.core.errors import RecipeError, UsageError, contained
from deep5.core.events import Event
from deep5.core.progress import silenced
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
    """Run a recipe into a new result folder, or resume an interrupted run in its folder.

    A training run writes checkpoints, by default every 30 s; checkpoints that were not requested are deleted at the
    end.

    Args:
        recipe: The recipe, at the size and with the settings to run.
        out: Parent of the result folder.
        events: Listeners in addition to the recipe's; a progress bar that the recipe already has is not duplicated.
        quiet: Leave out the recipe's own progress bar.
        resume: The folder to resume in. Its run must have the same recipe, size, settings, data, and weights; other
            differences that may change bits (threads, versions) become warnings. A finished run is returned unchanged.
        checkpointer: Checkpoint interval, in place of the recipe's; a checkpointer in the recipe still determines
            how many checkpoints are kept and whether the best is. None: no checkpoints.

    Raises:
        CheckpointError: A run that cannot be resumed.
        UsageError: The recipe cannot be assembled or requests several ranks, or the folder cannot be written; nothing
            is left on disk.
        RunFailed: The run started but could not be completed; the message names its folder, which is marked and
            readable.
    """
    options = Options(out=out, events=tuple(events), quiet=quiet, checkpointer=checkpointer)
    # Values that cannot be hashed are rejected before anything is loaded or built.
    return run_alone(workload_of(Experiment.of(recipe)), options, resume)


def run_alone(workload: Workload, options: Options, resume: str | Path | None = None) -> Result:
    """Run a workload in this process; as `execute`.

    Args:
        workload: The workload to run.
        options: The options of the run.
        resume: The folder to resume in.
    """
    name, ranks = workload.experiment.name, workload.experiment.ranks
    if ranks is None:
        return cast("Result", _carried_out(workload, options, resume, None))
    if ranks > 1:
        raise UsageError(
            f"{name} requires {ranks} ranks, and this is one process; allowed: deep5.run.execute_as_rank in "
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

    The ranks first verify that they run the same recipe with the same code and versions. The first rank writes the
    result folder, which the other ranks access under the same path; of the events beyond the recipe's own, only those
    of the first rank are used.

    Args:
        recipe: As for `execute`, like the arguments below; its batch size is that of all ranks together.
        communicator: Communicator of all ranks.
        out: Parent of the result folder.
        events: Listeners in addition to the recipe's.
        quiet: Leave out the recipe's own progress bar.
        resume: The folder to resume in; the number of ranks may differ from that of its checkpoints.
        checkpointer: Checkpoint interval.

    Returns:
        The result on the first rank, None on the others.

    Raises:
        UsageError: As `execute`; or the recipe has no work to share among ranks, or the ranks do not run the same.
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
        workload: The workload to run.
        communicator: Communicator of all ranks.
        options: Options of the first rank.
        resume: The folder to resume in.
    """
    workload.check_shares()
    if communicator.rank:
        options = replace(options, events=(), quiet=True)
    return _carried_out(_with_own_objects(workload, communicator), options, resume, communicator)


def _carried_out(
    workload: Workload, options: Options, resume: str | Path | None, communicator: Communicator | None
) -> Result | None:
    with contained(), silenced(options.quiet):
        if resume is None:
            return workload.run(options, communicator)
        return workload.resume(Path(resume), options, communicator)


# Objects that a run changes: listeners, and optimizers that may own their step. Update rules are always copied.
_CHANGED = ("events", "optimizer")


def _with_own_objects(workload: Workload, communicator: Communicator) -> Workload:
    """Give this rank its own copies of mutable objects if ranks are threads that would share them.

    The first rank keeps the given objects, which its caller may inspect.

    Raises:
        RecipeError: An object cannot be copied.
    """
    from deep5.distributed.communicators.threads import ThreadCommunicator

    if not isinstance(communicator, ThreadCommunicator) or communicator.size == 1:
        return workload
    try:
        return workload if communicator.rank == 0 else workload_of(_with_copies(workload.experiment))
    finally:
        # No rank may change objects that other ranks still copy.
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
