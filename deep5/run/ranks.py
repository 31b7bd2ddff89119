"""A recipe's run by several ranks: started here, or by a launcher that this process is started by."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from deep5.core.canonical import canonical_hash
from deep5.core.communicator import Communicator, SingleRank
from deep5.core.errors import CommunicationError, Deep5Error, RunFailed, UsageError
from deep5.distributed.communicators.mpi_waiting import SAME, end_job_at_exit
from deep5.distributed.launch.join import Report, compare_ranks, join
from deep5.distributed.launch.launcher import Launched, launched
from deep5.recipe.experiment import Experiment
from deep5.run.choice import workload_of
from deep5.run.execute import run_as_rank
from deep5.run.rank_record import RankFailed, bare_reason, how_to_go_on
from deep5.run.workload import Options, Workload

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe
    from deep5.results.result import Result

__all__ = ["Launcher", "run_by_command", "run_program", "run_with_ranks"]

Launcher = Literal["mpiexec", "torchrun", "threads"]

_OWN_SIGNALS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


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
        ranks: How many; None: as many as a launcher has started, or as the recipe asks for.
        launcher: What starts them; None: as the recipe says.
        arguments: Of this process's command line, which becomes that of the ranks.
        stdout: Takes what the first rank prints, where this process starts the ranks; None: standard output.
        options: For `execute_as_rank`, `quiet` included.

    Returns:
        The result, None where another process has it; and the exit status.

    Raises:
        UsageError: A launcher without a number of ranks, or another number than was started, or than the recipe
            fixes; a recipe that ranks have nothing to share of.
        RunFailed: A rank was lost, or failed; the message names it, and the folder where the run can go on.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    workload, count, by = _asked(recipe, ranks, launcher)
    if (here := _run_here(workload, count, by, options)) is not None:
        return here
    return None, _start([sys.executable, "-m", "deep5", *arguments], count, by, stdout, workload)[0]


def run_program(recipe: Recipe, program: Path | None, **options: Any) -> tuple[Result, bool]:
    """Run a recipe by as many ranks as it asks for, from a program in Python, which the ranks are then, too.

    Args:
        recipe: What to run.
        program: The program's file; its arguments are those of this process. None: it has none that could be started
            again, so that only threads of this process can be ranks.
        options: For `execute_as_rank`, `quiet` included.

    Returns:
        The result, and whether the first rank, another process than this, has shown it.

    Raises:
        SystemExit: With status 0 on a rank other than the first: the result is not there.
        UsageError: As `run_with_ranks`; or the ranks would have to be started by what is no program.
        RunFailed: As `run_with_ranks`, as the following.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    from deep5.results.result import load

    workload, count, by = _asked(recipe, None, None)
    if program is None and (launched() is not None or (count > 1 and by != "threads")):
        raise UsageError(
            f"{recipe.name} asks for {workload.experiment.ranks} ranks, which {by} starts; allowed: in a program of "
            "its own, under if __name__ == '__main__'; remedy: deep5 run FILE, or settings={'launcher': 'threads'}, or "
            "deep5.run.execute.execute_as_rank in every rank"
        )
    if (here := _run_here(workload, count, by, options)) is not None:
        if here[0] is None:
            sys.exit(0)
        return here[0], False
    status, folder = _start([sys.executable, str(program), *sys.argv[1:]], count, by, None, workload)
    if folder is None:
        raise RunFailed(f"the ranks of {program} ended with the status {status} and left no result")
    return load(folder), True


def run_by_command(recipe: Recipe, command: Sequence[str], **options: Any) -> Path:
    """Run a recipe by as many ranks as it asks for, where they have a command of their own.

    Args:
        recipe: What to run; it asks for ranks.
        command: What a rank is: the path of a program and its arguments, which calls `run_with_ranks`.
        options: For `execute_as_rank`, `quiet` included: of ranks that are this process, or its threads.

    Returns:
        The folder of the result.

    Raises:
        UsageError: As `run_with_ranks`, as the following.
        RunFailed: A rank was lost, or failed, or none left a result.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    workload, count, by = _asked(recipe, None, None)
    if (here := _run_here(workload, count, by, options)) is not None:
        folder = None if here[0] is None else here[0].folder
    else:
        _, folder = _start(command, count, by, None, workload)
    if folder is None:
        raise RunFailed("the ranks left no result")
    return folder


def _asked(recipe: Recipe, ranks: int | None, launcher: Launcher | None) -> tuple[Workload, int, Launcher]:
    """How many ranks there are to be, and by what; and the workload, which says the same where it says a number.

    What has started this process says more than the command line, and that more than the recipe.
    """
    workload = workload_of(Experiment.of(recipe))
    workload.check_shares()
    found, stated = launched(), workload.experiment.ranks
    if found is None and ranks is None and stated is None:
        if launcher is not None:
            raise UsageError(f"--launcher {launcher} without --ranks; allowed: both; remedy: --ranks 2, say")
        raise UsageError("no launcher started this process; allowed: --ranks N")
    if found is not None and ranks is not None and ranks != found.size:
        raise UsageError(
            f"--ranks {ranks}, and {found.by} started {found.size}; allowed: the same number; remedy: leave --ranks out"
        )
    values = workload.experiment.values
    count = found.size if found is not None else ranks or stated or 1
    by: Launcher = launcher or values["launcher"]
    if found is not None:
        by = "torchrun" if found.kind == "torch" else "mpiexec"
    if stated is not None:
        said = {"ranks": count, "launcher": by}
        if changes := {key: value for key, value in said.items() if value != values[key]}:
            workload = workload_of(Experiment.of(recipe.with_settings(changes)))
    return workload, count, by


def _run_here(
    workload: Workload, count: int, launcher: Launcher, options: Mapping[str, Any]
) -> tuple[Result | None, int] | None:
    """Be the rank that this process was started as, or all of them; None: they are to be started."""
    how = {name: value for name, value in options.items() if name != "resume"}
    chosen = Options(events=() if how["quiet"] else workload.progress(), **how)

    def rank(communicator: Communicator) -> Result | None:
        compare_ranks(communicator, _facts(workload.experiment))
        return run_as_rank(workload, communicator, chosen, options.get("resume"))

    found = launched()
    if found is not None:
        device = workload.rank_device()
        backend = "nccl" if device.startswith("cuda") else "gloo"
        return _reporting(found, lambda: rank(join(found, backend=backend, device=device)))
    if count == 1:
        result = rank(SingleRank())
    elif launcher == "threads":
        result = _in_threads(count, rank)
    else:
        return None
    return result, 0 if result else 1


def _in_threads(count: int, rank: Callable[[Communicator], Result | None]) -> Result | None:
    """The first rank's result.

    Raises:
        RunFailed: As that of the first rank that failed, which is named here and in the result.
    """
    from deep5.distributed.communicators.threads import run_in_threads

    failed: list[tuple[int, RunFailed]] = []

    def noted(communicator: Communicator) -> Result | None:
        try:
            return rank(communicator)
        except RunFailed as error:
            failed.append((communicator.rank, error))
            raise

    try:
        return run_in_threads(count, noted)[0]
    except RunFailed as error:
        reasons = {bare_reason(each) for _, each in failed}
        number = next((number for number, each in failed if each is error), None)
        if number is None or (len(failed) == count and len(reasons) == 1):
            raise
        message, reason = _named(str(error), bare_reason(error), number, count)
        # The others know where the first one writes; what that found was only that another is lost.
        folder = next((each.folder for _, each in failed if isinstance(each, RankFailed)), None)
        _mark(folder, reason)
        raise RunFailed(message).with_traceback(error.__traceback__) from error.__cause__


def _named(message: str, reason: str, rank: int, ranks: int) -> tuple[str, str]:
    """Message and reason of an error with the rank that it is of."""
    named = f"rank {rank} of {ranks}: {reason}"
    return (message.replace(reason, named, 1) if reason in message else f"rank {rank} of {ranks}: {message}"), named


def _facts(experiment: Experiment) -> dict[str, str | Mapping[str, Any]]:
    """What has to be the same on all ranks."""
    from deep5.measuring.environment import describe_software

    software = describe_software()
    commit, document = software["commit"] or {}, experiment.document
    return {
        "the recipe": f"{experiment.name} ({document['hash'][:12]}), size {experiment.size}",
        "the settings": document["mutable"],
        "deep5": f"{software['deep5']} {commit.get('id') or ''}{' (changed)' if commit.get('dirty') else ''}".strip(),
        "Python": software["python"],
        **software["packages"],
        "installed packages": software["package_list_hash"][:12],
        "metrics": canonical_hash(document["metrics"]),
    }


def _start(
    command: Sequence[str], ranks: int, launcher: Launcher, stdout: TextIO | None, workload: Workload
) -> tuple[int, Path | None]:
    """Start the ranks of a run, watch over them, and see that what they leave behind is true.

    Args:
        command: What a rank is.
        ranks: How many.
        launcher: What starts them; no threads.
        stdout: Takes what the first rank prints.
        workload: What the ranks run.

    Returns:
        The exit status of the run, and where the result is.

    Raises:
        RunFailed: A rank was lost, or failed; the message names it, and the folder where the run can go on.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    from deep5.distributed.launch.start import start_ranks

    ended = start_ranks(command, ranks=ranks, launcher=cast("Any", launcher), stdout=stdout)
    folder = None if ended.result_folder is None else Path(ended.result_folder)
    left = "" if folder is None else f"; what it left is in {folder}{how_to_go_on(folder)}"
    if ended.lost is not None:
        reason = f"rank {ended.lost} of {ranks} {_how_lost(ended.signal)}"
        _mark(folder, reason)
        # gloo ends a process whose buffers are of other sizes than the others'.
        remedy = f"; {SAME}" if ended.signal == signal.SIGABRT and launcher == "torchrun" else ""
        raise RunFailed(f"the run failed: {reason}{left}{remedy}")
    if ended.error is not None:
        if ended.status == 130:
            raise KeyboardInterrupt(_interrupted(folder, workload))
        if ended.status == 1 and ended.failed == 0 and _complete(folder):
            return 1, folder  # the run was not accepted, which is no error
        message, reason = ended.error, ended.reason or ended.error
        if ended.reason is not None and ended.failed is not None and not ended.alike:
            message, reason = _named(message, reason, ended.failed, ranks)
        _mark(folder, reason)
        error = _Ended(message, ended.status)
        if ended.trace is not None:
            error.add_note(f"on rank {ended.failed} of {ranks}:\n{ended.trace}")
        raise error
    return ended.status, folder


def _interrupted(folder: Path | None, workload: Workload) -> str:
    """What one process says, too, when it is interrupted."""
    if folder is None:
        return "interrupted"
    again = "" if _complete(folder) else workload.begin_again(folder)
    return f"interrupted; what the run left is in {folder}{how_to_go_on(folder) or again}"


def _how_lost(number: int | None) -> str:
    """How a rank was ended; what a process does to itself, mostly by an error in compiled code, is not from outside."""
    by = f" by signal {number} ({signal.Signals(number).name})" if number else ""
    return f"was ended{by}" if number in _OWN_SIGNALS else f"was ended{by} from outside"


def _complete(folder: Path | None) -> bool:
    """Whether the ranks ran to their end, and left the result of it."""
    from deep5.results.result import load

    return folder is not None and load(folder).status == "success"


class _Ended(Deep5Error):
    """An error that a rank has told of."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def _mark(folder: Path | None, reason: str) -> None:
    """Note in the result why the run ended, which its first rank may not know."""
    if folder is None:
        return
    from deep5.results.folder import ResultFolder
    from deep5.results.result import load

    result = load(folder)
    if result.status != "success":
        document = {**result.document, "status": "failed", "reasons": [reason], "accepted": None}
        marked = ResultFolder.open(folder)
        try:
            marked.write_result(document)
        finally:
            marked.close()


def _reporting(found: Launched, run: Callable[[], Result | None]) -> tuple[Result | None, int]:
    """Call what a rank does and tell whoever watches over it how it ends.

    Raises:
        SystemExit: In place of an error, where somebody watches, who tells it once for all ranks.
        RunFailed: Where nobody does; the rank is named.
    """
    report = Report()
    report.started()
    try:
        result = run()
    except BaseException as error:
        status = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_status", 3)
        failed, reason = status == RunFailed.exit_status, bare_reason(error)
        if report.watched:
            own = isinstance(error, (Deep5Error, KeyboardInterrupt))
            message = str(error) or type(error).__name__ if own else f"{reason}; remedy: --debug shows where"
            trace = "".join(traceback.format_exception(error))
            unreached = isinstance(error, CommunicationError) or isinstance(error.__cause__, CommunicationError)
            report.failed(message, status, reason=reason if failed else None, trace=trace, unreached=unreached)
            sys.exit(status)
        if isinstance(error, Exception) and found.kind == "mpi":
            # The message and the records come first; the others would wait for this rank until their limit is over.
            end_job_at_exit(status)
        if isinstance(error, RunFailed):
            message, _ = _named(str(error), reason, found.rank, found.size)
            raise RunFailed(message).with_traceback(error.__traceback__) from error.__cause__
        raise
    status = 0 if result is None or result else 1
    report.finished(status)
    return result, status
