"""Waits for MPI, which cannot be interrupted: requests asked after, blocking calls watched, open ones left open."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from contextlib import suppress
from time import monotonic, perf_counter_ns, sleep
from typing import Any

from deep5.core.errors import CommunicationError

__all__ = ["OPEN", "SAME", "Watched", "end_job_at_exit", "finish", "late", "leave"]

SAME = "remedy: every rank has to call the same collectives in the same order, on buffers of the same size"
"""The end of messages of what did not come to an end."""

OPEN: list[Any] = []
"""What is under way in a thread, or out of time and still under way in MPI; has `Test`, as requests of MPI do."""

# How long after its limit a blocking operation in the middle of which a rank was lost ends the process.
GRACE_S = 5.0
# Where one rank failed, the others mostly fail by themselves of the same; then they say so, and write it down.
_TOGETHER_S = 1.0
_WATCHED: weakref.WeakSet[Watched] = weakref.WeakSet()
# With what the end of this process ends the job; empty: it does not.
_ENDING: list[int] = []


def finish(request: Any, what: str, timeout_s: float | None, status: Any = None, keep: bool = True) -> None:
    """Ask after a request until it is done: at first without a pause, later with one of a hundredth of the wait.

    Args:
        request: Of MPI.
        what: What it is called.
        timeout_s: Limit; None: none.
        status: Of MPI, takes what the request tells.
        keep: Whether a request that is out of time is left open.

    Raises:
        CommunicationError: It is out of time.
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
            raise CommunicationError(late(what, timeout_s))
        if waited_s < 0.02:
            # Ranks may be more than processors.
            os.sched_yield()
        else:
            sleep(min(waited_s / 100, 0.001))


def late(what: str, timeout_s: float) -> str:
    """The message of what is out of time."""
    return f"{what} was not finished within {timeout_s:g} s; {SAME}"


class Watched:
    """Something that blocks now and then, in one thread at a time, and that a thread watches.

    Attributes:
        blocked: While it blocks: since when, on `time.perf_counter_ns`, its limit in seconds, and how it is called.
            Written as it is, since a context manager takes longer than all else that surrounds a sum of a megabyte.
    """

    def __init__(self) -> None:
        self.blocked: tuple[int, float, str] | None = None
        _watch()
        _WATCHED.add(self)


@functools.cache
def _watch() -> threading.Thread:
    """The thread that ends the process where a blocking operation does not return."""
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
                _print(
                    f"{name} was not finished within {timeout_s:g} s: another rank is late, or lost; remedy: a longer "
                    "timeout_s where ranks take so long; MPI cannot be interrupted, so that this process ends"
                )
                os._exit(3)


def end_job_at_exit(status: int) -> None:
    """Let the end of this process end all ranks, with this status; without it, MPI_Finalize waits for those who wait.

    Nothing becomes of it where MPI was not begun: then the launcher sees how the process ended.
    """
    _ENDING[:] = [status]


def leave(mpi: Any) -> None:
    """End the job where this rank failed, or where an operation is still open after a second.

    MPI_Finalize might wait for its other end forever.
    """
    if _ENDING:
        sleep(_TOGETHER_S)
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        mpi.COMM_WORLD.Abort(_ENDING[0])
    deadline = monotonic() + 1.0
    while left := [each for each in OPEN if not each.Test()]:
        if monotonic() > deadline:
            _print(f"rank {mpi.COMM_WORLD.Get_rank()} ends with {len(left)} operations of MPI open: the job is ended")
            mpi.COMM_WORLD.Abort(3)
        sleep(0.01)


def _print(line: str) -> None:
    # Not print: another thread may hold its lock.
    os.write(sys.stderr.fileno() if sys.stderr is not None else 2, f"deep5: {line}\n".encode())
