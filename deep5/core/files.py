"""Atomic writes: a file is complete or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_atomically"]


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
