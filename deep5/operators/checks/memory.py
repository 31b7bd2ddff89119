"""Guarded memory that detects when a C++ operator writes or reads out of bounds, or leaves outputs unwritten.

In a separate process, where a crash is harmless, arrays end at a protected page. Otherwise the bytes around them are
checked after the call.
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
# Fill patterns of new memory: NaN of every floating-point type, then numbers; they alternate, so that results that
# depend on them are not repeatable.
_FILLS = itertools.cycle((0xFF, 0x5A, 0xA5))
_LOCK = threading.RLock()


class Guarded:
    """Allocates arrays and checks the memory around them.

    Args:
        pages: Whether arrays end at a protected page.
    """

    def __init__(self, pages: bool) -> None:
        self._pages, self._fill = pages, next(_FILLS)
        self._around: list[tuple[np.ndarray, int, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Like `numpy.empty`, but filled with a pattern that no operator may use."""
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
        """Where an array was written out of bounds; empty if none was."""
        for room, start, size in self._around:
            for where, part in (("before the first", room[:start]), ("after the last", room[start + size :])):
                if part.tobytes() != bytes((_AROUND,)) * part.size:
                    changed = int(np.count_nonzero(part != _AROUND))
                    return (
                        f"wrote {changed} bytes {where} element of a tensor; allowed: a tensor's own memory; remedy: "
                        "look for an index beyond a tensor's end"
                    )
        return ""

    def untouched(self, values: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Which elements of arrays from `empty` still have the fill pattern."""
        return [
            None
            if value is None
            else np.all(np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8) == self._fill, axis=1)
            for value in values
        ]

    def _room(self, size: int, beyond: int) -> tuple[np.ndarray, int]:
        """A byte buffer, and the offset of `size` bytes in it; `beyond` is the misalignment of the end."""
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
    """Within the block, a `Guarded` allocates the outputs of C++ operators on NumPy arrays."""
    memory = Guarded(pages)
    with _LOCK:
        before, plan.make_memory = plan.make_memory, memory.empty
        try:
            yield memory
        finally:
            plan.make_memory = before
