"""The entries of tar files by position; nothing is unpacked."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deep5.core.errors import UsageError

__all__ = ["Entry", "entries", "read_entry"]

_BLOCK = 512
_COMPRESSIONS = {
    b"\x1f\x8b": ("a gzip file", "gunzip it"),
    b"BZh": ("a bzip2 file", "bunzip2 it"),
    b"\xfd7zXZ\0": ("an xz file", "unxz it"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", "unzstd it"),
    b"PK\3\4": ("a ZIP file", "unzip it, and make a tar file"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a tar file.

    Attributes:
        name: Its path, relative, with `/` between folders.
        begin: The byte of the tar file at which its content begins.
        size: The number of bytes.
    """

    name: str
    begin: int
    size: int


def entries(path: Path) -> list[Entry]:
    """The files in an uncompressed tar file, in order; folders are omitted.

    Raises:
        UsageError: The file cannot be read, is truncated, compressed or no tar file; or an entry is a link or a device,
            is sparse, or has an absolute path or `..`.
    """
    found: list[Entry] = []
    try:
        with tarfile.open(path, "r:") as archive:
            end = 0
            for member in archive:
                end = member.offset_data + (-(-member.size // _BLOCK) * _BLOCK if member.isfile() else 0)
                if member.isdir():
                    continue
                _check(path, member)
                found.append(Entry(member.name.removeprefix("./"), member.offset_data, member.size))
        # An archive ends with blocks of zeros: without them it is cut between two entries.
        if path.stat().st_size < end + _BLOCK:
            raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise UsageError(
            f"{path} is no whole tar file ({_reason(path, error)}); allowed: uncompressed tar files; remedy: "
            f"{_packed(path)[1] if _packed(path) else 'copy or make it again'}"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); allowed: a tar file") from error
    return found


def _check(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\0" in member.name:
        why = "has a path that leaves its folder"
    elif member.issym() or member.islnk():
        why = f"is a link to {member.linkname!r:.60}"
    elif not member.isreg() or member.issparse():
        why = "is a device, a pipe or a sparse file"
    else:
        return
    raise UsageError(
        f"{path}: the entry {member.name!r:.80} {why}; allowed: files with relative paths; remedy: make it again"
    )


def _packed(path: Path) -> tuple[str, ...]:
    """The compression of a file and its remedy, or nothing."""
    with path.open("rb") as file:
        begin = file.read(6)
    return next((found for mark, found in _COMPRESSIONS.items() if begin.startswith(mark)), ())


def _reason(path: Path, error: Exception) -> str:
    return f"it is {_packed(path)[0]}" if _packed(path) else " ".join(str(error).split())[:120] or type(error).__name__


def read_entry(path: Path, entry: Entry) -> bytes:
    """The content of an entry.

    Raises:
        UsageError: The file cannot be read or has become shorter.
    """
    try:
        with path.open("rb") as file:
            file.seek(entry.begin)
            content = file.read(entry.size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); allowed: a tar file") from error
    if len(content) < entry.size:
        raise UsageError(f"{path}: the entry {entry.name!r} is truncated: the file became shorter while it was read")
    return content
