"""Between a launcher and a rank: starts the rank, says how it ended, and keeps its place until all may go.

A launcher that sees a rank end ends the others, and prints pages. It does not see it here: `hold` lives on until the
process that watches all ranks lets go, and then ends without an error.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any, NoReturn

from deep5.core.files import write_atomically
from deep5.core.parent_watch import die_with_parent

__all__ = ["LIFELINE", "OVER", "follow", "hold"]

LIFELINE = "lifeline"
"""A pipe by name, which the watching process holds open for as long as the ranks may live."""

OVER = "over"
"""A file that is there before the watching process lets go."""

_PR_SET_CHILD_SUBREAPER = 36
# Should the watching process have ended while this one opened the pipe, nothing but a look tells.
_LOOK_MS = 10_000


def follow(parent: int, command: Sequence[str]) -> NoReturn:
    """Become the launcher, which ends with its parent, and puts away the files and the shared memory of its job."""
    die_with_parent(parent, by=signal.SIGTERM)
    os.execvp(command[0], list(command))  # noqa: S606 - there is no shell between


def hold(folder: str, parent: int, variable: str, unset: Sequence[str], command: Sequence[str]) -> NoReturn:
    """Run a rank's command to its end, and wait until the watching process lets go.

    Args:
        folder: Of the watching process. `ended-R.json` is written there: `status` of the rank, or the `signal` that
            ended it.
        parent: The watching process.
        variable: What the launcher says the rank in.
        unset: Variables that the launcher sets by itself and the rank is not to see.
        command: The rank's.
    """
    rank = os.environ[variable]
    lifeline = os.open(f"{folder}/{LIFELINE}", os.O_RDONLY | os.O_NONBLOCK)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Only what is held open now can be seen to close.
    if not _lives(parent) or Path(folder, OVER).exists():
        _leave()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)  # a launcher's; the ranks are the watching process's matter
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
    waiting.register(lifeline, 0)  # a hang-up is told in any case
    running = True
    while True:
        events = waiting.poll(_LOOK_MS)
        if any(handle == lifeline for handle, _ in events) or (not events and not _lives(parent)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            if not Path(folder, OVER).exists():
                # Who would have deleted it was killed.
                shutil.rmtree(folder, ignore_errors=True)
            _leave()
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        if running and (ended := _ended(child)) is not None:
            running = False
            write_atomically(f"{folder}/ended-{rank}.json", json.dumps({**ended, "at_ns": monotonic_ns()}))


def _ended(child: int) -> dict[str, Any] | None:
    """How the rank ended, or None; what it has left to this process is reaped beside."""
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
    """In the child: the rank, in a group of processes of its own, its output where the watching process takes it."""
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
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _adopt() -> None:
    """What a rank leaves behind becomes this process's child, where the watching process finds it."""
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
    # A container without an init keeps what ended.
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def _ignore(number: int, frame: Any) -> None:
    """A handler, and not SIG_IGN: that, the rank would inherit."""


def _leave() -> NoReturn:
    os._exit(0)
