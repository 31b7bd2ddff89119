"""Runs between a launcher and a rank: starts the rank, reports how it ended, and keeps its place until released.

A launcher that sees a rank end ends the others and prints pages of output. `hold` prevents that: it stays alive until
the process that watches all ranks releases it, and then exits with status 0.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any, NoReturn

from deep5.core.files import write_atomically
from deep5.core.parent_watch import die_with_parent

__all__ = ["LIFELINE", "OVER", "follow", "hold"]

LIFELINE = "lifeline"
"""A named pipe that the watching process keeps open as long as the ranks may live."""

OVER = "over"
"""A file that the watching process creates before it releases the holders."""

_PR_SET_CHILD_SUBREAPER = 36
# If the watching process ended while this one opened the pipe, only polling detects it.
_LOOK_MS = 10_000
_REMOVALS = 100


def follow(parent: int, command: Sequence[str]) -> NoReturn:
    """Become the launcher, which ends with its parent and removes the files and the shared memory of its job."""
    die_with_parent(parent, by=signal.SIGTERM)
    os.execvp(command[0], list(command))  # noqa: S606 - there is no shell between


def hold(folder: str, parent: int, variable: str, unset: Sequence[str], command: Sequence[str]) -> NoReturn:
    """Run a rank's command to its end, and wait until the watching process releases this one.

    Args:
        folder: Folder of the watching process. `ended-R.json` is written there: the rank's `status`, or the `signal`
            that ended it.
        parent: The watching process.
        variable: The variable in which the launcher passes the rank.
        unset: Variables that the launcher sets by itself and the rank must not see.
        command: The rank's command.
    """
    rank = os.environ[variable]
    lifeline = os.open(f"{folder}/{LIFELINE}", os.O_RDONLY | os.O_NONBLOCK)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # A close is only detected on a pipe that is held open now.
    if not _lives(parent) or Path(folder, OVER).exists():
        _leave()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)  # the launcher's signals; those for the ranks come from the watching process
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    _adopt()
    own = os.getpid()
    child = os.fork()
    if child == 0:
        _become(own, folder, rank, unset, command)
    write_atomically(
        f"{folder}/holder-{rank}.json", json.dumps({"pid": os.getpid(), "rank_pid": child, "at_ns": monotonic_ns()})
    )
    waiting = select.poll()
    waiting.register(woken, select.POLLIN)
    waiting.register(lifeline, 0)  # a hang-up is always reported
    running = True
    while True:
        events = waiting.poll(_LOOK_MS)
        if any(handle == lifeline for handle, _ in events) or (not events and not _lives(parent)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            if not Path(folder, OVER).exists():
                # The process that would have deleted it was killed.
                _remove(folder)
            _leave()
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        if running and (ended := _ended(child)) is not None:
            running = False
            write_atomically(f"{folder}/ended-{rank}.json", json.dumps({**ended, "at_ns": monotonic_ns()}))


def _remove(folder: str) -> None:
    """Remove the folder; again if a rank that is about to end, here or in another holder, adds a file meanwhile."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(0.01)


def _ended(child: int) -> dict[str, Any] | None:
    """How the rank ended, or None; also reaps the processes that it left to this one."""
    found = None
    with suppress(ChildProcessError):
        while True:
            number, status = os.waitpid(-1, os.WNOHANG)
            if number == 0:
                break
            if number == child:
                code = os.waitstatus_to_exitcode(status)
                found = {"status": None, "signal": -code} if code < 0 else {"status": code, "signal": None}
    return found


def _become(holder: int, folder: str, rank: str, unset: Sequence[str], command: Sequence[str]) -> NoReturn:
    """In the child: become the rank, in a separate process group, with its output connected to the watching process."""
    try:
        die_with_parent(holder)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for variable in unset:
            os.environ.pop(variable, None)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/rank-{rank}.{name}", os.O_WRONLY | os.O_NOCTTY), stream)
        os.execvp(command[0], list(command))  # noqa: S606 - there is no shell between
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(127)


def _adopt() -> None:
    """Adopt the orphans of a rank, so that the watching process finds them."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(process)


def _zombie(process: int) -> bool:
    # A container without an init process keeps zombies.
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def _ignore(number: int, frame: Any) -> None:
    """A handler instead of SIG_IGN, which the rank would inherit."""


def _leave() -> NoReturn:
    os._exit(0)
