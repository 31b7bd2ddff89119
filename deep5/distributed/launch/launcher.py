"""Reads this process's rank and the number of ranks from the launcher's environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from deep5.core.errors import UsageError, brief

__all__ = ["LAUNCH", "Launched", "check_ranks", "environment_number", "launched"]

LAUNCH = "DEEP5_LAUNCH"
"""What `start_ranks` started: the launcher and the number of ranks, as in `mpiexec:4`."""

# The variables with rank, size and local rank, by launcher.
_MPI = {
    "mpiexec of Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


# Ranks that one machine starts: to try a scheme, several on each processor are enough.
_PER_PROCESSOR, _ALWAYS = 8, 16


def check_ranks(ranks: int) -> None:
    """Check that this machine can be expected to start so many ranks, each of which loads a framework.

    Raises:
        UsageError: It cannot.
    """
    processors = len(os.sched_getaffinity(0))
    most = max(_PER_PROCESSOR * processors, _ALWAYS)
    if ranks > most:
        raise UsageError(
            f"{brief(ranks)} ranks on this machine, whose processors are {processors}; allowed: at most "
            f"{_PER_PROCESSOR} for each, or {_ALWAYS}; remedy: --ranks {most}, or a launcher of your own, such as "
            "mpiexec on several hosts"
        )


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How this process was started.

    Attributes:
        rank: From 0.
        size: Number of ranks.
        kind: How the ranks communicate.
        local_rank: The rank among those of this machine; None if the launcher does not provide it.
        by: The program that started the ranks.
    """

    rank: int
    size: int
    kind: Literal["mpi", "torch"]
    local_rank: int | None
    by: str


def launched() -> Launched | None:
    """How this process was started as one of several ranks, according to the environment only; None if it was not.

    A Slurm batch script does not count, although its environment gives a number of tasks, nor does the only rank of a
    job, unless `start_ranks` started it.

    Raises:
        UsageError: The environment variables cannot be parsed, or contradict each other.
    """
    own = os.environ.get(LAUNCH, "").partition(":")[0]
    found = [] if own == "torchrun" else [each for name in _MPI if (each := _by_mpi(name)) is not None]
    if own != "mpiexec" and (torch := _by_torch()) is not None:
        found.append(torch)
    if not found and (slurm := _by_slurm()) is not None:
        found.append(slurm)
    for other in found[1:]:
        if (other.rank, other.size) != (found[0].rank, found[0].size):
            raise UsageError(
                f"{found[0].by} says that this is rank {found[0].rank} of {found[0].size} and {other.by} that it is "
                f"rank {other.rank} of {other.size}; allowed: one launcher; remedy: unset the variables of the other"
            )
    if own:
        return _check_own(found)
    return found[0] if found and found[0].size > 1 else None


def _check_own(found: list[Launched]) -> Launched:
    said = os.environ[LAUNCH]
    size = said.partition(":")[2]
    if not found or str(found[0].size) != size:
        got = f"a job of {found[0].size}" if found else "no variable of it"
        raise UsageError(f"{LAUNCH}={brief(said)} and {got}; allowed: the same number; remedy: unset {LAUNCH}")
    return found[0]


def _by_mpi(name: str) -> Launched | None:
    rank, size, local = _MPI[name]
    if rank not in os.environ and size not in os.environ:
        return None
    return _checked(
        environment_number(rank),
        environment_number(size),
        "mpi",
        environment_number(local) if local in os.environ else None,
        name,
    )


def _by_torch() -> Launched | None:
    # Other programs also set a variable called RANK.
    if any(variable not in os.environ for variable in _TORCH):
        return None
    local = environment_number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else None
    by = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "RANK and WORLD_SIZE"
    return _checked(environment_number("RANK"), environment_number("WORLD_SIZE"), "torch", local, by)


def _by_slurm() -> Launched | None:
    """A task of a multi-task step; a batch script, and a shell in it, have a step of one task or no step."""
    if "SLURM_PROCID" not in os.environ or "SLURM_STEP_ID" not in os.environ:
        return None
    step = "SLURM_STEP_NUM_TASKS"
    size = environment_number(step if step in os.environ else "SLURM_NTASKS")
    if size == 1:
        return None
    rank = environment_number("SLURM_PROCID")
    if "PMIX_RANK" in os.environ and (other := environment_number("PMIX_RANK")) != rank:
        raise UsageError(f"SLURM_PROCID={rank} and PMIX_RANK={other}; allowed: the same; remedy: one launcher")
    local = environment_number("SLURM_LOCALID") if "SLURM_LOCALID" in os.environ else None
    return _checked(rank, size, "mpi", local, "srun")


def environment_number(variable: str) -> int:
    """The integer value of an environment variable.

    Raises:
        UsageError: It is not an integer, or is not set.
    """
    text = os.environ.get(variable)
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 9:
        got = "is not set" if text is None else f"is {brief(text)}"
        raise UsageError(f"the environment's {variable} {got}; allowed: an integer of at least 0")
    return int(text)


def _checked(rank: int, size: int, kind: Literal["mpi", "torch"], local: int | None, by: str) -> Launched:
    if rank >= size:
        raise UsageError(f"{by} says that this is rank {rank} of {size}; allowed: a rank below the number of ranks")
    return Launched(rank=rank, size=size, kind=kind, local_rank=local, by=by)
