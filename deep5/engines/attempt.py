"""One attempt at a run: a `deep5 run` process in a separate folder, with limits, whatever engine carries it out."""

from __future__ import annotations

import errno
import os
import platform
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from deep5.core.child_process import supervise
from deep5.core.errors import OutputError
from deep5.core.process_end import Ended, last_lines
from deep5.core.process_tree import resident_bytes
from deep5.core.python_child import python_command
from deep5.core.quantities import size
from deep5.engines.claims import claimed
from deep5.engines.lease import Interrupted, Lease, lease_or_outcome, result_of
from deep5.engines.request import Outcome, RunRequest
from deep5.measuring.pinning import environment

if TYPE_CHECKING:
    import psutil

__all__ = ["OUTPUT", "Stop", "Worker", "at_work", "attempt", "free_share"]

OUTPUT = "output.txt"
"""What a command other than `run` printed, in the folder of the attempt."""

Stop = Callable[[Path], str | None]
"""Looks into the folder with an attempt's result folder; returns why its run must end, or None."""

# How long an interrupted run may take to finish its step and write a checkpoint.
_GRACE_S = 20.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_own = threading.local()


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What carries out runs, one at a time.

    Attributes:
        processors: Their processors, as of `os.sched_setaffinity`; None: free ones of this process.
        memory_bytes: Their memory limit, unless they state one; None: nine tenths of the memory that is free.
        cancelled: Interrupts them when it is set.
    """

    processors: Sequence[int] | None = None
    memory_bytes: int | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)


@contextmanager
def at_work(worker: Worker) -> Iterator[None]:
    """Attempts of this thread are carried out by this worker.

    Args:
        worker: The worker.
    """
    _own.worker = worker
    try:
        yield
    finally:
        del _own.worker


def free_share(parts: int = 1) -> int:
    """Nine tenths of the memory that is free now, in equal parts.

    Args:
        parts: Number of parts.

    Returns:
        Bytes of one part.
    """
    import psutil

    return int(0.9 * psutil.virtual_memory().available) // parts


def attempt(request: RunRequest, stop: Stop | None = None) -> Outcome:
    """Carry out a run once: a new attempt, or the rest of an interrupted one; of a run that has ended, its outcome.

    An attempt whose process still lives, such as one of an earlier driver, is waited for.

    Args:
        request: The run.
        stop: Called every 0.1 s.

    Raises:
        Interrupted: It was interrupted, and can resume.
        OutputError: A disk is full: that says nothing about the run, which can resume.
        OSError: The folder cannot be written.
    """
    worker: Worker = getattr(_own, "worker", None) or Worker()
    resumes = request.command[0] != "bench"
    lease = lease_or_outcome(Path(request.folder) / request.key, worker.cancelled, resumes=resumes)
    if isinstance(lease, Outcome):
        return lease
    with lease:
        given = worker.processors
        free = claimed(request.processors, request.time_limit_s, lease.renew)
        with free if given is None else nullcontext([*given]) as pinned:
            return _Attempt(request, lease, worker, stop).carried_out(pinned)


class _Attempt:
    """An attempt under way."""

    def __init__(self, request: RunRequest, lease: Lease, worker: Worker, stop: Stop | None) -> None:
        self._request, self._lease, self._stop = request, lease, stop
        self._cancelled = worker.cancelled
        self._most_bytes, self._asked_at = 0, 0.0
        self._allowed_bytes = request.memory_limit_bytes or worker.memory_bytes or free_share()

    def carried_out(self, pinned: Sequence[int]) -> Outcome:
        request, lease = self._request, self._lease
        run = tuple(request.command) == ("run",)
        words = [*request.command, *request.arguments, *(["--quiet"] if run else []), "--out", str(lease.results)]
        if (left := result_of(lease.results)) is not None:
            words += ["--resume", str(left)]
        ended = supervise(
            python_command(deep5, pinned, words, parent=os.getpid()),
            time_limit_s=request.time_limit_s,
            environment=environment(request.threads) if run else None,
            look=self._look,
            separate=not run,
        )
        if not run:
            (lease.folder / OUTPUT).write_bytes(ended.output)
        if self._asked_at and ended.status not in (0, 1):
            lease.release()
            raise Interrupted(f"the run {request.key} was interrupted; what it left is in {lease.results}")
        result = result_of(lease.results)
        outcome = Outcome(
            attempt=str(lease.folder),
            results=str(lease.results),
            run=None if result is None else str(result),
            status=ended.status,
            stopped=ended.stopped,
            reason=self._reason(ended),
            wall_s=lease.before_s + ended.wall_s,
            memory_bytes=self._most_bytes,
            host=platform.node(),
        )
        if outcome.reason is not None and any(os.strerror(number) in outcome.reason for number in _NO_SPACE):
            raise OutputError(f"a process found no space on a disk: {outcome.reason}")
        lease.end(outcome)
        return outcome

    def _look(self, processes: Sequence[psutil.Process]) -> str | None:
        self._lease.renew()
        used = resident_bytes(processes)
        self._most_bytes = max(self._most_bytes, used)
        if used > self._allowed_bytes:
            return f"used too much memory, {size(used)},"
        if self._cancelled.is_set():
            return self._interrupt(processes[0])
        return None if self._stop is None else self._stop(self._lease.results)

    def _interrupt(self, process: psutil.Process) -> str | None:
        """Let it finish its step and write a checkpoint, for a time."""
        import psutil

        if not self._asked_at:
            self._asked_at = monotonic()
            with suppress(psutil.Error):
                process.send_signal(signal.SIGTERM)
        return "was interrupted" if monotonic() - self._asked_at > _GRACE_S else None

    def _reason(self, ended: Ended) -> str | None:
        if self._most_bytes > self._allowed_bytes:
            return f"it {ended.stopped}; allowed: {size(self._allowed_bytes)}; remedy: --memory-limit"
        if ended.late:
            return f"it {ended.stopped}; remedy: --time-limit, or a smaller size"
        if ended.stopped is not None or ended.status in (0, 1):
            return None
        said = _message(ended.output + ended.errors)
        return said if said else f"it {ended.fault()}"


def deep5(numbers: Sequence[int], words: Sequence[str], *_: Any) -> None:
    """Main function of the process: the program `deep5` on these processors.

    Args:
        numbers: The processors.
        words: Its command line.
    """
    # If memory runs out, the system should end this process rather than its parent.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)  # before anything is loaded: libraries count processors at load time
    sys.argv = ["deep5", *words]
    runpy.run_module("deep5", run_name="__main__")


def _message(output: bytes) -> str:
    """The error that the command printed."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith("deep5: ")]
    lines = [line for line in lines if not line.startswith("deep5: warning: ")]
    return lines[-1].removeprefix("deep5: ")[:2000] if lines else last_lines(output).lstrip("; ")
