"""A time limit that the caller sets on what runs inside it.

How long a loop of a network runs may depend on numbers that are fed or computed, so a network may run without end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from deep5.core.errors import RunFailed, UsageError, brief

__all__ = [
    "MOST_ITERATIONS",
    "TimeLimit",
    "check_count",
    "check_iterations",
    "check_length",
    "current_limit",
    "time_limit",
    "too_many",
]

MOST_ITERATIONS = 1 << 24
"""The most iterations that a loop runs without a time limit: in Python they take a minute or more."""

# A loop looks at the clock each time that it has run this many iterations.
_BETWEEN = 64


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """A limit that is in force.

    Attributes:
        seconds: As the caller gave it.
        end: When it ends, on the clock of `time.monotonic`.
    """

    seconds: float
    end: float

    def remaining_s(self) -> float:
        """The seconds that are left; 0 if the limit has passed."""
        return max(0.0, self.end - time.monotonic())

    def exceeded(self, what: str) -> RunFailed:
        """The error of a run that the limit ends; `what` is what was running."""
        return RunFailed(
            f"{what} was stopped by its time limit of {self.seconds:g} s; allowed: what ends within it; remedy: "
            "fewer iterations, or a longer d5.time_limit(seconds)"
        )


_CURRENT: ContextVar[TimeLimit | None] = ContextVar("deep5_time_limit", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of the loops of the networks that run in a `with` block.

    Loops check the limit between iterations, and ONNX Runtime between nodes; a single operator is not interrupted.
    OpenVINO cannot be stopped, so it refuses a network with a Loop in such a block.
    Without a limit, a loop runs at most 2**24 iterations. Of two nested limits, the one that ends first applies.

    >>> import deep5 as d5
    >>> with d5.time_limit(10):
    ...     pass  # executor.inference(batch)

    Args:
        seconds: Seconds from now, above 0; infinity for no limit, also on the number of iterations.

    Raises:
        UsageError: `seconds` is not a number above 0.
        RunFailed: In the block: a loop was stopped.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise UsageError(f"time_limit: got {brief(seconds)}; allowed: seconds above 0; remedy: d5.time_limit(60)")
    outer, mine = _CURRENT.get(), TimeLimit(seconds=seconds, end=time.monotonic() + seconds)
    token = _CURRENT.set(mine if outer is None or mine.end < outer.end else outer)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_limit() -> TimeLimit | None:
    """The limit in force, if there is one."""
    return _CURRENT.get()


def check_iterations(step: int, limit: TimeLimit | None, what: str) -> None:
    """Check before an iteration of a loop whether it may run.

    Args:
        step: The iterations so far.
        limit: The limit that was in force when the loop began.
        what: What is running, in words.

    Raises:
        RunFailed: The limit has passed, or without one the loop has run too many iterations.
    """
    if limit is None:
        if step >= MOST_ITERATIONS:
            raise RunFailed(f"{what}: {too_many(step + 1)}")
    elif not step % _BETWEEN and time.monotonic() > limit.end:
        raise limit.exceeded(what)


def check_count(count: int, limit: TimeLimit | None, what: str) -> None:
    """Check before a loop that nothing but its count ends, and that looks at the time limit.

    Raises:
        RunFailed: There are too many iterations, and there is no limit.
    """
    if limit is None and count > MOST_ITERATIONS:
        raise RunFailed(f"{what}: {too_many(count)}")


def check_length(count: int, what: str) -> None:
    """Check the iterations of a loop that nothing can stop, such as a compiled one or a Scan; time limit or not.

    Raises:
        RunFailed: There are too many.
    """
    if count > MOST_ITERATIONS:
        raise RunFailed(
            f"{what}: {count:,} iterations; allowed: at most {MOST_ITERATIONS:,}; remedy: fewer, or a Loop on the "
            "framework 'reference' or 'pytorch' with d5.time_limit(seconds)"
        )


def too_many(count: int) -> str:
    """Why a loop of this many iterations does not run without a time limit."""
    return (
        f"{count:,} iterations of a loop; allowed: at most {MOST_ITERATIONS:,} without a time limit; remedy: with "
        "d5.time_limit(seconds), around what makes and runs the network"
    )
