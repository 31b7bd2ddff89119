"""Jobs in separate processes: pinned, monitored, and ended if they exceed their time or memory limit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import psutil

from deep5.core.errors import UsageError
from deep5.measuring.pinning import environment, processors

__all__ = ["Outcome", "check_limits", "run_process"]

# A fresh process finds modules where this one does: not in a folder named `deep5` in its working directory.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from deep5.compare.child import main; main(sys.argv[2:])"
)
# Polling interval of a process. Each poll costs the parent's core about 0.2 ms.
_LOOK_S = 0.1
_LAST_LINES, _LAST_BYTES, _MOST_SAID = 3, 20_000, 64 << 20
_LEAST_MEMORY = 256 << 20
# Ranks notice immediately that their parent is gone.
_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a process.

    Attributes:
        answer: Its result, or None. May be present together with a reason: measurements are kept.
        reason: Why it does not count, or None.
        begin_s: Start time, in seconds since the origin.
        wall_s: Duration.
        memory_bytes: Largest observed resident memory.
    """

    answer: dict[str, Any] | None
    reason: str | None
    begin_s: float
    wall_s: float
    memory_bytes: int


def check_limits(time_limit_s: float, memory_limit_bytes: int | None) -> int:
    """Reject invalid limits.

    Args:
        time_limit_s: Time limit of one process.
        memory_limit_bytes: Memory limit of one process; None: nine tenths of the memory that is free now.

    Returns:
        The memory limit.

    Raises:
        UsageError: States what is allowed.
    """
    if not 0 < time_limit_s < math.inf:
        raise UsageError(f"a limit of {time_limit_s!r} s; allowed: above 0 s, and finite")
    if memory_limit_bytes is not None and not _LEAST_MEMORY <= memory_limit_bytes < 1 << 63:
        raise UsageError(f"a limit of {memory_limit_bytes!r:.40} bytes; allowed: at least 256 MiB")
    return memory_limit_bytes or int(0.9 * psutil.virtual_memory().available)


def run_process(
    request: Mapping[str, Any],
    folder: Path,
    *,
    threads: int,
    time_limit_s: float,
    memory_limit_bytes: int,
    origin: float = 0.0,
    pinned: int | None = None,
) -> Outcome:
    """Run one job in a fresh process, and wait for it.

    Args:
        request: The request, in JSON types; `folder` is added.
        folder: Folder of the answer.
        threads: Threads within an operator, for each process.
        time_limit_s: Time limit.
        memory_limit_bytes: Memory limit of the process and its children.
        origin: Origin of the outcome's `begin_s`, as a `perf_counter` value.
        pinned: Number of processors for the process and its children; None: as many as threads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requested, answer, doing = (folder / name for name in ("request.json", "answer.json", "doing.txt"))
    more = {"folder": str(folder), "processors": processors(pinned or threads), "parent": os.getpid()}
    requested.write_text(json.dumps({**request, **more}))
    begin = perf_counter()
    reason, memory = None, 0
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment(threads),
            # A separate process group, ended as a whole so that no child runs beside the next job.
            start_new_session=True,
        )
        started: set[psutil.Process] = set()
        try:
            watched = psutil.Process(child.pid)
            while True:
                try:
                    child.wait(_LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    below = _children(watched)
                    started.update(below)
                    memory = max(memory, _resident((watched, *below)))
                if memory > memory_limit_bytes:
                    reason = (
                        # Rounded up and down, so that the message shows the used memory above the limit.
                        f"it used {math.ceil(memory / 2**20)} MiB of memory in {_doing(doing)}; allowed: "
                        f"{memory_limit_bytes >> 20} MiB; remedy: --memory-limit, or a smaller size"
                    )
                elif os.fstat(said.fileno()).st_size > _MOST_SAID:
                    reason = f"it printed more than {_MOST_SAID >> 20} MiB in {_doing(doing)}"
                elif perf_counter() - begin > time_limit_s:
                    reason = (
                        f"it did not finish within {time_limit_s:g} s, in {_doing(doing)}; remedy: --time-limit, or "
                        "a smaller size"
                    )
                if reason is not None:
                    break
        finally:
            _end(child, started)
        wall = perf_counter() - begin
        if reason is None:
            reason = _fault(child.returncode, answer, doing, said)
    found: dict[str, Any] | None = None
    if reason is None:
        try:
            found = json.loads(answer.read_text())
            memory = max(memory, int(found["memory_bytes"]))
            reason = found.get("reason")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            found, reason = None, f"its answer cannot be read ({type(error).__name__}: {error})"
    return Outcome(answer=found, reason=reason, begin_s=begin - origin, wall_s=wall, memory_bytes=memory)


def _resident(processes: Iterable[psutil.Process]) -> int:
    """Resident memory of processes; ended processes are ignored."""
    total = 0
    for each in processes:
        try:
            total += int(each.memory_info().rss)
        except psutil.Error:
            continue
    return total


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _end(child: subprocess.Popen[bytes], started: Iterable[psutil.Process]) -> None:
    """End a process and all its descendants.

    Descendants in their own process group, such as ranks, get some time to notice that this process is gone and to
    delete their files.
    """
    left = set(started)
    if child.poll() is None:
        with suppress(psutil.Error):
            left.update(_children(psutil.Process(child.pid)))
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.poll() is None:
        child.kill()
        child.wait()
    deadline = monotonic() + _GRACE_S
    while (left := {each for each in left if _lives(each)}) and monotonic() < deadline:
        sleep(_LOOK_S / 4)
    for each in left:
        with suppress(psutil.Error):
            each.kill()


def _lives(process: psutil.Process) -> bool:
    """Whether a process is alive; a zombie is not (containers without an init process keep them)."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _doing(doing: Path) -> str:
    return doing.read_text(errors="replace") if doing.exists() else "the start"


def _fault(status: int, answer: Path, doing: Path, said: Any) -> str | None:
    """Why an ended process has no answer, or None if it has one."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _LAST_BYTES))
    lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    reported = _brief(lines)
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        why = "; the system does so when memory runs out" if name == "SIGKILL" else ""
        return f"it was killed by {name} in {_doing(doing)}{why}{reported}"
    if status or not answer.exists():
        return f"it exited with status {status} in {_doing(doing)}, without an answer{reported}"
    return None


def _brief(lines: Sequence[str]) -> str:
    last = " | ".join(line.strip()[:200] for line in lines[-_LAST_LINES:])
    return f"; its last output: {last}" if last else ""
