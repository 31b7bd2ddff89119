"""How a process ended, and what it printed last, in words for messages."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import dataclass

from deep5.core.quantities import size

__all__ = ["OUT_OF_MEMORY", "Ended", "excerpt", "full_disk", "how_ended", "last_lines"]

OUT_OF_MEMORY = "; the system does so when memory runs out"
"""Why a process may be ended by SIGKILL, as the part of a message."""

_LINES, _LINES_BYTES = 3, 20_000
# Longer lines hold names of generated types, and the expressions that find errors in them take quadratic time.
_MOST_IN_LINE = 1000
# Launchers and frameworks need more than this for their temporary files, which they remove when they end.
_ROOM_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child process ended.

    Attributes:
        status: Its exit status; negative: the number of the signal that ended it.
        stopped: Why it was ended by this process, in words that follow its name; None if it ended by itself.
        late: Whether it was ended because of the time limit.
        doing: What it reported last, in words that follow "in"; empty if it has no way to report.
        wall_s: Its duration in seconds.
        output: Its standard output, and its standard error unless separate; at most the last 64 MiB.
        errors: Its standard error, if separate.
    """

    status: int
    stopped: str | None
    late: bool
    doing: str
    wall_s: float
    output: bytes
    errors: bytes

    @property
    def where(self) -> str:
        """What it reported last, as the part of a message."""
        return f" in {self.doing}" if self.doing else ""

    def fault(self, *, answered: bool = True) -> str | None:
        """What is wrong with its end, in words that follow its name; None if it ended well.

        Args:
            answered: Whether its answer exists.
        """
        if self.stopped is not None:
            return f"{self.stopped}{self.where}"
        if self.status == 0 and answered:
            return None
        if self.status == -signal.SIGKILL:
            why = OUT_OF_MEMORY
        else:
            why = "" if answered or self.status < 0 else ", without an answer"
        return f"{how_ended(self.status)}{self.where}{why}{last_lines(self.errors or self.output)}"


def how_ended(status: int) -> str:
    """How a process with this return code of `subprocess` ended, in words that follow its name."""
    if status >= 0:
        return f"exited with status {status}"
    return f"was killed by {signal.Signals(-status).name if -status in set(signal.Signals) else f'signal {-status}'}"


def last_lines(said: bytes) -> str:
    """The last lines that a program printed, as the end of an error message; empty without output."""
    text = said[-_LINES_BYTES:].replace(b"\0", b"").decode(errors="replace")
    # Without the borders of boxes.
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t-=*_")]
    last = " | ".join(line[:200] for line in lines[-_LINES:])
    return f"; its last output: {last}" if last else ""


def excerpt(said: bytes, most_bytes: int = 4096) -> str:
    """What a program printed, for an error message: if it is too long, the first and last lines.

    The first error of a compiler explains the others, and its last lines count them. Half of the bytes are for each.

    Args:
        said: What it printed.
        most_bytes: Bytes of it that are kept.

    >>> excerpt(b"a.c:1: error\\n" + b"!" * 4000 + b"\\n1 error\\n", 30)
    'a.c:1: error\\n(4002 bytes left out)\\n1 error'
    """
    said, half = said.strip(), most_bytes // 2
    if len(said) > 2 * half:
        first, last = said[:half], said[-half:]
        # Whole lines, where there are any.
        first, last = first.rpartition(b"\n")[0] or first, last.partition(b"\n")[2] or last
        said = b"%b\n(%d bytes left out)\n%b" % (first, len(said) - len(first) - len(last), last)
    lines = said.replace(b"\0", b"").decode(errors="replace").split("\n")
    return "\n".join(line if len(line) <= _MOST_IN_LINE else f"{line[:_MOST_IN_LINE]}…" for line in lines)


def full_disk() -> str:
    """That the disk of temporary files has no room, as the part of a message on a process that failed; otherwise empty.

    Not every program says so: MPI ends without a reason.
    """
    # Python's own choice would be another folder, since this one has no room.
    folder = os.environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    # Some file systems do not count files.
    free = found.f_bavail * found.f_frsize
    if free >= _ROOM_BYTES and (found.f_favail or not found.f_files):
        return ""
    left = size(free) if free < _ROOM_BYTES else "no file"
    return f"; the disk of {folder} has room for {left} only; remedy: free some space, or set TMPDIR to another folder"
