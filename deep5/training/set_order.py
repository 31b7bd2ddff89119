"""`another_order`: the order of a set of strings differs between processes, because their hashes do."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

__all__ = ["another_order", "hash_differs"]

# That of an enumeration is its name's.
_OF_ADDRESSES: tuple[Any, ...] = (object.__hash__, enum.Enum.__hash__)


def hash_differs(value: Any) -> bool:
    """Whether the hash of a value differs between processes: that of a string, or of an object's address.

    >>> hash_differs(("a", 1)), hash_differs((2, 1))
    (True, False)
    """
    if isinstance(value, (tuple, frozenset)):
        return any(map(hash_differs, value))
    if value is None:
        return False
    return isinstance(value, (str, bytes)) or type(value).__hash__ in _OF_ADDRESSES


def another_order(given: set[Any] | frozenset[Any]) -> set[Any] | frozenset[Any] | None:
    """An equal set that is iterated over in another order; None if the order is the same in every process.

    >>> names = {"a", "b", "c"}
    >>> other = another_order(names)
    >>> other == names, list(other) == list(names)
    (True, False)
    """
    if type(given) not in (set, frozenset) or len(given) < 2:
        return None
    if not any(map(hash_differs, given)):
        return None
    return _OtherSet(given) if isinstance(given, set) else _OtherFrozenSet(given)


class _OtherSet(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from reversed(list(super().__iter__()))


class _OtherFrozenSet(frozenset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from reversed(list(super().__iter__()))
