"""`load_copy`: loads a compiled library from bytes that no other user can change between the check and the load."""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from deep5.core.kernel_cache import BUILD

__all__ = ["load_copy"]

# omp_pause_soft of OpenMP 5.0, and the OpenMP runtimes, by address, that pause before a fork.
_PAUSE_SOFT = 1
_PAUSED: set[int | None] = set()
_NUMBERS = itertools.count(1)


def load_copy(data: bytes, name: str, folder: Path, *, as_file: bool = False) -> ctypes.CDLL:
    """Load a library from a private copy of its bytes: memory without a file, or a file in a folder of this user.

    Args:
        data: The library.
        name: Name of the memory in lists of this process's memory.
        folder: A folder that only this user can change, for the files.
        as_file: Whether the library's name must be the path of a file, which exists until this process ends.

    Raises:
        OSError: The system cannot load it.
    """
    if as_file or not hasattr(os, "memfd_create"):
        library = _from_file(data, folder)
    else:
        try:
            library = _from_memory(data, name)
        except OSError:  # no /proc, or memory that must not be executed
            library = _from_file(data, folder)
    _let_fork(library)
    return library


def _from_memory(data: bytes, name: str) -> ctypes.CDLL:
    handle = os.memfd_create(f"deep5-{name}")
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(data)
        # The loader takes libraries of one name for one, and the numbers of closed descriptors are used again. So every
        # path is spelled differently, and leads to the same place.
        spelled = "".join("./" if bit == "1" else "/" for bit in f"{next(_NUMBERS):b}")
        return ctypes.CDLL(f"/proc/self/fd/{spelled}{handle}")
    finally:
        os.close(handle)


def _from_file(data: bytes, folder: Path) -> ctypes.CDLL:
    own, inside = os.getpid(), tempfile.mkdtemp(dir=folder, prefix=BUILD)
    try:
        path = Path(inside, "library.so")
        path.write_bytes(data)
        library = ctypes.CDLL(str(path))
    except OSError:
        shutil.rmtree(inside, ignore_errors=True)
        raise
    atexit.register(lambda: shutil.rmtree(inside, ignore_errors=True) if os.getpid() == own else None)
    return library


def _let_fork(library: ctypes.CDLL) -> None:
    """Ensure that a forked child of this process can call the library.

    OpenMP keeps the threads of the first parallel region for later ones; a child has none of them and would wait
    forever. They are therefore released before a fork, and restarted when there is work.
    """
    try:
        pause = library.omp_pause_resource_all
    except AttributeError:  # no OpenMP, or older than 5.0
        return
    address = ctypes.cast(pause, ctypes.c_void_p).value
    if address not in _PAUSED:
        _PAUSED.add(address)
        os.register_at_fork(before=functools.partial(pause, _PAUSE_SOFT))
