"""`Repeats`: the results of every call of an operator, to find calls of the same arguments with other results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.arguments import THREADS

__all__ = ["Repeats"]

# More elements are left out: the given inputs and most others have fewer, and a fault of one call may come at any.
_MOST = 4096


class Repeats:
    """Hashes of the arguments and the results of all calls, so that a fault of one call is seen whichever it is.

    Most calls of the checks repeat an earlier one, but only some compare the two. Sums may depend on memory layout and
    number of threads: these count as arguments.

    Attributes:
        differing: Description of each call whose result differed from an earlier one's.
    """

    def __init__(self) -> None:
        self.differing: list[str] = []
        self._known: dict[int, int] = {}

    def key(self, method: str, *given: Sequence[Any]) -> int | None:
        """Identifies a call; computed before it, since it may change its arguments. None: it is left out.

        Args:
            method: Name of the method.
            given: Its arguments: arrays, None, and booleans.
        """
        values = [value for part in given for value in part]
        if sum(np.size(value) for value in values) > _MOST:
            return None
        return hash((method, THREADS[0], *map(len, given), *map(_layout, values), *map(_content, values)))

    def see(self, method: str, key: int | None, made: Sequence[Any]) -> None:
        """Compare a call's results with those of an earlier call of this key, if there was one."""
        if key is None:
            return
        found = hash(tuple(map(_content, made)))
        if self._known.setdefault(key, found) != found:
            what = ", ".join(f"{value.dtype}{list(value.shape)}" for value in made if value is not None)
            self.differing.append(f"{method} of {what}")


def _layout(value: Any) -> Any:
    return (value.strides, value.flags.aligned) if isinstance(value, np.ndarray) else None


def _content(value: Any) -> Any:
    return (value.shape, str(value.dtype), value.tobytes()) if hasattr(value, "tobytes") else value
