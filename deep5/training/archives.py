"""Unpack archives safely: nothing outside the folder, no links, a size limit, all or nothing."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from deep5.core.errors import OutputError, UsageError
from deep5.core.progress import Ongoing

__all__ = ["extract", "inflated"]

_BLOCK = 1 << 20
# A tar member has headers of several blocks of 512 bytes; this is the allowance for each.
_HEADERS = 4096
# A tar file ends with two blocks of zeros.
_END = 1024
# Errors that mean that the file system rejects a member's name; all others are the folder's fault.
_NAME_FAULTS = {
    **dict.fromkeys(
        (errno.EEXIST, errno.EISDIR, errno.ENOTDIR),
        ("has the name of another member, or a file as its folder", "each name once, files in folders"),
    ),
    errno.ENAMETOOLONG: ("has a name that is too long for the folder's file system", "shorter names"),
}
# Errors that the libraries raise on an unexpected file; BadGzipFile is an OSError.
_CORRUPT = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,  # includes NotImplementedError: an unknown version or method
)


class _TooMuch(Exception):
    """A compressed stream yields more than the allowed number of bytes."""


def extract(archive: Path, folder: Path, *, max_bytes: int, max_members: int = 100_000) -> Path:
    """Unpack a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip file into a new folder.

    The members go into a hidden sibling folder, which is renamed when it is complete and valid. Only files and folders
    are created, with default permissions; sizes are counted during unpacking, whatever the archive declares.

    Args:
        archive: The file.
        folder: The target; if it exists, nothing is done.
        max_bytes: The limit of the total unpacked size.
        max_members: The limit of the number of files and folders.

    Returns:
        `folder`.

    Raises:
        UsageError: The archive does not exist or is corrupt; a member is a link or a device or has an absolute path or
            `..`; or there are more members or bytes than allowed or than the archive declares.
        OutputError: The folder cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        with _reported(archive, folder), Ongoing(f"unpacking {archive.name}"):
            with archive.open("rb") as file:
                packed = file.read(2) == b"PK"
            (_unzip if packed else _untar)(archive, room, max_bytes, max_members)
            room.chmod(0o755)
            try:
                room.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was first: its result is equivalent
                    raise
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return folder


def inflated(path: Path, max_bytes: int) -> bytes:
    """The content of a file, decompressed if it is a gzip file.

    Raises:
        UsageError: The file cannot be read, is corrupt, or holds more than `max_bytes`.
    """
    content = b""
    with _reported(path, path):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            source: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
            content = source.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise _TooMuch
    return content


@contextmanager
def _reported(archive: Path, folder: Path) -> Iterator[None]:
    """Convert errors of the libraries to deep5's."""
    try:
        yield
    except _TooMuch as error:
        raise UsageError(
            f"{archive} holds more than the bytes allowed for it; it is not such a file, or is an archive bomb; "
            "remedy: get the file again from its source"
        ) from error
    except _CORRUPT as error:
        raise UsageError(
            f"{archive} is corrupt ({type(error).__name__}: {error}); remedy: delete it and get it "
            "again from its source"
        ) from error
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)) == archive:
            raise UsageError(f"{archive} cannot be read ({error.strerror})") from error
        raise _unwritable(folder, error) from error


def _untar(archive: Path, room: Path, max_bytes: int, max_members: int) -> None:
    seen: set[str] = set()
    total = end = 0
    with _decompressed(archive) as stream:
        limited: Any = _Limited(stream, max_bytes + max_members * _HEADERS)
        # As a stream: members in sequence, without look-ups in later parts.
        with tarfile.open(fileobj=limited, mode="r|", tarinfo=_Member) as tar:
            for member in tar:
                target = _target(archive, room, member.name, member.isdir(), seen, max_members)
                end = member.offset_data
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise _refused(archive, member.name, "is a link, a device or the like", "files and folders")
                total += member.size
                end += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if total > max_bytes:
                    raise _TooMuch
                source = tar.extractfile(member)
                if source is None:
                    raise _refused(archive, member.name, "has no content", "whole files")
                with _blamed_on(archive, member.name):
                    _copy(source, target)
        # tarfile ends at a block of zeros, whatever follows. A gzip checksum is verified only at the end.
        limited.drain()
        if not seen or limited.filled > end or limited.count < end + _END:
            raise UsageError(
                f"{archive} is corrupt: it has no members, or does not end with zeros as tar files do; "
                "remedy: get it again from its source"
            )


def _unzip(archive: Path, room: Path, max_bytes: int, max_members: int) -> None:
    seen: set[str] = set()
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        if sum(member.file_size for member in members) > max_bytes:
            raise _TooMuch
        for member in members:
            target = _target(archive, room, member.filename, member.is_dir(), seen, max_members)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, member.filename, "is a link, a device or the like", "files and folders")
            if member.flag_bits & 1:
                raise _refused(archive, member.filename, "is encrypted", "files that are not")
            if member.is_dir():
                continue
            try:
                with packed.open(member) as source, _blamed_on(archive, member.filename):
                    size = _copy(source, target)
            except NotImplementedError as error:
                raise _refused(archive, member.filename, f"cannot be unpacked ({error})", "deflate or store") from error
            if size != member.file_size:
                raise _refused(
                    archive,
                    member.filename,
                    f"does not have the {member.file_size} bytes that the archive states",
                    "whole files",
                )


def _target(archive: Path, room: Path, name: str, folder: bool, seen: set[str], max_members: int) -> Path:
    """The path of a member inside the room; creates the folder, or the parent folder of a file."""
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or "\0" in name or re.match("[A-Za-z]:", name):
        raise _refused(archive, name, "has a path that is not relative", "paths inside the archive")
    if ".." in path.parts:
        raise _refused(archive, name, "leads out of the archive by '..'", "paths inside the archive")
    key = str(path)
    if not folder and (key in seen or key == "."):
        raise _refused(archive, name, "is there twice, or has no name", "each file once")
    seen.add(key)
    if len(seen) > max_members:
        raise UsageError(f"{archive} has more than {max_members} members; allowed: at most {max_members}")
    target = room.joinpath(*path.parts)
    with _blamed_on(archive, name):
        (target if folder else target.parent).mkdir(parents=True, exist_ok=True)
    return target


@contextmanager
def _blamed_on(archive: Path, name: str) -> Iterator[None]:
    """Report a file system error that a member's name causes as an error of the archive."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NAME_FAULTS:
            raise
        raise _refused(archive, name, *_NAME_FAULTS[error.errno]) from error


class _Member(tarfile.TarInfo):
    """A member of a tar file. An unreadable header is an error here; tarfile treats it as the end of the file."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """The next member.

        Raises:
            ReadError: The header cannot be read.
        """
        try:
            return super().fromtarfile(tar)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]  # not in typeshed
            raise tarfile.ReadError(f"a header cannot be read, {error}") from error


def _copy(source: IO[bytes], target: Path) -> int:
    """Write a new file; both libraries return at most the declared size, which has been counted."""
    copied = 0
    with target.open("xb") as file:
        while block := source.read(_BLOCK):
            copied += len(block)
            file.write(block)
    return copied


@contextmanager
def _decompressed(archive: Path) -> Iterator[Any]:
    """The content of a file that is uncompressed or compressed by a program that tar supports."""
    import bz2

    with archive.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        if head[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as stream:
                yield stream
        elif head[:3] == b"BZh":
            with bz2.BZ2File(file) as stream:
                yield stream
        elif head == b"\xfd7zXZ\0":
            with lzma.LZMAFile(file) as stream:
                yield stream
        else:
            yield file


class _Limited:
    """A stream that yields at most a given number of bytes, including headers and padding.

    Attributes:
        count: Bytes read so far.
        filled: Of these, the number up to the last nonzero byte.
    """

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        self._stream, self._left = stream, max_bytes
        self.count = self.filled = 0

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes."""
        block = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(block)
        if self._left < 0:
            raise _TooMuch
        if content := len(block.rstrip(b"\0")):
            self.filled = self.count + content
        self.count += len(block)
        return block

    def drain(self) -> None:
        """Read to the end."""
        while self.read(_BLOCK):
            pass


def _refused(archive: Path, name: str, why: str, allowed: str) -> UsageError:
    return UsageError(
        f"{archive} is not unpacked: its member {name[:80]!r} {why}; allowed: {allowed}; remedy: get the file again "
        "from its source"
    )


def _unwritable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"{folder} cannot be written ({error.strerror or error}); remedy: make room, or set DEEP5_CACHE")
