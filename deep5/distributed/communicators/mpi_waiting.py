"""Waits for MPI, which cannot be interrupted: polls requests, watches blocking calls, keeps timed-out ones open."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, perf_counter_ns, sleep
from typing import Any

from deep5.core.errors import OperationTimeout

__all__ = ["OPEN", "REPORTS", "SAME", "Watched", "end_job_at_exit", "finish", "late", "leave"]

SAME = "remedy: every rank has to call the same collectives in the same order, on buffers of the same size"
"""The end of the messages of operations that did not complete."""

OPEN: list[Any] = []
"""Operations pending in a thread, or timed out and still pending in MPI; each has `Test`, like MPI requests."""

REPORTS: list[Callable[[str], None]] = []
"""Called with the message before a blocking operation that timed out ends this process."""

# How long after its limit a blocking operation whose rank was lost ends the process: others raise their errors first.
GRACE_S = 1.0
# After one rank fails, the others mostly fail for the same reason; they have this long to report it themselves.
_TOGETHER_S = 1.0
_WATCHED: weakref.WeakSet[Watched] = weakref.WeakSet()
# The status with which the end of this process ends the job; empty: it does not end the job.
_ENDING: list[int] = []


def finish(request: Any, what: str, timeout_s: float | None, status: Any = None, keep: bool = True) -> None:
    """Poll a request until it is done: at first without a pause, later with pauses of 1/100 of the wait.

    Args:
        request: An MPI request.
        what: Its name in messages.
        timeout_s: Time limit; None: unlimited.
        status: An MPI status that receives the request's information.
        keep: Whether a timed-out request is kept open.

    Raises:
        OperationTimeout: It timed out.
    """
    test = request.Test
    for _ in range(200):
        if test(status):
            return
    begin = monotonic()
    while not test(status):
        waited_s = monotonic() - begin
        if timeout_s is not None and waited_s > timeout_s:
            if keep:
                OPEN.append(request)
            raise OperationTimeout(late(what, timeout_s))
        if waited_s < 0.02:
            # There may be more ranks than processors.
            os.sched_yield()
        else:
            sleep(min(waited_s / 100, 0.001))


def late(what: str, timeout_s: float) -> str:
    """The message for a timed-out operation."""
    return f"{what} was not finished within {timeout_s:g} s; {SAME}"


class Watched:
    """Something that blocks occasionally, in one thread at a time, and is watched by another thread.

    Attributes:
        blocked: While it blocks: start time on `time.perf_counter_ns`, time limit in seconds, and name. Assigned
            directly, because a context manager takes longer than all other code around a sum of a megabyte.
    """

    def __init__(self) -> None:
        self.blocked: tuple[int, float, str] | None = None
        _watch()
        _WATCHED.add(self)


@functools.cache
def _watch() -> threading.Thread:
    """The thread that ends the process if a blocking operation does not return."""
    thread = threading.Thread(target=_look, name="deep5-mpi-watch", daemon=True)
    thread.start()
    return thread


def _look() -> None:
    while True:
        sleep(min(1.0, GRACE_S))
        for watched in list(_WATCHED):
            if (blocked := watched.blocked) is None:
                continue
            begin_ns, timeout_s, name = blocked
            if perf_counter_ns() - begin_ns > (timeout_s + GRACE_S) * 1e9:
                said = (
                    f"{name} was not finished within {timeout_s:g} s: another rank is late, or lost; remedy: a longer "
                    "timeout_s where ranks take so long; MPI cannot be interrupted, so this process exits"
                )
                for report in REPORTS:
                    report(said)
                if not REPORTS:
                    _print(said)
                os._exit(3)


def end_job_at_exit(status: int) -> None:
    """Let the end of this process end all ranks with this status; otherwise MPI_Finalize waits for waiting ranks.

    Has no effect if MPI was not initialized: then the launcher sees how the process ended.
    """
    _ENDING[:] = [status]


def leave(mpi: Any) -> None:
    """End the job if this rank failed, or if an operation is still open after a second.

    MPI_Finalize might wait forever for the operation's other end.
    """
    if _ENDING:
        sleep(_TOGETHER_S)
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        mpi.COMM_WORLD.Abort(_ENDING[0])
    deadline = monotonic() + 1.0
    while left := [each for each in OPEN if not each.Test()]:
        if monotonic() > deadline:
            _print(
                f"rank {mpi.COMM_WORLD.Get_rank()} exits with {len(left)} MPI operations pending: the job is aborted"
            )
            mpi.COMM_WORLD.Abort(3)
        sleep(0.01)


def _print(line: str) -> None:
    # Not `print`: another thread may hold its lock.
    os.write(sys.stderr.fileno() if sys.stderr is not None else 2, f"deep5: {line}\n".encode(errors="backslashreplace"))
