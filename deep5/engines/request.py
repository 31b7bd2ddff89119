"""`RunRequest` and `Outcome`: a run that an engine carries out, and how it ended, in JSON types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deep5.core.errors import UsageError

__all__ = ["Outcome", "Refused", "RunRequest"]


class Refused(UsageError):
    """A run that an engine does not accept."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run to carry out.

    Attributes:
        key: Names the run among those of its sweep or study; a file name.
        arguments: The command line after `deep5 COMMAND`, without `--out` and `--resume`.
        folder: Absolute path of the folder with a folder per run, each with a folder per attempt.
        threads: Threads within an operator.
        processors: Number of processors for all its ranks together.
        time_limit_s: Time limit.
        memory_limit_bytes: Memory limit of all its processes together; None: what the worker has for it, or nine tenths
            of the memory that is free on the machine when it starts.
        timed: Whether its duration counts: then nothing else runs on the machine, if the engine can see to that.
        command: The command: `run`, or another one that has `--out`, whose output is kept.
        shared: Whether the machine that carries it out sees the folder; otherwise its results return in an archive.
    """

    key: str
    arguments: Sequence[str]
    folder: str
    threads: int
    processors: int
    time_limit_s: float
    memory_limit_bytes: int | None = None
    timed: bool = False
    command: Sequence[str] = ("run",)
    shared: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        attempt: Its folder.
        results: The folder with its result folder: its own, or that of an interrupted attempt.
        run: The result folder; None: there is none.
        status: Exit status of the command; negative: the signal that ended it.
        stopped: Why it was ended, or None.
        reason: What went wrong, with its last output; None if it exited with status 0 or 1.
        wall_s: Its duration, with that of the attempts in whose results it resumed.
        memory_bytes: Largest observed resident memory.
        host: Name of the machine.
    """

    attempt: str
    results: str
    run: str | None
    status: int
    stopped: str | None
    reason: str | None
    wall_s: float
    memory_bytes: int
    host: str
