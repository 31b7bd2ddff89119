"""`InitialValues`: names to initial values, none of them in memory before somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

__all__ = ["InitialValues"]


class InitialValues(Mapping[str, np.ndarray]):
    """A mapping that reads, or draws, a value each time it is asked for.

    Args:
        read: Gives the value of a name; a fresh array.
        names: In their order.
    """

    def __init__(self, read: Callable[[str], np.ndarray], names: Iterable[str]) -> None:
        self._read, self._names = read, dict.fromkeys(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"InitialValues({list(self._names)})"
