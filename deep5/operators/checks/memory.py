"""Memory that tells when an operator in C++ writes, or reads, beyond what it was given, or leaves it unwritten.

Where a crash is harmless, in a process of its own, arrays end at a page that nobody may touch. Elsewhere bytes around
them are looked at after the call.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from deep5.operators import plan

__all__ = ["Guarded", "guarded_memory"]

_EDGE, _AROUND = 4096, 0xC3
# What is in new memory: NaN of every floating type, then numbers; never twice the same, so that what depends on it is
# not repeatable.
_FILLS = itertools.cycle((0xFF, 0x5A, 0xA5))
_LOCK = threading.RLock()


class Guarded:
    """Makes arrays and knows their surroundings.

    Args:
        pages: Whether arrays end at a page that must not be touched.
    """

    def __init__(self, pages: bool) -> None:
        self._pages, self._fill = pages, next(_FILLS)
        self._around: list[tuple[np.ndarray, int, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """As `numpy.empty`, and filled with what no operator may make use of."""
        size = np.dtype(dtype).itemsize
        for extent in shape:
            size *= extent
        room, start = self._room(size, 0)
        room[start : start + size] = self._fill
        return np.ndarray(shape, dtype, room.data, start)

    def copy(self, value: np.ndarray) -> np.ndarray:
        """The same values in the same layout."""
        low, high = np.lib.array_utils.byte_bounds(value) if value.size else (0, 0)
        size = high - low
        room, start = self._room(size, high % value.dtype.alignment)
        room[start : start + size] = np.frombuffer(ctypes.string_at(low, size), np.uint8)
        first = value.__array_interface__["data"][0] - low if size else 0
        return np.ndarray(value.shape, value.dtype, room.data, start + first, value.strides)

    def wrong(self) -> str:
        """Where something was written beyond an array; empty where nothing was."""
        for room, start, size in self._around:
            for where, part in (("before the first", room[:start]), ("behind the last", room[start + size :])):
                if part.tobytes() != bytes((_AROUND,)) * part.size:
                    changed = int(np.count_nonzero(part != _AROUND))
                    return (
                        f"wrote {changed} bytes {where} element of a tensor; allowed: a tensor's own memory; remedy: "
                        "look for an index beyond a tensor's end"
                    )
        return ""

    def untouched(self, values: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Which elements of arrays of `empty` are still what they were filled with."""
        return [
            None
            if value is None
            else np.all(np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8) == self._fill, axis=1)
            for value in values
        ]

    def _room(self, size: int, beyond: int) -> tuple[np.ndarray, int]:
        """Bytes, and where among them `size` begin; `beyond` is how far the end is from where numbers may begin."""
        if not self._pages:
            room = np.full(size + 2 * _EDGE, _AROUND, np.uint8)
            self._around.append((room, _EDGE, size))
            return room, _EDGE
        page = mmap.PAGESIZE
        taken = -(-(size + page) // page) * page
        try:
            room = np.frombuffer(mmap.mmap(-1, taken + page), np.uint8)
        except (OSError, OverflowError) as error:
            raise MemoryError(str(error)) from error
        start = taken - size - (-beyond % 64 if beyond else 0)
        room[:start] = _AROUND
        room[start + size : taken] = _AROUND
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(room.ctypes.data + taken), ctypes.c_size_t(page), 0)
        self._around.append((room[:taken], start, size))
        return room[:taken], start


@contextmanager
def guarded_memory(*, pages: bool = False) -> Iterator[Guarded]:
    """Within, operators in C++ have the memory of their outputs, on NumPy arrays, from a `Guarded`."""
    memory = Guarded(pages)
    with _LOCK:
        before, plan.make_memory = plan.make_memory, memory.empty
        try:
            yield memory
        finally:
            plan.make_memory = before
