"""`Lender`: memory for outputs that callers are lent, and that is written to again once none of them holds it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from deep5.core.tensors import aligned_empty

__all__ = ["Lender", "Lent"]

_Bound = TypeVar("_Bound")
# `y = f(x)` in a loop holds the last outputs while the next are computed.
_SETS = 2


class Lent(Generic[_Bound]):
    """Arrays that are lent together.

    Args:
        arrays: New ones, each a view of memory of its own (`aligned_empty`).
        bind: Makes of an array what the engine wants to be told of it; called once an array.

    Attributes:
        bound: What it made.
    """

    def __init__(self, arrays: Sequence[np.ndarray], bind: Callable[[np.ndarray], _Bound]) -> None:
        self._arrays = arrays
        self._owners = [array.base for array in arrays]
        self.bound = [bind(array) for array in arrays]
        # NumPy lets a view of a view refer to the owner of the memory: whatever uses it counts here.
        self._alone = list(map(sys.getrefcount, self._owners))

    def lend(self) -> list[np.ndarray] | None:
        """Views, or None while somebody holds earlier ones, or what was made of one without a copy."""
        return self.views() if list(map(sys.getrefcount, self._owners)) == self._alone else None

    def views(self) -> list[np.ndarray]:
        """New views: whoever changes a shape or a flag changes his own."""
        return [array[...] for array in self._arrays]


class Lender(Generic[_Bound]):
    """Memory for the outputs of calls with inputs of the same shapes.

    Memory that an engine wrote to at the call before is in the caches and bound; new memory is neither, and a copy out
    of memory that stays bound costs time, too. It serves one call at a time.

    Args:
        outputs: Shape and element type of each.
        bind: As for `Lent`.
    """

    def __init__(self, outputs: Sequence[tuple[tuple[int, ...], Any]], bind: Callable[[np.ndarray], _Bound]) -> None:
        self._outputs, self._bind = outputs, bind
        self._sets: list[Lent[_Bound]] = []

    def lend(self) -> tuple[Lent[_Bound], list[np.ndarray]]:
        """Memory that nobody holds, that of the last call if it can be, else that of the one before, or new; its views.

        Nothing is written to it before the engine runs.
        """
        for number, lent in enumerate(self._sets):
            if (views := lent.lend()) is not None:
                self._sets.insert(0, self._sets.pop(number))
                return lent, views
        lent = Lent([aligned_empty(shape, dtype) for shape, dtype in self._outputs], self._bind)
        self._sets = [lent, *self._sets[: _SETS - 1]]
        return lent, lent.views()
