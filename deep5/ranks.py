"""A recipe's run by several ranks: started here, or by a launcher that this process is started by."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from deep5.canonical import canonical_hash
from deep5.communicator import Communicator, SingleRank
from deep5.distributed.joining import Report, compare_ranks, join, launched
from deep5.errors import Deep5Error, RunFailed, UsageError
from deep5.run import check_trains, execute_as_rank

if TYPE_CHECKING:
    from deep5.recipe import Recipe
    from deep5.results.result import Result

__all__ = ["Launcher", "run_with_ranks"]

Launcher = Literal["mpiexec", "torchrun", "threads"]


def run_with_ranks(
    recipe: Recipe,
    ranks: int | None,
    launcher: Launcher | None,
    arguments: Sequence[str],
    *,
    stdout: TextIO | None = None,
    **options: Any,
) -> tuple[Result | None, int]:
    """Run a recipe by several ranks: start them and watch over them, or be one of them.

    Args:
        recipe: What to run.
        ranks: How many; None: as many as a launcher has started.
        launcher: What starts them; None: mpiexec.
        arguments: Of this process's command line, which becomes that of the ranks.
        stdout: Takes what the first rank prints, where this process starts the ranks; None: standard output.
        options: For `execute_as_rank`, `quiet` included.

    Returns:
        The result, None where another process has it; and the exit status.

    Raises:
        UsageError: A launcher without a number of ranks, or another number than was started; a recipe that trains
            nothing.
        RunFailed: A rank was lost, or failed; the message names it, and the folder where the run can go on.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    from deep5.run import progress

    check_trains(recipe)
    found = launched()
    if found is not None and ranks is not None and ranks != found.size:
        raise UsageError(
            f"--ranks {ranks}, and {found.by} started {found.size}; allowed: the same number; remedy: leave --ranks out"
        )
    if found is None and ranks is None:
        if launcher is not None:
            raise UsageError(f"--launcher {launcher} without --ranks; allowed: both; remedy: --ranks 2, say")
        raise UsageError("no launcher started this process; allowed: --ranks N")

    def rank(communicator: Communicator) -> Result | None:
        compare_ranks(communicator, _facts(recipe))
        listening = () if options["quiet"] else progress(recipe)
        return execute_as_rank(recipe, communicator, events=listening, **options)

    if found is not None:
        backend = "nccl" if str(recipe.value("device")).startswith("cuda") else "gloo"
        return _reporting(lambda: rank(join(found, backend=backend)))
    count = ranks or 1
    if count == 1:
        result = rank(SingleRank())
    elif launcher == "threads":
        from deep5.distributed.threads import run_in_threads

        result = run_in_threads(count, rank)[0]
    else:
        return None, _start(count, launcher or "mpiexec", arguments, stdout)
    return result, 0 if result else 1


def _facts(recipe: Recipe) -> dict[str, str]:
    """What has to be the same on all ranks."""
    from deep5.environment import describe_software

    software = describe_software()
    commit = software["commit"] or {}
    return {
        "the recipe": f"{recipe.name} ({recipe.fixed_hash()[:12]}), size {recipe.size}",
        "the settings": json.dumps(recipe.document()["mutable"], sort_keys=True),
        "deep5": f"{software['deep5']} {commit.get('id') or ''}{' (changed)' if commit.get('dirty') else ''}".strip(),
        "Python": software["python"],
        **software["packages"],
        "installed packages": software["package_list_hash"][:12],
        "metrics": canonical_hash(recipe.document()["metrics"]),
    }


def _start(
    ranks: int, launcher: Literal["mpiexec", "torchrun"], arguments: Sequence[str], stdout: TextIO | None
) -> int:
    """Start the ranks of `deep5 run`, watch over them, and see that what they leave behind is true.

    Args:
        ranks: How many.
        launcher: What starts them.
        arguments: Of the command line, `run` included.
        stdout: Takes what the first rank prints.

    Returns:
        The exit status of the run.

    Raises:
        RunFailed: A rank was lost, or failed; the message names it, and the folder where the run can go on.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    from deep5.launching import start_ranks

    ended = start_ranks([sys.executable, "-m", "deep5", *arguments], ranks=ranks, launcher=launcher, stdout=stdout)
    folder = None if ended.result_folder is None else Path(ended.result_folder)
    if ended.lost is not None:
        by = f" by signal {ended.signal} ({signal.Signals(ended.signal).name})" if ended.signal else ""
        how = f"was ended{by} from outside"
        reason = f"rank {ended.lost} of {ranks} {how}"
        raise RunFailed(f"the run failed: {reason}{_marked(folder, reason)}")
    if ended.error is not None:
        if ended.status == 130:
            raise KeyboardInterrupt(ended.error)
        _marked(folder, ended.error)
        raise _Ended(ended.error, ended.status)
    return ended.status


class _Ended(Deep5Error):
    """An error that a rank has told of."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def _marked(folder: Path | None, reason: str) -> str:
    """Note in the result why the run ended, where its first rank could not; how to go on, for the message."""
    if folder is None:
        return ""
    from deep5.results.folder import ResultFolder
    from deep5.results.result import load
    from deep5.training.checkpointer import checkpoints

    result = load(folder)
    if result.status != "success":
        document = {**result.document, "status": "failed", "reasons": [reason], "accepted": None}
        marked = ResultFolder.open(folder)
        try:
            marked.write_result(document)
        finally:
            marked.close()
    going_on = f"; to go on, add --resume {folder} to the command" if checkpoints(folder / "checkpoints") else ""
    return f"; what it left is in {folder}{going_on}"


def _reporting(run: Callable[[], Result | None]) -> tuple[Result | None, int]:
    """Call what a rank does and tell whoever watches over it how it ends.

    Raises:
        SystemExit: In place of an error, where somebody watches, who tells it once for all ranks.
    """
    report = Report()
    report.started()
    try:
        result = run()
    except BaseException as error:
        own = isinstance(error, (Deep5Error, KeyboardInterrupt))
        message = str(error) or type(error).__name__
        status = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_status", 3)
        report.failed(message if own else f"{type(error).__name__}: {message}", status)
        if report.watched and own:
            sys.exit(status)
        raise
    status = 0 if result is None or result else 1
    report.finished(status)
    return result, status
