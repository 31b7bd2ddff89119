"""The secret with which this user's compiled code is authenticated; it lies outside the cache."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from deep5.core.errors import Deep5Error
from deep5.core.private_files import ExposedFile, private_folder, read_bounded

__all__ = ["owner_secret", "secret_path"]

_BYTES = 32
_WHAT = "the folder of the secret of compiled code"
_REMEDY = "set XDG_STATE_HOME to a folder of this user outside the cache"


def secret_path() -> Path:
    """The file of the secret: `deep5/cache.secret` in `$XDG_STATE_HOME`, else in `~/.local/state`.

    Raises:
        Deep5Error: This user has no home folder.
    """
    chosen = os.environ.get("XDG_STATE_HOME")
    if chosen:
        return Path(chosen) / "deep5" / "cache.secret"
    try:
        return Path.home() / ".local" / "state" / "deep5" / "cache.secret"
    except RuntimeError as error:
        raise Deep5Error(f"the secret of compiled code has no place ({error}); remedy: {_REMEDY}") from error


def owner_secret() -> bytes:
    """The secret, which is drawn when there is none: 32 random bytes, readable only by this user.

    Raises:
        ExposedFile: Another user can read or change it.
        Deep5Error: It cannot be read or written.
    """
    path = secret_path()
    try:
        private_folder(path.parent, what=_WHAT, remedy=_REMEDY, closed=True)
        with suppress(FileNotFoundError):
            found = _read(path)
            if len(found) == _BYTES:
                return found
            path.unlink()  # the disk was full, or the file is damaged: what it authenticated is compiled again
        _draw(path)
        found = _read(path)
    except OSError as error:
        raise Deep5Error(
            f"the secret of compiled code {path} cannot be read or written ({error.strerror}); remedy: {_REMEDY}"
        ) from error
    if len(found) != _BYTES:
        raise Deep5Error(f"the secret of compiled code {path} is damaged; remedy: deep5 clean")
    return found


def _read(path: Path) -> bytes:
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        kind = "" if stat.S_ISREG(about.st_mode) else " and is not a regular file"
        remedy = "deep5 clean, which deletes it and what it authenticates"
        if stat.S_ISDIR(about.st_mode):
            kind, remedy = " and is a folder", "move this folder elsewhere"  # with files that are not deep5's
        raise ExposedFile(
            f"the secret of compiled code {path} is not used: it belongs to the user {about.st_uid} with mode "
            f"{stat.S_IMODE(about.st_mode):04o}{kind}; allowed: a file that only this user can read (0600); remedy: "
            f"{remedy}"
        )
    return read_bounded(path, _BYTES, follow=False) if about.st_size == _BYTES else b""


def _draw(path: Path) -> None:
    """Write a new secret; of several processes that do so concurrently, one succeeds, and all read its secret."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                raise
            temporary.replace(path)  # a file system without hard links; at worst, code is compiled once more
    finally:
        temporary.unlink(missing_ok=True)
