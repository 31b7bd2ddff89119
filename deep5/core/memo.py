"""Bounded caches: values looked up by key at every call, and recomputed after eviction."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["remember"]

Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(known: dict[Key, Value], key: Key, made: Value, *, room: int = 256) -> Value:
    """Store a computed value under its key; when the cache is full, all older entries are evicted.

    Lookups at every call stay plain dict lookups; this function runs only after a value was computed. A sequence
    network sees many shapes, so the default capacity is large.

    >>> squares = {}
    >>> [remember(squares, number, number**2, room=2) for number in (1, 2, 3)], squares
    ([1, 4, 9], {3: 9})
    """
    if len(known) >= room:
        known.clear()
    known[key] = made
    return made
