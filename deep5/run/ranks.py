"""Run a recipe by several ranks, started here or by the launcher that started this process."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from deep5.core.canonical import canonical_hash
from deep5.core.communicator import Communicator, SingleRank
from deep5.core.errors import CommunicationError, Deep5Error, Ended, OperationTimeout, RunFailed, UsageError
from deep5.distributed.communicators.mpi_waiting import REPORTS, SAME, end_job_at_exit
from deep5.distributed.launch.join import Report, compare_ranks, join
from deep5.distributed.launch.launcher import Launched, check_ranks, launched
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

_ERRORS = (1, 2, 3)  # exit statuses of a rank that ends with an error of deep5
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
    """Run a recipe by several ranks: start and monitor them, or be one of them.

    Args:
        recipe: The recipe to run.
        ranks: Number of ranks; None: the number that a launcher has started, or the recipe's.
        launcher: The launcher of the ranks; None: the recipe's.
        arguments: Command-line arguments of this process, passed to the ranks.
        stdout: Receives the output of the first rank if this process starts the ranks; None: standard output.
        options: For `execute_as_rank`, including `quiet`.

    Returns:
        The result, None if another process has it; and the exit status.

    Raises:
        UsageError: A launcher without a number of ranks; a number other than the started one or the one that the recipe
            fixes; or a recipe without work to share among ranks.
        RunFailed: A rank was lost, or failed; the message names it, and the folder in which the run can resume.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    workload, count, by = _requested(recipe, ranks, launcher)
    if (here := _run_here(workload, count, by, options)) is not None:
        return here
    return None, _start([sys.executable, "-m", "deep5", *arguments], count, by, stdout, workload)[0]


def run_program(recipe: Recipe, program: Path | None, **options: Any) -> tuple[Result, bool]:
    """Run a recipe by the requested number of ranks from a Python program; each rank runs that program, too.

    Args:
        recipe: The recipe to run.
        program: The program's file; its arguments are those of this process. None: there is no file to start again, so
            that only threads of this process can be ranks.
        options: For `execute_as_rank`, including `quiet`.

    Returns:
        The result, and whether the first rank, in another process, has printed it.

    Raises:
        Ended: With status 0 on a rank other than the first, which has no result.
        UsageError: As `run_with_ranks`; or the ranks would have to be started from something that is not a program.
        RunFailed: As `run_with_ranks`, like the errors below.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    from deep5.results.result import load

    workload, count, by = _requested(recipe, None, None)
    if program is None and (launched() is not None or (count > 1 and by != "threads")):
        raise UsageError(
            f"{recipe.name} requires {workload.experiment.ranks} ranks, which {by} starts; allowed: in its own "
            "program, under if __name__ == '__main__'; remedy: deep5 run FILE, or settings={'launcher': 'threads'}, or "
            "deep5.run.execute.execute_as_rank in every rank"
        )
    if (here := _run_here(workload, count, by, options)) is not None:
        if here[0] is None:
            raise Ended(0)
        return here[0], False
    status, folder = _start([sys.executable, str(program), *sys.argv[1:]], count, by, None, workload)
    if folder is None:
        raise RunFailed(f"the ranks of {program} ended with the status {status} and left no result")
    return load(folder), True


def run_by_command(recipe: Recipe, command: Sequence[str], **options: Any) -> Path:
    """Run a recipe by the requested number of ranks, each started with a separate command.

    Args:
        recipe: The recipe to run; it requests ranks.
        command: Command of a rank: the path of a program that calls `run_with_ranks`, and its arguments.
        options: For `execute_as_rank`, including `quiet`; for ranks that are this process or its threads.

    Returns:
        The result folder.

    Raises:
        UsageError: As `run_with_ranks`, like the errors below.
        RunFailed: A rank was lost, or failed, or none left a result.
        MissingDependency: The launcher is not installed.
        KeyboardInterrupt: The run was interrupted.
    """
    workload, count, by = _requested(recipe, None, None)
    if (here := _run_here(workload, count, by, options)) is not None:
        folder = None if here[0] is None else here[0].folder
    else:
        _, folder = _start(command, count, by, None, workload)
    if folder is None:
        raise RunFailed("the ranks left no result")
    return folder


def _requested(recipe: Recipe, ranks: int | None, launcher: Launcher | None) -> tuple[Workload, int, Launcher]:
    """The number of ranks and their launcher; and the workload, with the same number if it states one.

    The launcher of this process takes precedence over the command line, and the command line over the recipe.
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
    if found is None:
        check_ranks(count)
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
    """Run the rank that this process was started as, or all ranks; None if the ranks must still be started."""
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
        # The other ranks know the first rank's folder; the first rank itself only noticed that another rank is lost.
        folder = next((each.folder for _, each in failed if isinstance(each, RankFailed)), None)
        _mark(folder, reason)
        raise RunFailed(message).with_traceback(error.__traceback__) from error.__cause__


def _named(message: str, reason: str, rank: int, ranks: int) -> tuple[str, str]:
    """Message and reason of an error, with its rank."""
    named = f"rank {rank} of {ranks}: {reason}"
    return (message.replace(reason, named, 1) if reason in message else f"rank {rank} of {ranks}: {message}"), named


def _facts(experiment: Experiment) -> dict[str, str | Mapping[str, Any]]:
    """Facts that must be the same on all ranks."""
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
    """Start the ranks of a run, monitor them, and correct the result that they leave.

    Args:
        command: Command of a rank.
        ranks: Number of ranks.
        launcher: The launcher; not threads.
        stdout: Receives the output of the first rank.
        workload: The workload of the ranks.

    Returns:
        The exit status of the run, and its result folder.

    Raises:
        RunFailed: A rank was lost, or failed; the message names it, and the folder in which the run can resume.
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
        # gloo aborts a process whose buffer sizes differ from those of the other ranks.
        remedy = f"; {SAME}" if ended.signal == signal.SIGABRT and launcher == "torchrun" else ""
        raise RunFailed(f"the run failed: {reason}{left}{remedy}")
    if ended.late is not None:
        reason = ended.error or f"rank {ended.late} of {ranks} did not answer"
        _mark(folder, reason)
        raise RunFailed(f"the run failed: {reason}{left}")
    if ended.error is not None:
        if ended.status == 130:
            raise KeyboardInterrupt(_interrupted(folder, workload))
        if ended.status == 1 and ended.failed == 0 and _complete(folder):
            return 1, folder  # the run missed its goals, which is not an error
        message, reason = ended.error, ended.reason or ended.error
        if ended.reason is not None and ended.failed is not None and not ended.alike:
            message, reason = _named(message, reason, ended.failed, ranks)
        _mark(folder, reason)
        # A library may end a rank with a status that deep5 does not have.
        error = _Ended(message, ended.status if ended.status in _ERRORS else 3)
        if ended.trace is not None:
            error.add_note(f"on rank {ended.failed} of {ranks}:\n{ended.trace}")
        raise error
    return ended.status, folder


def _interrupted(folder: Path | None, workload: Workload) -> str:
    """The message of an interrupted run, the same as for a single process."""
    if folder is None:
        return "interrupted"
    again = "" if _complete(folder) else workload.begin_again(folder)
    return f"interrupted; what the run left is in {folder}{how_to_go_on(folder) or again}"


def _how_lost(number: int | None) -> str:
    """How a rank ended, and whether a signal came from outside.

    A signal that a process raises itself, mostly because of an error in compiled code, does not.
    """
    by = f" by signal {number} ({signal.Signals(number).name})" if number else ""
    return f"was ended{by}" if number in _OWN_SIGNALS else f"was terminated{by} from outside"


def _complete(folder: Path | None) -> bool:
    """Whether the ranks finished and left a result."""
    from deep5.results.result import load

    return folder is not None and load(folder).status == "success"


class _Ended(Deep5Error):
    """An error that a rank has reported."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_status = status


def _mark(folder: Path | None, reason: str) -> None:
    """Record in the result why the run ended, which its first rank may not know."""
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
    """Run a rank's function and report its outcome to the monitoring process.

    Raises:
        Ended: In place of an error if a process monitors the ranks; it reports the error once for all ranks.
        RunFailed: Without a monitoring process; the message names the rank.
    """
    report = Report()
    report.started()
    if report.watched:
        REPORTS.append(lambda said: report.failed(said, reason=said, unreached=True, late=True))
    try:
        result = run()
    except BaseException as error:
        status = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_status", 3)
        failed, reason = status == RunFailed.exit_status, bare_reason(error)
        if report.watched:
            own = isinstance(error, (Deep5Error, KeyboardInterrupt))
            message = str(error) or type(error).__name__ if own else f"{reason}; remedy: --debug shows where"
            trace = "".join(traceback.format_exception(error))
            causes = (error, error.__cause__)
            report.failed(
                message,
                status,
                reason=reason if failed else None,
                trace=trace,
                unreached=any(isinstance(each, CommunicationError) for each in causes),
                late=any(isinstance(each, OperationTimeout) for each in causes),
            )
            raise Ended(status) from error
        if isinstance(error, Exception) and found.kind == "mpi":
            # At exit, after the message and the records are written; without it, the other ranks would wait up to their
            # limit.
            end_job_at_exit(status)
        if isinstance(error, RunFailed):
            message, _ = _named(str(error), reason, found.rank, found.size)
            raise RunFailed(message).with_traceback(error.__traceback__) from error.__cause__
        raise
    status = 0 if result is None or result else 1
    report.finished(status)
    return result, status
