"""Reads files of an untrusted folder, only through the safe reader; never executes them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from deep5.results import reading

__all__ = ["SOURCE_BYTES", "bytes_of", "json_of", "plain", "sha256_of"]

SOURCE_BYTES = 16 << 20
"""Maximum size of source that is hashed."""


def bytes_of(root: Path, name: str, *, most_bytes: int = reading.TABLE_BYTES) -> bytes | None:
    """The bytes of a file of a folder; None if it does not exist.

    Args:
        root: The folder.
        name: Name of the file, in the folder or a subfolder.
        most_bytes: Maximum size.

    Raises:
        UsageError: It is not a plain file in the folder, is too large, or cannot be read.
    """
    try:
        return reading.read_bytes(root / name, root=root, most_bytes=most_bytes)
    except reading.NotThere:
        return None


def plain(root: Path, name: str) -> Path | None:
    """The path of a plain file of a folder, for a separate reader; None if it does not exist.

    Raises:
        UsageError: As for `bytes_of`.
    """
    try:
        with reading.opened(root / name, root=root, most_bytes=reading.TABLE_BYTES):
            return root / name
    except reading.NotThere:
        return None


def json_of(root: Path, name: str) -> Any:
    """The contents of a JSON file of a folder; None if it does not exist.

    Raises:
        UsageError: As for `bytes_of`; or it is not JSON.
    """
    try:
        return reading.read_json(root / name, root=root)
    except reading.NotThere:
        return None


def sha256_of(root: Path, name: str, *, most_bytes: int = SOURCE_BYTES) -> str | None:
    """SHA-256 of a file's bytes, which are not parsed; None if it does not exist.

    Args:
        root: The folder.
        name: Name of the file, as for `bytes_of`.
        most_bytes: Maximum size.

    Raises:
        UsageError: As for `bytes_of`.
    """
    content = bytes_of(root, name, most_bytes=most_bytes)
    return None if content is None else hashlib.sha256(content).hexdigest()
