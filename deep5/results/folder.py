"""One folder a run, readable and honest at every moment: until the run ends it says that it was aborted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from deep5.core.errors import OutputError, UsageError
from deep5.core.files import write_atomically
from deep5.results.kind import RESULT
from deep5.results.result import EVENTS, load
from deep5.results.samples_file import SAMPLES, SampleRow, samples_text
from deep5.results.schema import NOT_FINISHED
from deep5.results.validation import check_document, encode

__all__ = ["ResultFolder", "locked"]

_REMEDY = {
    errno.EACCES: "give yourself write permission there, or choose another folder with --out",
    errno.EPERM: "give yourself write permission there, or choose another folder with --out",
    errno.EROFS: "the file system is read-only: choose another folder with --out",
    errno.ENOSPC: "the disk is full: free some space, or choose another folder with --out",
    errno.EDQUOT: "your quota is used up: free some space, or choose another folder with --out",
    errno.ENOTDIR: "a part of the path is a file: remove it, or choose another folder with --out",
    errno.EEXIST: "a part of the path is a file: remove it, or choose another folder with --out",
}

_CHUNK_BYTES = 1 << 16


class ResultFolder:
    """Writes one result folder; every file but events.mllog appears whole or not at all.

    Made by `create` (a new run) or `open` (one that goes on).

    Attributes:
        path: The folder.
        run_id: Its name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self._tail_is_whole = False
        self._lock = locked(path)

    def close(self) -> None:
        """Let another process write here; a process that ends, however it does, has let it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    @classmethod
    def create(cls, out: str | Path, name: str, document: Mapping[str, Any]) -> ResultFolder:
        """Make `<out>/<name>-<UTC yyyymmdd-hhmmss>-<6 hex digits>/`, complete with a result.json marked aborted.

        The folder is built under a hidden name and then renamed: a reader never sees it without a valid result.json.

        Args:
            out: Where result folders go; made where it does not exist.
            name: Of the recipe: letters, digits, `_`, `.`, `-`, the first a letter, digit or `_`.
            document: As `blank_document` makes it; in a copy `run_id`, `status`, `accepted`, `reasons` are set here.

        Raises:
            OutputError: The folder cannot be written; nothing is left behind.
            UsageError: The name or the document is not valid.
        """
        if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is None:
            raise UsageError(f"{name!r} cannot name a result folder; allowed: letters, digits, '_', '.', '-'")
        run_id = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        content = _text(
            {**document, "run_id": run_id, "status": "aborted", "accepted": None, "reasons": [NOT_FINISHED]}
        )
        out = Path(out).absolute()
        hidden, path = out / f".{run_id}.tmp", out / run_id
        with _writing(f"cannot write results to {out}"):
            made = [folder for folder in (out, *out.parents) if not folder.exists()]
            try:
                out.mkdir(parents=True, exist_ok=True)
                hidden.mkdir()
                write_atomically(hidden / RESULT, content)
                hidden.rename(path)
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                for folder in made:
                    with suppress(OSError):  # another run may have begun to use it
                        folder.rmdir()
                raise
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> ResultFolder:
        """Go on writing into a folder that a run left behind.

        Raises:
            UsageError: As `load`; or a run still writes there.
        """
        return cls(load(path).folder.absolute())

    def write_result(self, document: Mapping[str, Any]) -> None:
        """Replace result.json; infinities and NaN become the strings that the schema names.

        Raises:
            UsageError: The document breaks the schema or belongs to another folder; the file stays as it was.
            OutputError: The file cannot be written; it stays as it was.
        """
        if document.get("run_id") != self.run_id:
            raise UsageError(f"the document is of run {document.get('run_id')!r}; this folder is of {self.run_id!r}")
        content = _text(document)
        with _writing(f"cannot write {self.path / RESULT}"):
            write_atomically(self.path / RESULT, content)

    def append_event(self, line: str) -> None:
        """Append one line to events.mllog; it has left this process when the call returns.

        Args:
            line: Without a line break.

        Raises:
            UsageError: The line holds a line break.
            OutputError: The file cannot be written.
        """
        if "\n" in line:
            raise UsageError(f"an event is one line; got {line!r}")
        path = self.path / EVENTS
        with _writing(f"cannot write {path}"):
            if not self._tail_is_whole:
                _drop_torn_line(path)
                self._tail_is_whole = True
            # One unbuffered write a line: a kill loses the whole line or none of it, unless the disk is full.
            with _plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab") as file:
                self._tail_is_whole = False
                data = f"{line}\n".encode()
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._tail_is_whole = True

    def events_bytes(self) -> int:
        """How long events.mllog is, for `cut_events`."""
        path = self.path / EVENTS
        return path.stat().st_size if path.exists() else 0

    def cut_events(self, length_bytes: int) -> None:
        """Take back the events behind the first so many bytes: a resumed run comes by them again.

        Raises:
            OutputError: The file cannot be written.
        """
        path = self.path / EVENTS
        with _writing(f"cannot write {path}"):
            with suppress(FileNotFoundError), _plain(path, os.O_RDWR, "r+b") as file:
                if os.fstat(file.fileno()).st_size > length_bytes:
                    file.truncate(length_bytes)
            self._tail_is_whole = False

    def write_samples(self, rows: Iterable[SampleRow]) -> None:
        """Replace samples.csv by these rows: all samples so far, of all metrics.

        Raises:
            OutputError: The file cannot be written; it stays as it was.
        """
        self._write(SAMPLES, samples_text(rows))

    def write_file(self, name: str, data: bytes | str) -> None:
        """Write another file into the folder, such as the recipe or the environment.

        Args:
            name: A plain file name, no path, not hidden, and none of the files that deep5 writes itself.
            data: The whole content; text is encoded as UTF-8.

        Raises:
            UsageError: The name is not allowed.
            OutputError: The file cannot be written; it stays as it was.
        """
        if not name or Path(name).name != name or name.startswith(".") or name in {RESULT, EVENTS, SAMPLES}:
            raise UsageError(
                f"{name!r} cannot be written into a result folder; allowed: a plain file name, not hidden, "
                f"other than {RESULT}, {EVENTS}, {SAMPLES}"
            )
        self._write(name, data)

    def _write(self, name: str, data: bytes | str) -> None:
        with _writing(f"cannot write {self.path / name}"):
            write_atomically(self.path / name, data)


def locked(path: Path) -> int:
    """A lock on a folder, held as long as the process lives: two runs in one folder would spoil each other.

    Raises:
        UsageError: Another holds it.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(handle)
            raise UsageError(
                f"a run still writes to {path}; allowed: one at a time; remedy: wait for it, or end it first"
            ) from error
        # A file system without locks: nothing can be said.
    return handle


def _text(document: Mapping[str, Any]) -> str:
    encoded = encode(document)
    check_document(encoded)
    return json.dumps(encoded, indent=2, allow_nan=False) + "\n"


def _drop_torn_line(path: Path) -> None:
    """Cut what follows the last line break: the half of an event that a full disk or a crash left."""
    with suppress(FileNotFoundError), _plain(path, os.O_RDWR, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _CHUNK_BYTES)
            file.seek(begin)
            whole = begin + file.read(end - begin).rfind(b"\n") + 1
            if whole > begin or not begin:
                file.truncate(whole)
                return
            end = begin


def _plain(path: Path, flags: int, mode: str) -> IO[bytes]:
    """A file of the folder itself: a run may go on in a folder that came from elsewhere, with links and pipes in it."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no plain file")
    return os.fdopen(handle, mode, buffering=0)


@contextmanager
def _writing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDY.get(error.errno or 0, "choose another folder with --out")
        raise OutputError(
            f"{what}: {error.strerror or error}; allowed: a folder that can be written; {remedy}"
        ) from error
