"""Slurm's commands: submit, look, cancel; with limits, and errors that say whether the controller was reached."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deep5.core.errors import Deep5Error, UsageError
from deep5.engines.request import Refused

__all__ = ["ALLOWED", "Job", "Unreachable", "cancel", "cancel_job", "check", "jobs", "requeue", "submit"]

ALLOWED = "allowed: what the cluster has; remedy: sinfo shows its partitions and nodes, and man sbatch the options"
"""The end of a message on a job that Slurm does not accept."""

_LIMIT_S, _CHECK_S = 60.0, 15.0
# What the commands say if the controller does not answer, or is busy; everything else is a refusal.
_UNREACHABLE = (
    "unable to contact", "socket timed out", "connection refused", "connection failure", "zero bytes were transmitted",
    "temporarily unable", "temporarily unavailable", "transport endpoint", "controller not responding",
    "connection timed out", "communication failure", "connection reset", "protocol authentication",
)  # fmt: skip


class Unreachable(Deep5Error):
    """The controller does not answer, which may change."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, or a task of an array, as Slurm knows it.

    Attributes:
        number: What Slurm calls it; numbers are used again after faults.
        state: Such as PENDING.
        reason: Why it waits.
    """

    number: str
    state: str
    reason: str


def check() -> None:
    """Reject a machine without Slurm.

    Raises:
        UsageError: The commands are missing, or no controller answers.
    """
    lacking = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]
    if lacking:
        raise UsageError(
            f"the command {lacking[0]} was not found; allowed: the engine slurm on a machine that submits jobs; "
            "remedy: a login node, or --engine local"
        )
    try:
        _said(["squeue", "--noheader", "--format=%i", "--name=deep5-none"], limit_s=_CHECK_S)
    except Deep5Error as error:
        remedy = "set SLURM_CONF to its slurm.conf" if "configuration source" in str(error) else "scontrol ping"
        raise UsageError(
            f"Slurm's controller does not answer: {error}; allowed: a cluster in operation; remedy: {remedy}"
        ) from error


def submit(options: Sequence[str], script: str) -> str:
    """Submit a job, and return its number.

    Args:
        options: Options of `sbatch`.
        script: The script.

    Raises:
        Refused: Slurm does not accept it; states why.
        Unreachable: The controller does not answer. The job may have been submitted nevertheless.
    """
    return _said(["sbatch", "--parsable", *options], script).strip().split(";")[0]


def jobs(names: Sequence[str]) -> Mapping[tuple[str, int], Job]:
    """Jobs by their names and numbers in their arrays, which are 0 without one; those that ended may be missing.

    Args:
        names: Names of jobs.

    Raises:
        Unreachable: The controller does not answer.
        Refused: It answers with an error.
    """
    listed = _said(
        [
            "squeue",
            "--me",
            "--noheader",
            "--array",
            "--states=all",
            f"--name={','.join(names)}",
            "--format=%j|%K|%T|%i|%r",
        ]
    )
    found: dict[tuple[str, int], Job] = {}
    for line in listed.splitlines():
        parts = line.strip().split("|", 4)
        if len(parts) == 5:
            name, place, state, number, reason = parts
            key = (name, int(place) if place.isdecimal() else 0)
            # A name is submitted once; where a fault repeats it, one that has not ended counts.
            if key not in found or state in ("PENDING", "RUNNING"):
                found[key] = Job(number=number, state=state, reason=reason)
    return found


def cancel(names: Sequence[str]) -> None:
    """Cancel all jobs with these names.

    Args:
        names: The names.
    """
    for name in names:
        _said(["scancel", f"--name={name}"])


def cancel_job(number: str) -> None:
    """Cancel a job.

    Args:
        number: The job, or the task of an array.
    """
    _said(["scancel", number])


def requeue(number: str) -> None:
    """Let a job start again.

    Args:
        number: The job, or the task of an array.
    """
    _said(["scontrol", "requeue", number])


def _said(command: Sequence[str], sent: str = "", limit_s: float = _LIMIT_S) -> str:
    """What a command prints."""
    try:
        done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{command[0]} did not finish within {limit_s:g} s") from error
    except OSError as error:
        raise Unreachable(f"{command[0]} cannot be started: {error}") from error
    # Each line begins with the command's name and "error:".
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in done.stderr.splitlines()]
    said = "; ".join(filter(None, lines))[:500]
    if done.returncode == 0:
        return done.stdout
    if any(own in said.lower() for own in _UNREACHABLE):
        raise Unreachable(f"{command[0]}: {said}")
    raise Refused(f"{command[0]}: {said or f'exit status {done.returncode}'}")
