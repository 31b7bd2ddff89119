"""Atomic writes: a file is complete or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from deep5.core.errors import OutputError

__all__ = ["absence", "exists", "is_file", "is_folder", "write_atomically", "write_folder"]


def is_file(path: str | Path) -> bool:
    """Whether the path leads to a regular file; no for one that the system cannot follow.

    `Path.is_file` raises instead if a name is too long, or a folder on the way may not be searched.
    """
    return os.path.isfile(path)  # noqa: PTH113


def exists(path: str | Path) -> bool:
    """Whether the path leads to anything; as `is_file`."""
    return os.path.exists(path)  # noqa: PTH110


def is_folder(path: str | Path) -> bool:
    """Whether the path leads to a folder; as `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112


def absence(path: str | Path) -> str:
    """Why a path leads to no file, or to no folder, for a message: it is not there, or is the other.

    >>> absence("/"), absence("/no such file")
    ('is a folder', 'is not there')
    """
    if is_folder(path):
        return "is a folder"
    return "is not a folder" if exists(path) else "is not there"


def write_atomically(path: str | Path, data: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file so that a reader sees the old content or the new, never a part, even after a kill.

    Args:
        path: The file; its folder must exist.
        data: The whole content, strings encoded as UTF-8; or a function that writes it into a file piece by piece.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_folder(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files into a folder, which is created if it does not exist.

    Args:
        folder: The folder.
        files: Content by file name.

    Raises:
        OutputError: The folder or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_atomically(folder / name, data)
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror or error}; allowed: a writable folder"
        ) from error
