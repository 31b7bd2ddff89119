"""Real ranks: a Python program as several processes, under `mpiexec` or with a port to meet at; all of them end."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

import forked

MPIEXEC = Path(sys.executable).with_name("mpiexec")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The outcome of a process: its exit status and its output."""

    status: int
    output: str
    errors: str


@functools.cache
def mpi_version() -> str:
    """The version that `mpiexec` reports."""
    told = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, timeout=60.0, check=False)
    return told.stdout + told.stderr


def mpi_launcher(size: int) -> list[str]:
    """The command that starts this number of ranks, for any installed MPI."""
    # Allow more ranks than processors, and tests run by root: MPICH's Hydra and Intel's always do.
    own = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in mpi_version() else []
    return [str(MPIEXEC), *own, "-n", str(size)]


def under_mpi(program: str, size: int, *arguments: str, timeout_s: float = 60.0) -> Ended:
    """Run a program as `size` ranks of MPI; fails if they do not end in time.

    Args:
        program: Python source; indented as a whole or not.
        size: Number of ranks.
        arguments: `sys.argv[1:]` of each.
        timeout_s: Limit for all ranks together.
    """
    return _run([[*mpi_launcher(size), sys.executable, "-c", textwrap.dedent(program), *arguments]], timeout_s)[0]


def as_processes(program: str, size: int, *arguments: str, timeout_s: float = 60.0) -> list[Ended]:
    """Run a program as `size` processes, which get their rank, the size and a free port before the arguments."""
    port = free_port()
    source = textwrap.dedent(program)
    return _run(
        [[sys.executable, "-c", source, str(rank), str(size), str(port), *arguments] for rank in range(size)], timeout_s
    )


def free_port() -> int:
    """A port of this machine that no process listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ranks_of(parent: int) -> dict[int, psutil.Process]:
    """The ranks that a `deep5 run` of this process ID started with mpiexec or torchrun, by number."""
    found = {}
    for process in psutil.Process(parent).children(recursive=True):
        try:
            command, environment = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMI_RANK", environment.get("RANK")))
        if rank is not None and command[1:4] == ["-m", "deep5", "run"]:  # neither the launcher nor a holder
            found[int(rank)] = process
    return found


def _run(commands: list[list[str]], timeout_s: float) -> list[Ended]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    started: list[tuple[subprocess.Popen[bytes], Path]] = []
    with tempfile.TemporaryDirectory(prefix="deep5-ranks-") as folder:
        try:
            for number, command in enumerate(commands):
                # Files, not pipes: no reader is necessary while they run, and their leftover processes keep none open.
                place = Path(folder, str(number))
                with place.with_suffix(".out").open("wb") as out, place.with_suffix(".err").open("wb") as err:
                    process = forked.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
                started.append((process, place))
            deadline = monotonic() + timeout_s
            alive = [process for process, _ in started if not _ends(process, deadline)]
        finally:
            _end([process for process, _ in started])
        ended = [
            Ended(
                status=process.wait(),
                output=place.with_suffix(".out").read_text(errors="replace"),
                errors=place.with_suffix(".err").read_text(errors="replace"),
            )
            for process, place in started
        ]
    if alive:
        raise AssertionError(f"{len(alive)} of {len(commands)} not done within {timeout_s:g} s: {ended}")
    return ended


def _ends(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        process.wait(max(deadline - monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the remaining processes with their children: the launcher of MPI puts those in separate groups."""
    running = []
    for process in processes:
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            running += [*parent.children(recursive=True), parent]
    for each in running:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(running, timeout=10)
