"""One attempt at a run: a `deep5 run` process in a separate folder, with limits, whatever engine carries it out."""

from __future__ import annotations

import errno
import json
import os
import platform
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.child_process import supervise
from deep5.core.errors import OutputError, RunFailed
from deep5.core.files import write_atomically
from deep5.core.process_end import Ended, last_lines
from deep5.core.process_tree import resident_bytes
from deep5.core.python_child import python_command
from deep5.core.quantities import size
from deep5.measuring.pinning import environment, processors

if TYPE_CHECKING:
    import psutil

__all__ = ["ATTEMPT", "Outcome", "RunRequest", "attempt", "on_processors"]

ATTEMPT = "attempt.json"
"""The file of an attempt's folder: who carries it out, and how it ended."""

Stop = Callable[[Path], str | None]
"""Looks into an attempt's folder; returns why its run must end, or None."""

_INTERRUPTED = "was interrupted"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_slot = threading.local()


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run to carry out, in JSON types.

    Attributes:
        key: Names the run among those of its sweep or study; a file name.
        arguments: The command line after `deep5 run`, without `--out` and `--resume`.
        folder: Absolute path of the folder with a folder per run, each with a folder per attempt.
        threads: Threads within an operator.
        time_limit_s: Time limit.
        memory_limit_bytes: Memory limit of all its processes together.
    """

    key: str
    arguments: Sequence[str]
    folder: str
    threads: int
    time_limit_s: float
    memory_limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        attempt: Its folder.
        run: The result folder; None: there is none.
        status: Exit status of `deep5 run`; negative: the signal that ended it.
        stopped: Why it was ended, or None.
        reason: What went wrong, with its last output; None if it exited with status 0 or 1.
        wall_s: Its duration, over all processes of this attempt.
        memory_bytes: Largest observed resident memory.
        host: Name of the machine.
    """

    attempt: str
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
    """Carry out a run once: a new attempt, or the rest of one that was interrupted; of one that ended, its outcome.

    Args:
        request: The run.
        stop: Called every 0.1 s.

    Raises:
        RunFailed: It was interrupted, and can resume.
        OutputError: A disk is full: that says nothing about the run, which can resume.
        OSError: The folder cannot be written.
    """
    folder, left = _folder(Path(request.folder) / request.key)
    if (known := _outcome(folder)) is not None:
        return known
    about = {"host": platform.node(), "process": os.getpid(), "ended": None}
    before_s = _spent_s(folder)
    write_atomically(folder / ATTEMPT, json.dumps({**about, "wall_s": before_s}))
    most = 0
    pinned = getattr(_slot, "processors", None) or processors(request.threads)
    cancelled: threading.Event | None = getattr(_slot, "cancelled", None)

    def look(processes: Sequence[psutil.Process]) -> str | None:
        nonlocal most
        most = max(most, resident_bytes(processes))
        if most > request.memory_limit_bytes:
            return f"used too much memory, {size(most)},"
        if cancelled is not None and cancelled.is_set():
            return _INTERRUPTED
        return None if stop is None else stop(folder)

    words = ["run", *request.arguments, "--quiet", "--out", str(folder)]
    if left is not None:
        words += ["--resume", str(left)]
    ended = supervise(
        python_command(deep5, pinned, words, parent=os.getpid()),
        time_limit_s=request.time_limit_s,
        environment=environment(request.threads),
        look=look,
    )
    if ended.stopped == _INTERRUPTED:
        raise RunFailed(f"the run {request.key} {_INTERRUPTED}; what it left is in {folder}")
    outcome = Outcome(
        attempt=str(folder),
        run=_as_text(result_of(folder)),
        status=ended.status,
        stopped=ended.stopped,
        reason=_reason(ended, most > request.memory_limit_bytes, request),
        wall_s=before_s + ended.wall_s,
        memory_bytes=most,
        host=platform.node(),
    )
    if outcome.reason is not None and any(os.strerror(number) in outcome.reason for number in _NO_SPACE):
        raise OutputError(f"a process found no space on a disk: {outcome.reason}")
    write_atomically(folder / ATTEMPT, json.dumps({**about, "ended": asdict(outcome), "wall_s": outcome.wall_s}))
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
        folder: The attempt's folder.
    """
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return found[0] if found else None


def _folder(own: Path) -> tuple[Path, Path | None]:
    """The attempt's folder, and the result folder to resume in."""
    own.mkdir(parents=True, exist_ok=True)
    numbers = sorted(int(path.name) for path in own.iterdir() if path.name.isdecimal())
    if numbers:
        last = own / str(numbers[-1])
        left = result_of(last)
        if _outcome(last) is not None:
            return last, None
        if left is not None and (left / "result.json").exists():
            return last, left
    while True:
        number = numbers[-1] + 1 if numbers else 1
        try:
            (own / str(number)).mkdir()
        except FileExistsError:  # another attempt has just begun
            numbers.append(number)
            continue
        return own / str(number), None


def _read(folder: Path) -> Mapping[str, Any]:
    try:
        document = json.loads((folder / ATTEMPT).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _outcome(folder: Path) -> Outcome | None:
    """How an attempt ended; None: it was interrupted, or has not begun."""
    ended = _read(folder).get("ended")
    try:
        return Outcome(**ended) if isinstance(ended, dict) else None
    except TypeError:  # of another deep5
        return None


def _spent_s(folder: Path) -> float:
    """What earlier processes of an attempt took; of an interrupted one the time is lost with its process."""
    seconds = _read(folder).get("wall_s", 0.0)
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0


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
