"""Files that no other user can have written or replaced: folders of this user only, and reads within bounds."""

from __future__ import annotations

import errno
import functools
import os
import stat
from contextlib import suppress
from pathlib import Path

from deep5.core.errors import Deep5Error

__all__ = ["ExposedFile", "private_folder", "read_bounded"]

# As many as the kernel of Linux follows in one path.
_MOST_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ExposedFile(Deep5Error):
    """A file or folder that another user can change, or could have changed."""


def private_folder(folder: Path, *, what: str, remedy: str, closed: bool = False) -> None:
    """Create a folder of this user, or check that no other user can change or replace an existing one.

    Every folder and symbolic link on the way must belong to this user or root, and only they may write to a folder on
    the way; a folder with the sticky bit, such as /tmp, may be written by all, since only its owner can then replace an
    entry. The folder itself must belong to this user. As in OpenSSH, a group counts as other users.

    Args:
        folder: The folder; missing parts of its path are created with mode 0700.
        what: Name of the folder in messages.
        remedy: What else the user can do, for messages.
        closed: Whether other users must not read it either.

    Raises:
        ExposedFile: Another user can change it.
        OSError: It cannot be created or reached.
    """
    owners, own = _owners(), os.geteuid()

    def refuse(path: str, got: str, do: str) -> ExposedFile:
        return ExposedFile(
            f"{what} {folder} is not used: {path} {got}, so that another user could replace its files; allowed: "
            f"folders that only this user can change; remedy: {do}, or {remedy}"
        )

    # Links are resolved here, one by one, as each may lead to where other users write.
    # The working directory may have been removed.
    absolute = folder if folder.is_absolute() else Path.cwd() / folder
    waiting, place, links = list(absolute.parts[:0:-1]), "/", 0
    about = os.lstat(place)
    while True:
        # What a folder holds can be replaced by those who may write to it.
        if about.st_uid not in owners:
            raise refuse(place, f"belongs to the user {about.st_uid}", "choose a folder of this user")
        if about.st_mode & _OTHERS_WRITE and (not waiting or not about.st_mode & stat.S_ISVTX):
            raise refuse(place, f"has mode {stat.S_IMODE(about.st_mode):04o}", f"chmod go-w {place}")
        if not waiting:
            break
        name = waiting.pop()
        if name == "..":
            place = os.path.dirname(place)  # noqa: PTH120 - as strings: `place` holds no links
            about = os.lstat(place)
            continue
        entry = os.path.join(place, name)  # noqa: PTH118
        try:
            about = os.lstat(entry)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process created it
                os.mkdir(entry, 0o700)  # noqa: PTH102
            about = os.lstat(entry)
        if stat.S_ISLNK(about.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
            if about.st_uid not in owners:
                raise refuse(entry, f"is a link of the user {about.st_uid}", "choose a folder of this user")
            target = os.readlink(entry)  # noqa: PTH115
            waiting += Path(target).parts[target.startswith("/") :][::-1]
            place = "/" if target.startswith("/") else place
            about = os.lstat(place)
            continue
        if not stat.S_ISDIR(about.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), entry)
        place = entry
    if about.st_uid != own:
        raise refuse(place, f"belongs to the user {about.st_uid}", "choose a folder of this user")
    if closed and about.st_mode & 0o077:
        raise refuse(place, f"has mode {stat.S_IMODE(about.st_mode):04o}", f"chmod 700 {place}")


@functools.cache
def _owners() -> frozenset[int]:
    """The users that may own a folder on the way: root and this one.

    In a user namespace that does not map root (containers started without privileges), its files have the overflow
    number.
    """
    owners = {0, os.geteuid()}
    try:
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if not any(int(outside) == 0 for _, outside, _ in ranges):
            owners.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    except (OSError, ValueError):  # no Linux, or no /proc
        pass
    return frozenset(owners)


def read_bounded(path: str | Path, most_bytes: int, *, follow: bool = True) -> bytes:
    """The content of a regular file.

    A pipe, a device or a larger file is not read, however it came to be there.

    Args:
        path: The file.
        most_bytes: Most bytes that it may have.
        follow: Whether it may be a symbolic link.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger.
    """
    # A pipe without a writer would otherwise wait for one.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb", buffering=0) as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if about.st_size > most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        parts, left = [], most_bytes + 1
        while left and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
        if not left:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return parts[0] if len(parts) == 1 else b"".join(parts)
