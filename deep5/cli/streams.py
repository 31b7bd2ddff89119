"""The standard streams of a command: closed ones are opened, and output that cannot be written ends no work."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

__all__ = ["BROKEN_PIPE", "output_status", "steady_streams"]

BROKEN_PIPE = 141
"""Exit status if the reader of standard output has gone: what a shell reports of a program ended by SIGPIPE."""

# How long a terminal that another program set to non-blocking may take nothing.
_PATIENCE_S = 60.0
# These commands leave a folder with all that they found: their status says how that went.
_LEAVE_A_FOLDER = {"run", "compare", "study"}


class _Steady(io.FileIO):
    """A file descriptor that keeps its first error and discards what it cannot write, instead of raising.

    Attributes:
        failure: The first error, or None.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of the data, or none of it."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            try:
                written = super().write(view[done:])
                if written is None and not select.select([], [self], [], _PATIENCE_S)[1]:
                    raise BlockingIOError(errno.EAGAIN, "nothing reads it")
                done += written or 0
            except OSError as error:
                self.failure = self.failure or error
                break
        return len(view)


class _Stream(io.TextIOWrapper):
    """A standard stream that stays open: a recipe's code may close it, or take its buffer, before a command answers."""

    mode = "w"

    def close(self) -> None:
        """Write what is buffered."""
        self.flush()

    def detach(self) -> io.BufferedWriter:
        """A further binary stream on the same descriptor."""
        self.flush()
        return io.BufferedWriter(_Steady(self.fileno(), "wb", closefd=False))


def steady_streams() -> None:
    """Prepare the standard streams of this process for a command.

    Closed descriptors lead to the null device: without that, the next file that is opened would take the number of
    standard output, and what a library prints would be written into it.
    """
    _open_closed()
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    for name, number in (("stdout", 1), ("stderr", 2)):
        given: TextIO | None = getattr(sys, name)
        if given is not None and (given is not getattr(sys, f"__{name}__") or _descriptor(given) != number):
            continue  # a caller captures it
        if given is not None:
            given.flush()
        setattr(sys, name, _steady(given, number))


def output_status(status: int, arguments: list[str]) -> tuple[int, str | None]:
    """The exit status of a command after its output, and the error to report.

    Args:
        status: The status without regard to the output.
        arguments: The command line after the program's name.
    """
    if isinstance(sys.stdout, io.TextIOBase):
        sys.stdout.flush()
    failure = getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "failure", None)
    if failure is None or status not in (0, 1) or (arguments and arguments[0] in _LEAVE_A_FOLDER):
        return status, None
    if failure.errno == errno.EPIPE:
        return BROKEN_PIPE, None
    return 3, (
        f"standard output cannot be written ({failure.strerror}), and part of the answer is lost; allowed: an open "
        "file or a terminal; remedy: send it elsewhere"
    )


def _open_closed() -> None:
    """Open the null device under every closed number of a standard stream; child processes inherit it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _steady(given: TextIO | None, number: int) -> TextIO:
    raw = _Steady(number, "wb", closefd=False)
    return _Stream(
        io.BufferedWriter(raw),
        encoding=None if given is None else given.encoding,
        # A sign that the terminal's encoding lacks is no reason to fail.
        errors="backslashreplace" if given is None or given.errors == "strict" else given.errors,
        line_buffering=number == 2 or raw.isatty(),
    )
