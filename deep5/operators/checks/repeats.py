"""`Repeats`: all calls of an operator, to find other results for the same arguments, and results that share memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.arguments import THREADS

__all__ = ["Repeats", "share_memory"]

# More elements are left out: the given inputs and most others have fewer, and a fault of one call may come at any.
_MOST = 4096
# Results that are kept, so that memory that is used again is found: more than the calls between two of most checks.
_KEPT = 16
# Effort for finding a common element of two arrays; those with regular strides need little.
_EFFORT = 1000


class Repeats:
    """Hashes of the arguments and the results of all calls, so that a fault of one call is seen whichever it is.

    Most calls of the checks repeat an earlier one, but only some compare the two. Sums may depend on memory layout and
    number of threads: these count as arguments.

    Attributes:
        differing: Description of each call whose result differed from an earlier one's.
        sharing: Description of each result in memory of an argument, of another output, or of an earlier result.
    """

    def __init__(self) -> None:
        self.differing: list[str] = []
        self.sharing: list[str] = []
        self._known: dict[int, int] = {}
        self._kept: deque[tuple[str, np.ndarray]] = deque(maxlen=_KEPT)

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
            self.differing.append(f"{method} of {_described(made)}")

    def owned(self, method: str, made: Sequence[Any], given: Sequence[Any], passed: Sequence[Any] = ()) -> None:
        """Check that results are new memory.

        Args:
            method: `"forward"` or `"backward"`.
            made: The results. Gradients may share memory with each other: that of a sum is the same one for all terms.
            given: Arrays with which they may share none.
            passed: The gradients by outputs, which gradients may pass on.
        """
        name, one = ("output", "inputs") if method == "forward" else ("gradient", "inputs and outputs")
        arrays = [
            (f"{name} {n}", value) for n, value in enumerate(made) if isinstance(value, np.ndarray) and value.size
        ]
        found, new = list[str](), list[tuple[str, np.ndarray]]()
        for place, (what, value) in enumerate(arrays):
            if any(share_memory(value, other) for other in given):
                found.append(f"{what} shares memory with its {one}")
            if method == "forward":
                found += [
                    f"{what} shares memory with {of}" for of, other in arrays[:place] if share_memory(value, other)
                ]
            if any(share_memory(value, other) for other in passed):
                continue
            # Other threads may add to it at the same time.
            found += [f"{what} shares memory with {of}" for of, kept in tuple(self._kept) if share_memory(value, kept)]
            new.append((f"{what} of an earlier call", value))
        if found:
            self.sharing.append(f"{found[0]} in {method} of {_described(given)}")
        self._kept.extend(each for each in new if each[1].size <= _MOST)


def share_memory(first: Any, second: Any) -> bool:
    """Whether two arrays have an element in common."""
    if not np.may_share_memory(first, second):
        return False
    try:
        return np.shares_memory(first, second, max_work=_EFFORT)  # type: ignore[arg-type]  # any number is allowed
    except np.exceptions.TooHardError:
        return False


def _described(values: Sequence[Any]) -> str:
    return ", ".join(f"{value.dtype}{list(value.shape)}" for value in values if value is not None)


def _layout(value: Any) -> Any:
    return (value.strides, value.flags.aligned) if isinstance(value, np.ndarray) else None


def _content(value: Any) -> Any:
    return (value.shape, str(value.dtype), value.tobytes()) if hasattr(value, "tobytes") else value
