"""The only way to read a file of a result folder, which may be untrusted: bounded plain files, UTF-8 text.

No link is followed, neither for the file nor for a folder in its path, so that nothing outside the folder is read;
pipes and devices are rejected without blocking.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from deep5.core.errors import UsageError
from deep5.core.terminal import plain

__all__ = [
    "DOCUMENT_BYTES",
    "TABLE_BYTES",
    "TABLE_ROWS",
    "NotThere",
    "opened",
    "parsed",
    "read_bytes",
    "read_json",
    "read_object",
    "read_rows",
    "read_text",
    "shown_path",
]

DOCUMENT_BYTES = 32 << 20
"""Maximum size of a document that is read as a whole."""

TABLE_BYTES = 256 << 20
"""Maximum size of a table, which is read row by row."""

TABLE_ROWS = 5_000_000
"""Maximum number of rows of a table."""

_DEEPEST = 100
# Bounds memory: each value of a small file takes some hundred bytes.
_MOST_VALUES = 2_000_000
_LONGEST_LINE = 1 << 20
_LONGEST_ROW_LINES = 100


class NotThere(UsageError):
    """The file does not exist."""


@contextmanager
def opened(path: str | Path, *, root: str | Path | None = None, most_bytes: int = DOCUMENT_BYTES) -> Iterator[BinaryIO]:
    """Open a plain file for reading.

    Args:
        path: The file.
        root: A parent folder that the user named: links below it are rejected. None: the file's own folder.
        most_bytes: Maximum size.

    Raises:
        NotThere: The file does not exist.
        UsageError: It is not a plain file, is too large, is reached by a link, is outside the root, or cannot be read.
    """
    path = Path(path)
    handle = _handle(path, path.parent if root is None else Path(root))
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"{shown_path(path)} is not a plain file; allowed: one that deep5 wrote")
        if about.st_size > most_bytes:
            raise UsageError(
                f"{shown_path(path)} has {about.st_size} bytes; allowed: at most {most_bytes}; remedy: omit its folder"
            )
        file = os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
    with file:
        yield file


def _handle(path: Path, root: Path) -> int:
    try:
        parts = path.relative_to(root).parts
    except ValueError as error:
        raise UsageError(f"{shown_path(path)} is not in {shown_path(root)}; allowed: a file in that folder") from error
    if not parts or ".." in parts:
        raise UsageError(f"{shown_path(path)} leads out of {shown_path(root)}; allowed: a file in that folder")
    handle = -1
    try:
        # Folder by folder: with a full path, the system would follow links.
        handle = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for number, name in enumerate(parts, 1):
            flags = os.O_RDONLY | os.O_NONBLOCK if number == len(parts) else os.O_PATH | os.O_DIRECTORY
            inner = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = inner
    except (OSError, ValueError) as error:  # ValueError: a NUL in a name
        if handle >= 0:
            os.close(handle)
        raise _refusal(path, root, error) from error
    return handle


def _refusal(path: Path, root: Path, error: OSError | ValueError) -> UsageError:
    below = (root.joinpath(*path.relative_to(root).parts[:count]) for count in range(1, len(path.parts) + 1))
    link = None if isinstance(error, ValueError) else next((own for own in below if own.is_symlink()), None)
    if link is not None:
        return UsageError(
            f"{shown_path(link)} is a link; allowed: files in the folder itself; remedy: replace it by a copy"
        )
    if isinstance(error, FileNotFoundError):
        return NotThere(f"{shown_path(path)} does not exist; allowed: a file that deep5 wrote; remedy: check the path")
    if isinstance(error, NotADirectoryError):
        return UsageError(
            f"{shown_path(path)} does not exist: {shown_path(path.parent)} is not a folder; allowed: a result folder"
        )
    if isinstance(error, OSError) and error.errno == errno.ENXIO:  # a socket
        return UsageError(f"{shown_path(path)} is not a plain file; allowed: one that deep5 wrote")
    why = (isinstance(error, OSError) and error.strerror) or error
    return UsageError(f"cannot read {shown_path(path)}: {why}; allowed: a file that this user may read")


def read_bytes(path: str | Path, *, root: str | Path | None = None, most_bytes: int = DOCUMENT_BYTES) -> bytes:
    """All bytes of a plain file; arguments and errors as for `opened`."""
    try:
        with opened(path, root=root, most_bytes=most_bytes) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot read {shown_path(path)}: {error.strerror or error}; remedy: restore it") from error
    if len(content) > most_bytes:  # the file grew in the meantime
        raise UsageError(f"{shown_path(path)} has more than {most_bytes} bytes; allowed: at most as many")
    return content


def read_text(path: str | Path, *, root: str | Path | None = None, most_bytes: int = DOCUMENT_BYTES) -> str:
    """The text of a plain UTF-8 file; arguments and errors as for `opened`."""
    content = read_bytes(path, root=root, most_bytes=most_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown_path(path)} is not UTF-8 text ({error}); remedy: restore it from a copy") from error


def read_json(path: str | Path, *, root: str | Path | None = None, most_bytes: int = DOCUMENT_BYTES) -> Any:
    """The contents of a JSON file; arguments and errors as for `opened`.

    Raises:
        UsageError: Also if it is not JSON, is nested too deeply, has too many values, or an invalid number.
    """
    content = read_bytes(path, root=root, most_bytes=most_bytes)
    try:
        return parsed(content)
    except ValueError as error:
        raise UsageError(
            f"{shown_path(path)} is truncated or not JSON ({error}); remedy: restore it from a copy"
        ) from error


def read_object(
    path: str | Path, *, root: str | Path | None = None, most_bytes: int = DOCUMENT_BYTES
) -> dict[str, Any]:
    """The contents of a JSON file, which must be an object; as for `read_json`."""
    document = read_json(path, root=root, most_bytes=most_bytes)
    if not isinstance(document, dict):
        raise UsageError(f"{shown_path(path)} holds no JSON object; allowed: what deep5 wrote; remedy: restore it")
    return document


def parsed(content: bytes) -> Any:
    """JSON in UTF-8, of bounded depth and number of values, without NaN and infinities in any notation.

    Raises:
        ValueError: The content is not such JSON.

    >>> parsed(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if sum(content.count(sign) for sign in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values")
    try:
        document = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(f"it nests deeper than {_DEEPEST}") from error
    level = [document]
    for _ in range(_DEEPEST + 1):
        level = [
            inner
            for own in level
            if isinstance(own, (dict, list))
            for inner in (own.values() if isinstance(own, dict) else own)
        ]
        if not level:
            return document
    raise ValueError(f"it nests deeper than {_DEEPEST}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large; allowed: a finite number")
    return value


def read_rows(
    path: str | Path,
    columns: Sequence[str],
    *,
    root: str | Path | None = None,
    most_bytes: int = TABLE_BYTES,
    most_rows: int = TABLE_ROWS,
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, lazily, each with its line number.

    Args:
        path: As for `opened`.
        columns: The required header.
        root: As for `opened`.
        most_bytes: As for `opened`.
        most_rows: Maximum number of rows.

    Raises:
        NotThere: The file does not exist.
        UsageError: As for `opened`; or it is not CSV in UTF-8, has other columns, too many rows, or a row that is too
            long.
    """
    with opened(path, root=root, most_bytes=most_bytes) as file:
        lines = _Lines(file)
        rows = csv.reader(lines, strict=True)
        try:
            header = next(rows, [])
            if tuple(header) != tuple(columns):
                raise UsageError(
                    f"{shown_path(path)} begins with {header!s:.100}; expected the columns {', '.join(columns)}"
                )
            for number, row in enumerate(rows):
                lines.begun = 0
                if number >= most_rows:
                    raise UsageError(
                        f"{shown_path(path)} has more than {most_rows} rows; allowed: at most as many; remedy: omit "
                        "its folder"
                    )
                yield rows.line_num, row
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"cannot read {shown_path(path)}: {error}; remedy: restore it from a copy") from error


class _Lines:
    """The lines of a file as strings; bounds the length of a line and of the lines of one row."""

    def __init__(self, file: BinaryIO) -> None:
        self.begun = 0
        self._file = file

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(_LONGEST_LINE + 1)
        if not line:
            raise StopIteration
        self.begun += 1
        if len(line) > _LONGEST_LINE or self.begun > _LONGEST_ROW_LINES:
            raise csv.Error(f"a row is longer than {_LONGEST_LINE} bytes or {_LONGEST_ROW_LINES} lines")
        return line.decode("utf-8")


def shown_path(path: str | Path) -> str:
    """A path as messages show it: on one line, without terminal control characters.

    >>> shown_path("results/\\x1b[31m")
    'results/\\\\x1b[31m'
    """
    return plain(path).replace("\n", "\\n")
