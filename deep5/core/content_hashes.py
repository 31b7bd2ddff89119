"""SHA-256 of files, read once: hashes are kept in deep5's cache by path, size, times and inode."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from deep5.core.compiler import cache_folder
from deep5.core.files import write_atomically
from deep5.core.progress import counting
from deep5.core.quantities import size

__all__ = ["HASH_CACHE", "file_hash", "files_hash", "kept_hashes"]

HASH_CACHE = "hashes"
"""The folder in deep5's cache."""

# A file that changed more recently may change again within the same tick of the file system's clock.
_SETTLED_NS = 2_000_000_000
# Reading a smaller file takes no longer than looking it up.
_SMALL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
_READERS = 8


def kept_hashes() -> Path:
    """The folder of the kept hashes, which may be deleted at any time."""
    return cache_folder() / HASH_CACHE


def file_hash(path: str | Path) -> str:
    """SHA-256 of a regular file's bytes.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    found = Path(path).stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not a regular file")
    if found.st_size <= _SMALL_BYTES:
        return _read(str(path))
    return files_hash([str(path)], [found])


def files_hash(paths: Sequence[str], stats: Sequence[os.stat_result] | None = None) -> str:
    """SHA-256 over the SHA-256 of each file, in their order; that of one file is its own.

    The files are read unless a hash of the same paths, sizes, times of modification and change, and inodes is kept. The
    time of change is the kernel's own and cannot be set back by a program that keeps a file's time of modification.

    Args:
        paths: The files.
        stats: `os.stat` of each, if known.

    Raises:
        OSError: One cannot be read.
    """
    begin = time.time_ns()
    stated = _stated(paths, stats)
    before = [_mark(path, found) for path, found in stated]
    key = hashlib.sha256("\n".join(before).encode("utf-8", "surrogateescape")).hexdigest()
    kept = kept_hashes() / f"{key}.sha256"
    if (known := _known(kept)) is not None:
        return known
    what = f"hashing {paths[0]}" if len(paths) == 1 else f"hashing {len(paths)} files"
    with counting(what, sum(found.st_size for _, found in stated), shown=size) as advance:
        each = _read_all(paths, advance)
    found_hash = each[0] if len(each) == 1 else hashlib.sha256("\n".join(each).encode()).hexdigest()
    after = [(found, _mark(path, found)) for path, found in _stated(paths, None)]
    settled = all(max(found.st_mtime_ns, found.st_ctime_ns) < begin - _SETTLED_NS for found, _ in after)
    if settled and [mark for _, mark in after] == before:
        _keep(kept, found_hash)
    return found_hash


def _stated(paths: Sequence[str], stats: Sequence[os.stat_result] | None) -> list[tuple[str, os.stat_result]]:
    return list(zip(paths, [os.stat(path) for path in paths] if stats is None else stats, strict=True))  # noqa: PTH116 - a million times


def _mark(path: str, found: os.stat_result) -> str:
    numbers = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
    return f"{os.path.realpath(path)}\0{' '.join(map(str, numbers))}"


def _read_all(paths: Sequence[str], advance: Callable[[int], None]) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor  # takes 10 ms to import, and most recipes hash no file

    if len(paths) == 1:
        return [_read(paths[0], advance)]
    ended = threading.Event()

    def counted(count: int) -> None:
        if ended.is_set():
            raise OSError("interrupted")
        advance(count)

    with ThreadPoolExecutor(_READERS, thread_name_prefix="deep5-hash") as pool:
        try:
            return list(pool.map(lambda path: _read(path, counted), paths))
        except BaseException:
            ended.set()  # an interruption does not wait for the end of large files
            raise


def _read(path: str, advance: Callable[[int], None] | None = None) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a million times
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def _known(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            text = file.read(65).decode()
        return text if len(text) == 64 and int(text, 16) >= 0 else None
    except (OSError, ValueError):
        return None


def _keep(path: Path, found: str) -> None:
    with suppress(OSError):  # a cache that cannot be written only costs time
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, found)
