"""Values that are looked up by a key at every call, and made again where they have been forgotten."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["remember"]

Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(known: dict[Key, Value], key: Key, made: Value, *, room: int = 256) -> Value:
    """Keep what was made under its key; where there is no room, everything older is forgotten.

    Lookups stay those of a plain dict, at every call; this runs when something was made. A network for sequences meets
    many shapes, so there is room for many.

    >>> squares = {}
    >>> [remember(squares, number, number**2, room=2) for number in (1, 2, 3)], squares
    ([1, 4, 9], {3: 9})
    """
    if len(known) >= room:
        known.clear()
    known[key] = made
    return made
