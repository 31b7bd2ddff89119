"""`Lender`: memory for outputs lent to callers and reused once they release it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from deep5.core.tensors import aligned_empty

__all__ = ["Lender", "Lent"]

_Bound = TypeVar("_Bound")
# `y = f(x)` in a loop still holds the last outputs during the next computation.
_SETS = 2


class Lent(Generic[_Bound]):
    """Arrays that are lent as a group.

    Args:
        arrays: New ones, each a view of its own memory (`aligned_empty`).
        bind: Converts an array to the engine's binding; called once per array.

    Attributes:
        bound: The bindings.
    """

    def __init__(self, arrays: Sequence[np.ndarray], bind: Callable[[np.ndarray], _Bound]) -> None:
        self._arrays = arrays
        self._owners = [array.base for array in arrays]
        self.bound = [bind(array) for array in arrays]
        # In NumPy, the base of a view of a view is the owner of the memory: every use increases its reference count.
        self._alone = list(map(sys.getrefcount, self._owners))

    def lend(self) -> list[np.ndarray] | None:
        """Views, or None if earlier ones, or zero-copy objects made from one, are still referenced."""
        return self.views() if list(map(sys.getrefcount, self._owners)) == self._alone else None

    def views(self) -> list[np.ndarray]:
        """New views, so that a caller's change of shape or flags affects only that caller."""
        return [array[...] for array in self._arrays]


class Lender(Generic[_Bound]):
    """Memory for the outputs of calls with inputs of the same shapes.

    The memory of the previous call is cached and bound; new memory is neither, and copying out of memory that stays
    bound costs time, too. Not for concurrent calls.

    Args:
        outputs: Shape and element type of each output.
        bind: As for `Lent`.
    """

    def __init__(self, outputs: Sequence[tuple[tuple[int, ...], Any]], bind: Callable[[np.ndarray], _Bound]) -> None:
        self._outputs, self._bind = outputs, bind
        self._sets: list[Lent[_Bound]] = []

    def lend(self) -> tuple[Lent[_Bound], list[np.ndarray]]:
        """Unreferenced memory and its views: that of the last call if possible, else the one before, else new memory.

        It is not written to before the engine runs.
        """
        for number, lent in enumerate(self._sets):
            if (views := lent.lend()) is not None:
                self._sets.insert(0, self._sets.pop(number))
                return lent, views
        lent = Lent([aligned_empty(shape, dtype) for shape, dtype in self._outputs], self._bind)
        self._sets = [lent, *self._sets[: _SETS - 1]]
        return lent, lent.views()
