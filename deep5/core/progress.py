"""Progress of what takes longer than five seconds: count and time left, in a bar or in one line per minute.

`Steps` counts and says it to whoever listens; `Reporter` prints it on standard error. Both act between steps, without a
thread, so that nothing runs in parallel with a timed process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Any, Self

from deep5.core.quantities import duration
from deep5.core.terminal import plain, styled_where_fit

__all__ = ["ProgressLine", "Reporter", "Steps", "Tell", "is_silenced", "silenced", "unreported", "waiting"]

Tell = Callable[[str], object]
"""Called with a line."""

FIRST_S, AGAIN_S = 5.0, 60.0
"""Seconds until the first progress is shown, and between two lines where there is no terminal."""

_SILENCED = ContextVar("silenced", default=False)
# Minimum time between two drawings of a bar.
_REDRAW_S = 0.1


class ProgressLine(str):
    """A line with a count, as `Steps` says it.

    Attributes:
        what: The current step.
        done: Number of finished steps.
        total: Number of all steps, or None if it is not known.
        left: The time left in words, or ''.
    """

    __slots__ = ("done", "left", "total", "what")

    what: str
    done: int
    total: int | None
    left: str


def unreported(line: str) -> None:
    """Discard a line: for callers that nothing listens to."""


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """Inside the context, reporters print nothing: what `--quiet` requests."""
    token = _SILENCED.set(quiet or _SILENCED.get())
    try:
        yield
    finally:
        _SILENCED.reset(token)


def is_silenced() -> bool:
    """Whether progress is to be omitted."""
    return _SILENCED.get()


class Steps:
    """A known number of steps, which are counted and timed.

    Args:
        total: Number of steps; may change while they run.
        tell: Called with a `ProgressLine` before each step.
        shown: How an amount is written; None: as a number.
        at_most: Whether the steps may end early, so that the time left is an upper bound.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        total: int,
        tell: Tell,
        *,
        shown: Callable[[int], str] = str,
        at_most: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.total, self.done = total, 0
        self._tell, self._shown, self._bound, self._clock = tell, shown, "at most" if at_most else "about", clock
        self._begin = clock()

    def say(self, what: str) -> None:
        """Say which step begins, after how many of how many, and the time left if a step is finished."""
        left = "" if (left_s := self.left_s()) is None else f"{self._bound} {duration(left_s)} left"
        count = f"{self._shown(self.done)} of {self._shown(self.total)}"
        self._tell(_line(what, f"{count}, {left}" if left else count, self.done, self.total, left))

    def advance(self, steps: int = 1) -> None:
        """Count finished steps."""
        self.done += steps

    def left_s(self) -> float | None:
        """Seconds left at the mean time of the finished steps; None before the first is finished."""
        if self.done == 0:
            return None
        return (self._clock() - self._begin) / self.done * max(self.total - self.done, 0)


@contextmanager
def waiting(what: str, limit_s: float, *, clock: Callable[[], float] = monotonic) -> Iterator[Callable[[object], None]]:
    """Report a wait of unknown length, at most `limit_s` seconds; yields the function to call again and again.

    Args:
        what: What is waited for.
        limit_s: The time limit.
        clock: Seconds, for tests.
    """
    begin = clock()
    with Reporter(clock=clock) as tell:

        def look(_: object) -> None:
            waited_s = clock() - begin
            left = f"at most {duration(limit_s - waited_s)} left"
            tell(_line(what, f"{duration(waited_s)} so far, {left}", int(waited_s), None, left))

        yield look


def _line(what: str, count: str, done: int, total: int | None, left: str) -> ProgressLine:
    line = ProgressLine(f"{what} ({count})")
    line.what, line.done, line.total, line.left = what, done, total, left
    return line


class Reporter:
    """Prints lines on standard error: a bar on a terminal, otherwise at most one progress line per minute.

    A line without a count is printed at once. Progress appears after five seconds. A context manager, which removes the
    bar.

    Args:
        quiet: Print nothing.
        clock: Seconds, for tests.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._quiet = quiet or is_silenced()
        self._clock, self._due = clock, clock() + FIRST_S
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, line: str) -> None:
        """Print a line, or draw the bar."""
        if self._quiet:
            return
        if not isinstance(line, ProgressLine):
            self._print(line)
        elif self._clock() >= self._due:
            if _is_terminal():
                self._draw(line)
                self._due = self._clock() + _REDRAW_S
            else:
                self._print(line)
                self._due = self._clock() + AGAIN_S

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(plain(line), markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stderr.write(f"{plain(line)}\n")
            sys.stderr.flush()

    def _draw(self, line: ProgressLine) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            console = styled_where_fit(Console(file=sys.stderr))
            # No thread: it would run in parallel with timed processes.
            self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task(plain(line), total=line.total, completed=line.done)
            self._bar.start()
        self._bar.update(self._task, completed=line.done, total=line.total, description=plain(line), refresh=True)


def _is_terminal() -> bool:
    import os

    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
