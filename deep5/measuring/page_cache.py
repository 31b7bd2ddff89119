"""The system's page cache: which part of a file it holds, and how to remove a file from it.

"Cold" here means: no page of the file's content is in this system's page cache when the clock starts. The names and
sizes of files, which the system keeps elsewhere, stay in memory, and so may copies that the disk, its controller or the
host of a virtual machine keeps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["check_cold", "drop_pages", "fill_pages", "resident_share"]

_MOST_COLD = 0.01
_REMEDY = "remedy: a folder on a local disk for the files (DEEP5_CACHE), or warm files only"


def drop_pages(paths: Iterable[Path]) -> None:
    """Write files to the disk and remove their pages from the page cache; needs no privileges.

    Pages that a process has mapped stay.

    Args:
        paths: The files.

    Raises:
        UsageError: The system cannot, or a file cannot be opened.
    """
    if not hasattr(os, "posix_fadvise"):
        raise UsageError(f"this system has no posix_fadvise to remove files from its page cache; {_REMEDY}")
    for path in paths:
        handle = _opened(path)
        try:
            os.fsync(handle)  # pages not yet written stay
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def fill_pages(paths: Iterable[Path]) -> None:
    """Read files to their ends, so that they are in the page cache.

    Args:
        paths: The files.

    Raises:
        UsageError: A file cannot be opened.
    """
    for path in paths:
        handle = _opened(path)
        try:
            while os.read(handle, 1 << 20):
                pass
        finally:
            os.close(handle)


def resident_share(paths: Iterable[Path]) -> float:
    """The fraction of the pages of files that are in the page cache, as the system call mincore reports it.

    Args:
        paths: The files, which belong to this user: of other files, the system reports every page.

    Returns:
        From 0 to 1; 1 for files without content.

    Raises:
        UsageError: The system has no mincore, or a file cannot be opened.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "x")
    ...     _ = path.write_bytes(bytes(100_000))
    ...     resident_share([path])  # just written
    1.0
    """
    there = pages = 0
    for path in paths:
        found = _resident(path)
        there, pages = there + int(found.sum()), pages + len(found)
    return there / pages if pages else 1.0


def check_cold(paths: Iterable[Path]) -> float:
    """Remove files from the page cache, and check that they have left it.

    Args:
        paths: The files.

    Returns:
        The fraction of their pages that is still resident, at most 0.01.

    Raises:
        UsageError: More pages stay: on tmpfs, for example, the page cache is the only copy.
    """
    paths = list(paths)
    drop_pages(paths)
    share = resident_share(paths)
    if share > _MOST_COLD:
        raise UsageError(
            f"{100 * share:.0f} % of the pages of {len(paths)} files in {paths[0].parent} stay in the page cache after "
            f"they were dropped, as on a file system in memory or while a process maps them; allowed for cold files: "
            f"at most {100 * _MOST_COLD:.0f} %; {_REMEDY}"
        )
    return share


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror or error}); allowed: a readable file") from error


def _resident(path: Path) -> np.ndarray:
    """Whether each page of a file is in the page cache."""
    mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if mincore is None:
        raise UsageError(f"this system has no mincore to report the pages of a file in memory; {_REMEDY}")
    handle = _opened(path)
    try:
        size = os.fstat(handle).st_size
        if not size:
            return np.zeros(0, bool)
        with mmap.mmap(handle, size, prot=mmap.PROT_READ) as mapped:
            states = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            failed = mincore(
                ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(states.ctypes.data)
            )
            del view  # otherwise the file stays mapped
        if failed:
            raise UsageError(f"mincore fails on {path} ({os.strerror(ctypes.get_errno())}); {_REMEDY}")
        return (states & 1).astype(bool)
    finally:
        os.close(handle)
