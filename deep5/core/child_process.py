"""Supervises a child process: limits its time and output, and kills it with all its descendants.

`python_child` runs functions in a fresh Python interpreter by it. A job of ranks, which has many processes, uses only
`start`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from time import monotonic
from typing import IO, TYPE_CHECKING

from deep5.core.process_end import Ended
from deep5.core.process_tree import descendants, end_processes
from deep5.core.quantities import size

if TYPE_CHECKING:
    import psutil

__all__ = ["MOST_PRINTED", "Hear", "Look", "start", "supervise"]

MOST_PRINTED = 64 << 20
"""Bytes of output after which a process is ended."""

# Interval of the checks of memory and output. A check of memory costs this process's core about 0.2 ms.
_LOOK_S = 0.1
_MOST_HEARD = 1 << 20
# Interval at which the end is noticed where the system has no handle for it.
_POLL_S = 0.02
# Descendants in their own process group, such as ranks, notice within this time that the child is gone, and clean up.
_GRACE_S = 3.0

Look = Callable[[Sequence["psutil.Process"]], str | None]
"""Checks a process and its descendants; returns why they must end, in words that follow its name, or None."""

Hear = Callable[[str], float | None]
"""Takes a report of a process; returns how many seconds the process has from now on, or None for no change."""


def supervise(
    command: Sequence[str],
    *,
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
    sent: bytes = b"",
    look: Look | None = None,
    hear: Hear | None = None,
    separate: bool = False,
) -> Ended:
    """Run a command until it ends or a limit ends it; then the other processes that it started are killed.

    Signals from the terminal do not reach it. An exception in this process, such as KeyboardInterrupt, ends it.

    Args:
        command: Program and arguments.
        time_limit_s: Time after which it is ended.
        environment: Environment variables; None: those of this process.
        sent: Its standard input, which is otherwise empty.
        look: Called every 0.1 s.
        hear: Called with each line that it writes to the pipe whose handle is then the last word of its command line;
            an exception ends the process.
        separate: Whether to keep standard error by itself.

    Raises:
        OSError: The command cannot be started.
    """
    begin = monotonic()
    with _Child(command, environment, sent, hear, separate) as child:
        stopped, late = child.watch(begin, time_limit_s, look)
    wall_s = monotonic() - begin
    return Ended(
        status=child.process.returncode,
        stopped=stopped,
        late=late,
        doing=child.doing,
        wall_s=wall_s,
        output=child.printed[0],
        errors=child.printed[1] if separate else b"",
    )


def start(
    command: Sequence[str],
    environment: Mapping[str, str] | None,
    output: IO[bytes],
    *,
    errors: IO[bytes] | None = None,
    sent: IO[bytes] | None = None,
    handles: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a new session and process group, so that the group can be killed as a whole.

    Args:
        command: Program and arguments.
        environment: Environment variables; None: those of this process.
        output: File for its standard output.
        errors: File for its standard error; None: `output`.
        sent: Its standard input; None: empty.
        handles: File descriptors that it inherits.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if sent is None else sent,
        stdout=output,
        stderr=output if errors is None else errors,
        env=None if environment is None else dict(environment),
        start_new_session=True,
        pass_fds=handles,
    )


class _Child:
    """A started process; a context manager that ends it, and reads what it printed."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        sent: bytes,
        hear: Hear | None,
        separate: bool,
    ) -> None:
        self.doing, self.printed = "" if hear is None else "the start", [b"", b""]
        self._hear, self._rest, self._seen = hear, b"", set["psutil.Process"]()
        with ExitStack() as opened:
            self._files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(1 + separate)]
            given = opened.enter_context(tempfile.TemporaryFile()) if sent else None
            if given is not None:
                given.write(sent)
                given.seek(0)
            self._reports: int | None = None
            handles: tuple[int, ...] = ()
            if hear is not None:
                self._reports, writing = os.pipe()
                opened.callback(os.close, self._reports)
                os.set_blocking(self._reports, False)
                handles = (writing,)
            try:
                self.process = start(
                    [*command, *map(str, handles)],
                    environment,
                    self._files[0],
                    errors=self._files[-1],
                    sent=given,
                    handles=handles,
                )
            finally:
                for handle in handles:
                    os.close(handle)
            self._opened = opened.pop_all()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        with self._opened:
            self._end()
            for number, file in enumerate(self._files):
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_PRINTED))
                self.printed[number] = file.read()

    def watch(self, begin: float, time_limit_s: float, look: Look | None) -> tuple[str | None, bool]:
        """Return when the process has ended or must be ended: the reason, and whether it is the time."""
        deadline, next_look = begin + time_limit_s, monotonic() + _LOOK_S
        with ExitStack() as opened:
            waiting = select.poll()
            if self._reports is not None:
                waiting.register(self._reports, select.POLLIN)
            noticed = _end_handle(self.process.pid)
            if noticed is not None:
                opened.callback(os.close, noticed)
                waiting.register(noticed, select.POLLIN)
            while True:
                left_s = min(deadline, next_look) - monotonic()
                events = dict(waiting.poll(1e3 * max(0.0, left_s if noticed is not None else min(left_s, _POLL_S))))
                # Not reaped yet where the handle says so: its group keeps its number until all of it is killed.
                ended = noticed in events if noticed is not None else self.process.poll() is not None
                if self._reports is not None and (ended or self._reports in events):
                    allowed, closed = self._listen(self._reports)
                    if allowed is not None:
                        time_limit_s, deadline = allowed, monotonic() + allowed
                    if closed:
                        waiting.unregister(self._reports)
                        self._reports = None
                if ended:
                    return None, False
                now = monotonic()
                if now > deadline:
                    return f"did not finish within {time_limit_s:g} s", True
                if now >= next_look:
                    if sum(os.fstat(file.fileno()).st_size for file in self._files) > MOST_PRINTED:
                        return f"printed more than {size(MOST_PRINTED)}", False
                    if look is not None and (reason := self._looked(look)) is not None:
                        return reason, False
                    next_look = monotonic() + _LOOK_S

    def _listen(self, reports: int) -> tuple[float | None, bool]:
        """Take the reports that have arrived; returns the last new time limit, and whether the pipe is closed."""
        allowed = None
        try:
            # More than a pipe holds: one call takes all that is there.
            heard = os.read(reports, _MOST_HEARD)
        except BlockingIOError:
            return None, False
        *lines, self._rest = (self._rest + heard).split(b"\n")
        self._rest = self._rest[-_MOST_HEARD:]
        for line in lines:
            self.doing = line.decode(errors="replace")
            more = self._hear(self.doing) if self._hear is not None else None
            allowed = allowed if more is None else more
        return allowed, not heard

    def _looked(self, look: Look) -> str | None:
        import psutil

        try:
            processes = [psutil.Process(self.process.pid)]
        except psutil.Error:
            return None
        processes += descendants(processes[0])
        self._seen.update(processes[1:])
        return look(processes)

    def _end(self) -> None:
        """End the process and all its descendants."""
        if not _has_ended(self.process):
            self._seen.update(descendants(self.process.pid))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        end_processes(self._seen, _GRACE_S)


def _end_handle(process: int) -> int | None:
    """A handle that is readable when a process has ended, or None where the system has none."""
    try:
        return os.pidfd_open(process)
    except (OSError, AttributeError):
        return None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended, without reaping it where the system allows that."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return True
