"""Relays the output of ranks to this process's streams and keeps its last lines for error messages."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from deep5.core.process_end import last_lines

__all__ = ["RankOutput"]

# The reader of the last output may be slow.
_DRAIN_S = 60.0
_KEPT_BYTES = 20_000


class RankOutput:
    """Output of the ranks: `rank-0.out`, `rank-0.err` and so on in a folder, which are terminals or named pipes.

    Args:
        folder: Folder of these files.
        ranks: Number of ranks.
        stdout: Receives rank 0's standard output; its standard error goes to this process's standard error.
    """

    def __init__(self, folder: Path, ranks: int, stdout: TextIO) -> None:
        self._folder, self._stdout = folder, stdout
        self._threads: list[threading.Thread] = []
        self._said: dict[int, deque[bytes]] = {}
        self._pipes: list[int] = []
        for rank in range(ranks):
            self._connect(rank)

    def tail(self, rank: int) -> str:
        """The last lines that a rank printed, as `last_lines`."""
        return last_lines(b"".join(list(self._said[rank])))

    def close(self) -> None:
        """Relay the remaining output; the ranks have ended."""
        for handle in self._pipes:
            os.close(handle)
        deadline = monotonic() + _DRAIN_S
        for thread in self._threads:
            thread.join(max(deadline - monotonic(), 0.0))

    def _connect(self, rank: int) -> None:
        """Connect a rank's output: to terminals directly, otherwise through pipes."""
        out, err = (self._folder / f"rank-{rank}.{name}" for name in ("out", "err"))
        self._said[rank] = deque(maxlen=_KEPT_BYTES // 1000)
        if rank == 0:
            self._relay(rank, out, self._stdout, keep=False)
            self._relay(rank, err, sys.stderr, keep=True)
        else:
            self._relay(rank, err, None, keep=True)
            out.symlink_to(err)

    def _relay(self, rank: int, path: Path, stream: Any, *, keep: bool) -> None:
        terminal = _terminal(stream)
        if terminal is not None:
            path.symlink_to(terminal)
            return
        os.mkfifo(path)
        # Opened for writing as well, so that there is no end of file before the first rank opens it.
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._pipes.append(os.open(path, os.O_WRONLY))
        os.set_blocking(source, True)
        said = self._said[rank] if keep else None
        thread = threading.Thread(target=_pass_on, args=(source, stream, said), name=f"rank-{rank}", daemon=True)
        thread.start()
        self._threads.append(thread)


def _terminal(stream: Any) -> str | None:
    """The path of the terminal that a stream writes to, if it can be opened again."""
    try:
        path = os.ttyname(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return path if os.access(path, os.W_OK) else None


def _pass_on(source: int, stream: Any, said: deque[bytes] | None) -> None:
    """Copy a pipe to a stream unchanged, if there is one; keep the last output."""
    with os.fdopen(source, "rb", buffering=0) as file:
        while block := file.read(1000):
            if said is not None:
                said.append(block)
            try:
                if stream is not None:
                    _write(stream, block)
            except (OSError, ValueError):
                stream = None  # the reader has closed it; the rank must not block on it


def _write(stream: Any, block: bytes) -> None:
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(block.decode(errors="replace"))
        stream.flush()
    else:
        buffer.write(block)
        buffer.flush()
