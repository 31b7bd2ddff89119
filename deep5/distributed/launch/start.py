"""`start_ranks`: runs a command once per rank, by mpiexec or torchrun, and watches until all processes have ended."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO, get_args

import psutil

from deep5.core.arguments import is_whole
from deep5.core.child_process import supervise
from deep5.core.errors import MissingDependency, RunFailed, UsageError, brief
from deep5.core.plugins import install_command
from deep5.core.python_child import python_command
from deep5.distributed.launch.job import START_S, RankJob, RanksEnded
from deep5.distributed.launch.join import FOLDER
from deep5.distributed.launch.launcher import LAUNCH, check_ranks
from deep5.distributed.launch.supervisor import follow, hold

__all__ = ["Launcher", "RanksEnded", "start_ranks"]

Launcher = Literal["mpiexec", "torchrun"]

# Message of Open MPI 5.0 when it cannot read the addresses of this machine's network, which happens occasionally when
# several jobs start at the same time (lfortran/lfortran#8610). No rank was started then; a retry mostly succeeds.
_NO_LISTENER = "listener thread failed to start"
_TRIES = 3

# Variables of a batch system. All ranks run on this machine, whatever was allocated: a launcher that reads these would
# start some on other machines, or reject more ranks than the job has tasks.
_BATCH = ("SLURM_", "PBS_", "LSB_", "FLUX_", "COBALT_", "PE_HOSTFILE")


def start_ranks(
    command: Sequence[str],
    *,
    ranks: int,
    launcher: Launcher,
    environment: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    grace_s: float = 15.0,
) -> RanksEnded:
    """Run a command once per rank on this machine, and return when all processes have ended.

    Rank 0 uses this process's standard output and standard error, terminals included. The output of the other ranks and
    of the launcher is discarded, except for the last lines in an error message.

    A rank that is lost or fails ends the others. SIGINT, SIGTERM and SIGHUP are forwarded to the ranks, which have
    `grace_s` to shut down; a second signal kills them at once. If this process is killed, the ranks end with it.

    Args:
        command: Command of a rank: the path of a program and its arguments.
        ranks: Number of ranks.
        launcher: mpiexec of Open MPI or MPICH, or PyTorch's torchrun.
        environment: Environment of the ranks; None: this process's.
        stdout: Receives rank 0's standard output; None: standard output.
        grace_s: Seconds between a signal and the kill of remaining ranks.

    Raises:
        MissingDependency: The launcher is not installed.
        UsageError: The number of ranks or the launcher is invalid, or this machine cannot start so many.
    """
    if not is_whole(ranks) or ranks < 1:
        raise UsageError(f"start_ranks: got {brief(ranks)} ranks; allowed: an integer of at least 1")
    check_ranks(ranks)
    if launcher not in get_args(Launcher):
        raise UsageError(f"unknown launcher {brief(launcher)}; allowed: {', '.join(get_args(Launcher))}")
    for again in range(_TRIES, 0, -1):
        ended, started = _job(command, ranks, launcher, environment, stdout or sys.stdout, grace_s)
        if started or again == 1 or _NO_LISTENER not in (ended.error or ""):
            break
    return ended


def _job(
    command: Sequence[str],
    ranks: int,
    launcher: Launcher,
    environment: Mapping[str, str] | None,
    stdout: TextIO,
    grace_s: float,
) -> tuple[RanksEnded, bool]:
    """Run one job from start to end; also return whether any of its ranks was started."""
    variables = dict(os.environ if environment is None else environment)
    with tempfile.TemporaryDirectory(prefix="deep5-ranks-", ignore_cleanup_errors=True) as name:
        for foreign in [each for each in variables if each.startswith(_BATCH)]:
            del variables[foreign]
        variables.update({FOLDER: name, LAUNCH: f"{launcher}:{ranks}"})
        start, variable, unset = _start(launcher, ranks, Path(name), variables)
        held = python_command(hold, name, os.getpid(), variable, unset)
        whole = [*python_command(follow, os.getpid()), *start, *held, *command]
        with _signals() as requested, RankJob(Path(name), ranks, launcher, whole, variables, stdout) as job:
            return job.watch(requested, grace_s), bool(job.holders)


def _start(
    launcher: Launcher, ranks: int, folder: Path, variables: Mapping[str, str]
) -> tuple[list[str], str, list[str]]:
    """The launcher's arguments, the variable that holds the rank, and the variables to unset for ranks."""
    if launcher == "torchrun":
        if importlib.util.find_spec("torch") is None:
            raise MissingDependency(
                f"torchrun needs the package 'torch', which is not installed; remedy: {install_command('torch')}"
            )
        # torchrun would give each rank one thread; the run decides how many, the same with either launcher.
        unset = [] if "OMP_NUM_THREADS" in variables else ["OMP_NUM_THREADS"]
        options = ["--nproc-per-node", str(ranks), "--standalone", "--log-dir", str(folder / "torchrun"), "--no-python"]
        return [sys.executable, "-m", "torch.distributed.run", *options], "RANK", unset
    path = _mpiexec()
    version = supervise([path, "--version"], time_limit_s=START_S)
    if version.stopped is not None:
        raise RunFailed(f"{path} --version {version.stopped}; remedy: check what it waits for, or --launcher torchrun")
    if b"Open MPI" not in version.output:
        return [path, "-n", str(ranks)], "PMI_RANK", []
    start = [path, "--bind-to", "none", "-n", str(ranks)]
    if ranks > (psutil.cpu_count(logical=False) or 1) or ranks > len(os.sched_getaffinity(0)):
        start.insert(1, "--oversubscribe")
    if os.geteuid() == 0:
        start.insert(1, "--allow-run-as-root")
    return start, "OMPI_COMM_WORLD_RANK", []


def _mpiexec() -> str:
    # Prefer the mpiexec of the package openmpi, which belongs to the mpi4py next to it, over the system's.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        other = "threads" if importlib.util.find_spec("torch") is None else "torchrun"
        raise MissingDependency(
            f"mpiexec is not installed: it is neither in {beside} nor on the PATH; remedy: "
            f"{install_command('mpi4py')}, or --launcher {other}"
        )
    return found


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM, and SIGHUP unless it is ignored.

    Outside the main thread, where Python cannot handle signals, they are unchanged.
    """
    requested: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            before[number] = signal.signal(number, lambda got, frame: requested.append(got))
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
