"""`KernelCache`: compiled libraries on disk, authenticated with a secret of their owner."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically
from deep5.core.owner_secret import owner_secret
from deep5.core.private_files import private_folder, read_bounded

__all__ = ["BUILD", "MOST_BYTES", "KernelCache"]

MOST_BYTES = 256 << 20
"""Bytes of the largest library that is read."""

BUILD = "build-"
"""First part of the names of folders that exist while something is compiled or loaded."""

_MAC_BYTES = 32
# A list of included files, and what is read of the files together. The headers of OpenVINO have 3 MiB.
_MOST_LIST_BYTES, _MOST_INCLUDED_BYTES = 4 << 20, 64 << 20


class KernelCache:
    """The folder of compiled libraries; nothing that another user could have written is returned.

    An entry is two files. `KEY.includes` lists the files that the source includes, after an authentication code. Their
    content and the key give the name of the library, `NAME.so`, which ends with its own code. The codes are HMAC-SHA256
    over the name of the entry and the content, so that a file under another name does not count either. An entry that
    is missing, damaged or not authentic is not found, whatever it is.

    Args:
        folder: The folder, which is created if it does not exist.

    Raises:
        ExposedFile: Another user can change the folder, or read the secret.
        Deep5Error: The folder or the secret cannot be created or read.

    References:
        Krawczyk, Bellare and Canetti, HMAC: Keyed-Hashing for Message Authentication, RFC 2104.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            private_folder(
                folder,
                what="the kernel cache",
                remedy="set DEEP5_CACHE to such a folder",
            )
        except OSError as error:
            raise self.unwritable(error) from error
        self._secret = owner_secret()

    def name(self, key: str) -> str | None:
        """The name of the library of a key and the included files as they are now; None if it is not known."""
        try:
            content = read_bounded(self.folder / f"{key}.includes", _MOST_LIST_BYTES, follow=False)
            listed = self._authentic(f"{key}.includes", content[_MAC_BYTES:], content[:_MAC_BYTES])
            return None if listed is None else _name(key, [part for part in os.fsdecode(listed).split("\0") if part])
        except (OSError, ValueError):
            return None

    def read(self, name: str) -> bytes | None:
        """The bytes of a library; None if it has to be compiled."""
        try:
            content = read_bounded(self.folder / f"{name}.so", MOST_BYTES + _MAC_BYTES, follow=False)
        except OSError:
            return None
        return self._authentic(f"{name}.so", content[:-_MAC_BYTES], content[-_MAC_BYTES:])

    def write(self, key: str, library: bytes, includes: Sequence[str]) -> str:
        """Store a library; of processes that store the same one concurrently, the last one's files remain.

        Args:
            key: The key.
            library: Its bytes.
            includes: The files that its source includes.

        Returns:
            Its name.

        Raises:
            Deep5Error: The folder cannot be written.
        """
        listed = os.fsencode("\0".join(includes))
        try:
            name = _name(key, includes)
            # Write the library first: if the list is missing, it is compiled again.
            self._replace(f"{name}.so", library + self._code(f"{name}.so", library))
            self._replace(f"{key}.includes", self._code(f"{key}.includes", listed) + listed)
        except OSError as error:
            raise self.unwritable(error) from error
        return name

    @contextmanager
    def build(self) -> Iterator[Path]:
        """An empty folder of this user for what is compiled, which is deleted at the end.

        Raises:
            Deep5Error: The folder cannot be written.
        """
        try:
            folder = tempfile.mkdtemp(dir=self.folder, prefix=BUILD)
        except OSError as error:
            raise self.unwritable(error) from error
        try:
            yield Path(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _code(self, name: str, content: bytes) -> bytes:
        return hmac.digest(self._secret, f"{name}\0".encode() + content, "sha256")

    def _authentic(self, name: str, content: bytes, code: bytes) -> bytes | None:
        return content if hmac.compare_digest(self._code(name, content), code) else None

    def _replace(self, name: str, content: bytes) -> None:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        write_atomically(path, content)

    def unwritable(self, error: OSError) -> Deep5Error:
        """The error of a folder in which nothing can be created."""
        return Deep5Error(
            f"the kernel cache {self.folder} cannot be written ({error.strerror or error}); remedy: make room there, "
            "or set DEEP5_CACHE to a writable folder"
        )


def _name(key: str, includes: Sequence[str]) -> str:
    """The name of a library compiled from files with this content.

    Raises:
        OSError: A file is missing, is not a regular one, or is too large.
    """
    contents, left = hashlib.sha256(), _MOST_INCLUDED_BYTES
    for path in includes:
        content = read_bounded(path, left)
        left -= len(content)
        contents.update(os.fsencode(path) + b"\0" + hashlib.sha256(content).digest())
    return f"{key[:40]}-{contents.hexdigest()[:24]}"
