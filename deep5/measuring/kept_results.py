"""`reuses_results`: whether a timed call returns what an earlier call with the same inputs computed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from deep5.measuring.loops import Work, time_loop

__all__ = ["reuses_results"]

_REPEATS, _LONG_S = 5, 0.05
# New inputs are in the processor's caches, since they were just written, and the rest of a call is the same. To look a
# result up by its inputs' values costs less than to compute it, except for the smallest work.
_TIMES, _LEAST_S = 3.0, 2e-5


def reuses_results(renewed: Callable[[int], Work]) -> str | None:
    """Detect whether a call with the inputs of an earlier one returns a kept result, which takes less time.

    A sign must appear three times in a row, because another program may preempt this process.

    Args:
        renewed: Returns the work with inputs of new values, by number.

    Returns:
        A description of the sign, or None.
    """
    found, number = None, 0
    for _ in range(3):
        new, again = list[float](), list[float]()
        while len(new) < _REPEATS and not (new and new[-1] > _LONG_S):
            work, number = renewed(number), number + 1
            new.append(time_loop(work, 1))
            again.append(min(time_loop(work, 1) for _ in range(2)))
        slow, fast = median(new), median(again)
        if slow <= _TIMES * fast + _LEAST_S:
            return None
        found = f"a call with new inputs takes {slow:.3g} s, and {fast:.3g} s with the same inputs again"
    return found
