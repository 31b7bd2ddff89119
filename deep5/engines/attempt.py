"""One attempt at a run: a `deep5 run` process in a separate folder, with limits, whatever engine carries it out."""

from __future__ import annotations

import errno
import json
import os
import platform
import runpy
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Self

from deep5.core.child_process import supervise
from deep5.core.errors import OutputError, RunFailed
from deep5.core.files import write_atomically
from deep5.core.process_end import Ended, last_lines
from deep5.core.process_tree import resident_bytes
from deep5.core.python_child import python_command
from deep5.core.quantities import size
from deep5.engines.claims import claimed
from deep5.measuring.pinning import environment

if TYPE_CHECKING:
    import psutil

__all__ = ["ATTEMPT", "Outcome", "RunRequest", "attempt", "on_processors"]

ATTEMPT = "attempt.json"
"""The file of an attempt's folder: who carries it out, and how it ended."""

Stop = Callable[[Path], str | None]
"""Looks into the folder with an attempt's result folder; returns why its run must end, or None."""

_INTERRUPTED = "was interrupted"
# An attempt's file is renewed at this interval; without renewal for this long, its process is taken for dead, if it is
# on another machine; interval of looking for the end of a process that lives.
_RENEWED_S, _STALE_S, _WAIT_S = 5.0, 60.0, 0.2
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_slot = threading.local()
# Folders of the attempts that this process carries out.
_here: set[Path] = set()


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run to carry out, in JSON types.

    Attributes:
        key: Names the run among those of its sweep or study; a file name.
        arguments: The command line after `deep5 run`, without `--out` and `--resume`.
        folder: Absolute path of the folder with a folder per run, each with a folder per attempt.
        threads: Threads within an operator.
        processors: Number of processors for all its ranks together.
        time_limit_s: Time limit.
        memory_limit_bytes: Memory limit of all its processes together.
    """

    key: str
    arguments: Sequence[str]
    folder: str
    threads: int
    processors: int
    time_limit_s: float
    memory_limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        attempt: Its folder.
        results: The folder with its result folder: its own, or that of an interrupted attempt.
        run: The result folder; None: there is none.
        status: Exit status of `deep5 run`; negative: the signal that ended it.
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


@contextmanager
def on_processors(numbers: Sequence[int], cancelled: threading.Event) -> Iterator[None]:
    """Attempts of this thread are pinned to these processors.

    Args:
        numbers: As of `os.sched_setaffinity`.
        cancelled: Ends them when it is set; they count as interrupted.
    """
    _slot.processors, _slot.cancelled = list(numbers), cancelled
    try:
        yield
    finally:
        del _slot.processors, _slot.cancelled


def attempt(request: RunRequest, stop: Stop | None = None) -> Outcome:
    """Carry out a run once: a new attempt, or the rest of an interrupted one; of a run that has ended, its outcome.

    An attempt whose process still lives, such as one of an earlier driver, is waited for.

    Args:
        request: The run.
        stop: Called every 0.1 s.

    Raises:
        RunFailed: It was interrupted, and can resume.
        OutputError: A disk is full: that says nothing about the run, which can resume.
        OSError: The folder cannot be written.
    """
    cancelled: threading.Event | None = getattr(_slot, "cancelled", None)
    lease = _lease(Path(request.folder) / request.key, cancelled)
    if isinstance(lease, Outcome):
        return lease
    given = getattr(_slot, "processors", None)
    with lease:
        free = claimed(request.processors, request.time_limit_s, lease.renew) if given is None else nullcontext(given)
        with free as pinned:
            return _carried_out(request, lease, pinned, stop, cancelled)


def _carried_out(
    request: RunRequest,
    lease: _Lease,
    pinned: Sequence[int],
    stop: Stop | None,
    cancelled: threading.Event | None,
) -> Outcome:
    most = 0

    def look(processes: Sequence[psutil.Process]) -> str | None:
        nonlocal most
        lease.renew()
        most = max(most, resident_bytes(processes))
        if most > request.memory_limit_bytes:
            return f"used too much memory, {size(most)},"
        if cancelled is not None and cancelled.is_set():
            return _INTERRUPTED
        return None if stop is None else stop(lease.results)

    words = ["run", *request.arguments, "--quiet", "--out", str(lease.results)]
    if (left := result_of(lease.results)) is not None:
        words += ["--resume", str(left)]
    ended = supervise(
        python_command(deep5, pinned, words, parent=os.getpid()),
        time_limit_s=request.time_limit_s,
        environment=environment(request.threads),
        look=look,
    )
    if ended.stopped == _INTERRUPTED:
        raise RunFailed(f"the run {request.key} {_INTERRUPTED}; what it left is in {lease.results}")
    outcome = Outcome(
        attempt=str(lease.folder),
        results=str(lease.results),
        run=_as_text(result_of(lease.results)),
        status=ended.status,
        stopped=ended.stopped,
        reason=_reason(ended, most > request.memory_limit_bytes, request),
        wall_s=lease.before_s + ended.wall_s,
        memory_bytes=most,
        host=platform.node(),
    )
    if outcome.reason is not None and any(os.strerror(number) in outcome.reason for number in _NO_SPACE):
        raise OutputError(f"a process found no space on a disk: {outcome.reason}")
    lease.end(outcome)
    return outcome


def deep5(numbers: Sequence[int], words: Sequence[str], *_: Any) -> None:
    """Main function of the process: the program `deep5` on these processors.

    Args:
        numbers: The processors.
        words: Its command line.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)  # before anything is loaded: libraries count processors at load time
    sys.argv = ["deep5", *words]
    runpy.run_module("deep5", run_name="__main__")


def result_of(folder: Path) -> Path | None:
    """The result folder of an attempt, or None.

    Args:
        folder: The folder that the run got as `--out`.
    """
    if not folder.is_dir():
        return None
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return found[0] if found else None


class _Lease:
    """The right to carry out a run: a new folder of an attempt, whose file is renewed while its process lives.

    A context manager: the attempt is under way within it.

    Args:
        folder: The attempt's folder, which does not exist.
        before: The folder of an interrupted attempt on this machine, in whose results this one resumes; or None.

    Raises:
        FileExistsError: Another process has made it.
    """

    def __init__(self, folder: Path, before: Path | None) -> None:
        earlier = {} if before is None else _read(before)
        self.results = folder if before is None else before.parent / str(earlier["results"])
        self.before_s = float(earlier.get("wall_s", 0.0))
        self._began = self._renewed = monotonic()
        # With its file from the start, and only once: a folder that is not empty cannot be replaced.
        self.folder = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
        self.folder.mkdir()
        self._write(None)
        try:
            self.folder.rename(folder)
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError from error
            raise
        self.folder = folder

    def __enter__(self) -> Self:
        _here.add(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        _here.discard(self.folder)

    def renew(self) -> None:
        """Show that the process lives."""
        if monotonic() - self._renewed >= _RENEWED_S:
            self._write(None)
            self._renewed = monotonic()

    def end(self, outcome: Outcome) -> None:
        """Store how the attempt ended."""
        self._write(outcome)

    def _write(self, outcome: Outcome | None) -> None:
        import psutil

        about = {
            "host": platform.node(),
            "process": os.getpid(),
            "created": psutil.Process().create_time(),
            "results": self.results.name,
            "wall_s": self.before_s + monotonic() - self._began,
            "ended": None if outcome is None else asdict(outcome),
        }
        write_atomically(self.folder / ATTEMPT, json.dumps(about))


def _lease(own: Path, cancelled: threading.Event | None) -> _Lease | Outcome:
    """The right to carry out a run; or, if it has ended, its outcome."""
    own.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = sorted(int(path.name) for path in own.iterdir() if path.name.isdecimal())
        before: Path | None = None
        if numbers:
            last = own / str(numbers[-1])
            if (known := _outcome(last)) is not None:
                return known
            if _lives(last):
                if cancelled is not None and cancelled.is_set():
                    raise RunFailed(f"the run {own.name} {_INTERRUPTED} while another process carries it out")
                sleep(_WAIT_S)
                continue
            before = last if _can_resume(last) else None
        with suppress(FileExistsError):  # another process was faster
            return _Lease(own / str((numbers[-1] if numbers else 0) + 1), before)


def _lives(folder: Path) -> bool:
    """Whether the process of an attempt lives: known for certain on its machine; elsewhere by the last renewal."""
    import psutil

    about = _read(folder)
    if about.get("host") == platform.node():
        if about.get("process") == os.getpid():
            return folder in _here
        try:
            process = psutil.Process(about["process"])
            # A zombie has ended, and its parent has not noticed.
            return bool(process.create_time() == about["created"] and process.status() != psutil.STATUS_ZOMBIE)
        except (KeyError, psutil.Error):
            return False
    # By the clock of the disk, which machines share.
    clock = folder / f".clock-{secrets.token_hex(4)}"
    clock.touch()
    now = clock.stat().st_mtime
    clock.unlink()
    return now - (folder / ATTEMPT).stat().st_mtime < _STALE_S


def _can_resume(folder: Path) -> bool:
    """Whether an interrupted attempt left what another one on this machine can resume.

    On another machine its process may be stopped only for a time, and would then write into the same folder.
    """
    about = _read(folder)
    results = about.get("results")
    if about.get("host") != platform.node() or not isinstance(results, str) or not results.isdecimal():
        return False
    left = result_of(folder.parent / results)
    return left is not None and (left / "result.json").exists()


def _read(folder: Path) -> Mapping[str, Any]:
    try:
        document = json.loads((folder / ATTEMPT).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _outcome(folder: Path) -> Outcome | None:
    """How an attempt ended; None: it was interrupted, or is under way."""
    about = _read(folder)
    ended, results = about.get("ended"), about.get("results")
    if not isinstance(ended, dict) or not isinstance(results, str) or not results.isdecimal():
        return None
    # Where they are now: the folder may have been moved.
    place = folder.parent / results
    here = {"attempt": str(folder), "results": str(place), "run": _as_text(result_of(place))}
    try:
        return Outcome(**{**ended, **here})
    except TypeError:  # of another deep5
        return None


def _reason(ended: Ended, too_large: bool, request: RunRequest) -> str | None:
    if too_large:
        return f"it {ended.stopped}; allowed: {size(request.memory_limit_bytes)}; remedy: --memory-limit"
    if ended.late:
        return f"it {ended.stopped}; remedy: --time-limit, or a smaller size"
    if ended.stopped is not None or ended.status in (0, 1):
        return None
    said = _message(ended.output)
    return said if said else f"it {ended.fault()}"


def _message(output: bytes) -> str:
    """The error that the command printed."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith("deep5: ")]
    lines = [line for line in lines if not line.startswith("deep5: warning: ")]
    return lines[-1].removeprefix("deep5: ")[:2000] if lines else last_lines(output).lstrip("; ")


def _as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)
