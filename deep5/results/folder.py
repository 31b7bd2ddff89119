"""One folder per run, readable and consistent at any time: until the run ends its status is aborted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from deep5.core.errors import OutputError, UsageError
from deep5.core.files import exists, write_atomically
from deep5.results.kind import RESULT
from deep5.results.raw_files import is_raw, raw_hashes
from deep5.results.result import EVENTS, load
from deep5.results.samples_file import SAMPLES, SampleRow, samples_text
from deep5.results.schema import NOT_FINISHED
from deep5.results.validation import check_document, encode

__all__ = [
    "ResultFolder",
    "drop_torn_line",
    "locked",
    "new_folder",
    "opened_plain",
    "remove_torn",
    "tidy",
    "tidy_attempts",
]

# A new attempt has its name well within this time.
_NAMED_S = 60.0
_REMEDY = {
    errno.EACCES: "remedy: grant yourself write permission, or choose another folder with --out",
    errno.EPERM: "remedy: grant yourself write permission, or choose another folder with --out",
    errno.EROFS: "the file system is read-only; remedy: choose another folder with --out",
    errno.ENOSPC: "the disk is full; remedy: free some space, or choose another folder with --out",
    errno.EDQUOT: "your quota is used up; remedy: free some space, or choose another folder with --out",
    errno.ENOTDIR: "a part of the path is a file; remedy: remove it, or choose another folder with --out",
    errno.EEXIST: "a part of the path is a file; remedy: remove it, or choose another folder with --out",
}

# Names that `new_folder` and `write_atomically` give until a folder or a file is complete.
_HIDDEN = re.compile(r"\..+-\d{8}-\d{6}-[0-9a-f]{6}\.tmp")
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
# Tries to lock the parent of result folders, 10 ms apart: no endless wait for a process that is stopped.
_LOCK_TRIES = 100

_CHUNK_BYTES = 1 << 16


class ResultFolder:
    """Writes one result folder; every file except events.mllog is written atomically.

    Created by `create` (a new run) or `open` (a resumed one).

    Attributes:
        path: The folder.
        run_id: Name of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self._tail_is_whole = False
        self._raw: set[str] = set()
        self._lock = locked(path)

    def close(self) -> None:
        """Release the folder for other processes; the end of a process, however it ends, also releases it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    @classmethod
    def create(
        cls, out: str | Path, name: str, document: Mapping[str, Any], files: Mapping[str, bytes | str] | None = None
    ) -> ResultFolder:
        """Make `<out>/<name>-<UTC yyyymmdd-hhmmss>-<6 hex digits>/`, complete with a result.json marked aborted.

        A reader never sees it without a valid result.json and the files whose hashes are in it.

        Args:
            out: Parent of result folders; created if it does not exist.
            name: Name of the recipe: letters, digits, `_`, `.`, `-`; the first is a letter, digit or `_`.
            document: As made by `blank_document`; `run_id`, `status`, `accepted` and `reasons` are set in a copy.
            files: Further files from the start, by name.

        Raises:
            OutputError: The folder cannot be written; nothing remains on disk.
            UsageError: The name or the document is not valid.
        """
        if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is None:
            raise UsageError(f"{name!r} cannot name a result folder; allowed: letters, digits, '_', '.', '-'")
        run_id = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        content = _text(
            {**document, "run_id": run_id, "status": "aborted", "accepted": None, "reasons": [NOT_FINISHED]}
        )
        path = Path(out).absolute() / run_id
        new_folder(path, {**(files or {}), RESULT: content})
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> ResultFolder:
        """Reopen the folder of an earlier run for writing, and remove what a killed process left half written.

        Raises:
            UsageError: As for `load`; or a run is still writing to it.
        """
        opened = cls(load(path).folder.absolute())
        remove_torn(opened.path)
        return opened

    def write_result(self, document: Mapping[str, Any]) -> None:
        """Replace result.json; infinities and NaN become the strings that the schema defines.

        Raises:
            UsageError: The document violates the schema or belongs to another folder; the file is unchanged.
            OutputError: The file cannot be written; it is unchanged.
        """
        if document.get("run_id") != self.run_id:
            raise UsageError(f"the document is of run {document.get('run_id')!r}; this folder is of {self.run_id!r}")
        self._write(RESULT, _text(document))

    def append_event(self, line: str) -> None:
        """Append one line to events.mllog; it is flushed to the system when the call returns.

        Args:
            line: Without a line break.

        Raises:
            UsageError: The line contains a line break.
            OutputError: The file cannot be written.
        """
        if "\n" in line:
            raise UsageError(f"an event is one line; got {line!r}")
        path = self.path / EVENTS
        with _writing(f"cannot write {path}"):
            if not self._tail_is_whole:
                drop_torn_line(path)
                self._tail_is_whole = True
            # One unbuffered write per line: a kill loses the whole line or nothing, unless the disk is full.
            with opened_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab") as file:
                self._tail_is_whole = False
                data = f"{line}\n".encode()
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._tail_is_whole = True
        self._raw.add(EVENTS)

    def events_bytes(self) -> int:
        """Length of events.mllog in bytes, for `cut_events`."""
        path = self.path / EVENTS
        return path.stat().st_size if exists(path) else 0

    def cut_events(self, length_bytes: int) -> None:
        """Truncate the events to this length: a resumed run writes the later ones again.

        Raises:
            OutputError: The file cannot be written.
        """
        path = self.path / EVENTS
        with _writing(f"cannot write {path}"):
            with suppress(FileNotFoundError), opened_plain(path, os.O_RDWR, "r+b") as file:
                if os.fstat(file.fileno()).st_size > length_bytes:
                    file.truncate(length_bytes)
            self._tail_is_whole = False

    def write_samples(self, rows: Iterable[SampleRow], lines: Iterable[str] = ()) -> None:
        """Replace samples.csv with these rows: all samples so far, of all metrics.

        Args:
            rows: The rows.
            lines: Lines of the file before them.

        Raises:
            OutputError: The file cannot be written; it is unchanged.
        """
        self._write(SAMPLES, samples_text(rows, lines))

    def write_file(self, name: str, data: bytes | str) -> None:
        """Write another file into the folder, such as the recipe or the environment.

        Args:
            name: A plain file name: no path, not hidden, and not a file that deep5 writes itself.
            data: The whole content; a string is encoded as UTF-8.

        Raises:
            UsageError: The name is not allowed.
            OutputError: The file cannot be written; it is unchanged.
        """
        if not name or Path(name).name != name or name.startswith(".") or name in {RESULT, EVENTS, SAMPLES}:
            raise UsageError(
                f"{name!r} cannot be written into a result folder; allowed: a plain file name, not hidden, "
                f"other than {RESULT}, {EVENTS}, {SAMPLES}"
            )
        self._write(name, data)

    def include(self, name: str) -> None:
        """Add a file to the raw ones that another function has written, or will write before `raw_hashes`."""
        self._raw.add(name)

    def raw_hashes(self) -> dict[str, str]:
        """SHA-256 of the raw files that this process has written, by name: the files that `is_raw` describes.

        A resumed run writes again, or continues, all that its earlier processes have written of them.

        Raises:
            OutputError: One of them cannot be read.
        """
        with _writing(f"cannot read the files in {self.path}"):
            return raw_hashes(self.path, self._raw)

    def _write(self, name: str, data: bytes | str) -> None:
        with _writing(f"cannot write {self.path / name}"):
            write_atomically(self.path / name, data)
        if name != RESULT and is_raw(name):
            self._raw.add(name)


def new_folder(path: Path, files: Mapping[str, bytes | str], folders: Iterable[str] = ()) -> None:
    """Make a result folder, complete with its first files: it is built under a hidden name and then renamed.

    Hidden folders that killed processes left in the parent are removed.

    Args:
        path: The folder, in a parent that is created if it does not exist; `-yyyymmdd-hhmmss-` and six hexadecimal
            digits end its name.
        files: Content by file name.
        folders: Names of empty folders in it.

    Raises:
        OutputError: It cannot be written; nothing remains on disk.
    """
    out, hidden = path.parent, path.with_name(f".{path.name}.tmp")
    with _writing(f"cannot write results to {out}"):
        made = [folder for folder in (out, *out.parents) if not exists(folder)]
        try:
            out.mkdir(parents=True, exist_ok=True)
            with _creating(out):
                hidden.mkdir()
                for name in folders:
                    (hidden / name).mkdir()
                for name, data in files.items():
                    write_atomically(hidden / name, data)
                hidden.rename(path)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            for folder in made:
                with suppress(OSError):  # another run may already use it
                    folder.rmdir()
            raise


@contextmanager
def _creating(out: Path) -> Iterator[None]:
    """Hold a shared lock on a parent of result folders; first remove hidden folders, if no other process holds one.

    Then their processes are gone: a process that makes a folder holds the lock until the folder has its name.
    """
    handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # another process holds it, or the file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in list(out.iterdir()):
                if _HIDDEN.fullmatch(path.name) and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another process removes folders now
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(handle)


def remove_torn(folder: Path) -> None:
    """Remove temporary files in a locked result folder: their processes were killed while they wrote.

    Args:
        folder: The folder; the caller holds its lock.
    """
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name) and not path.is_symlink() and path.is_file():
            with suppress(OSError):
                path.unlink()


def tidy(out: Path) -> None:
    """Remove what killed processes left below a parent of result folders: hidden folders, and temporary files.

    Args:
        out: The parent; result folders in it that a process still writes to are left as they are.
    """
    with suppress(OSError), _creating(out):
        for path in list(out.iterdir()):
            if path.is_dir() and not path.is_symlink():
                with suppress(UsageError):
                    handle = locked(path)
                    remove_torn(path)
                    os.close(handle)


def tidy_attempts(own: Path) -> None:
    """Remove what killed processes left in the folder of a run with a folder per attempt, and attempts without a name.

    Args:
        own: The folder.
    """
    if own.is_symlink() or not own.is_dir():
        return
    for path in list(own.iterdir()):
        if not path.name.startswith("."):
            tidy(path)
        elif time.time() - path.stat().st_mtime > _NAMED_S:
            shutil.rmtree(path, ignore_errors=True)


def locked(path: Path) -> int:
    """Lock a folder for the lifetime of the process: two runs in one folder would corrupt each other.

    Raises:
        UsageError: Another process holds the lock.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(handle)
            raise UsageError(
                f"a run still writes to {path}; allowed: one run at a time; remedy: wait for it, or stop it"
            ) from error
        # A file system without locks: concurrent use cannot be detected.
    return handle


def _text(document: Mapping[str, Any]) -> str:
    encoded = encode(document)
    check_document(encoded)
    return json.dumps(encoded, indent=2, allow_nan=False) + "\n"


def drop_torn_line(path: Path) -> None:
    """Remove everything after the last line break: a partial event left by a full disk or a crash."""
    with suppress(FileNotFoundError), opened_plain(path, os.O_RDWR, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _CHUNK_BYTES)
            file.seek(begin)
            whole = begin + file.read(end - begin).rfind(b"\n") + 1
            if whole > begin or not begin:
                file.truncate(whole)
                return
            end = begin


def opened_plain(path: Path, flags: int, mode: str) -> IO[bytes]:
    """Open a file of the folder without following links: a resumed folder may contain foreign links and pipes."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(handle, mode, buffering=0)


@contextmanager
def _writing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDY.get(error.errno or 0, "remedy: choose another folder with --out")
        raise OutputError(f"{what}: {error.strerror or error}; allowed: a writable folder; {remedy}") from error
