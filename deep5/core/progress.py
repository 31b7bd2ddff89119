"""Progress of what takes longer than five seconds: count and time left, in a bar or in one line per minute.

`Steps` counts and says it to whoever listens; `Reporter` prints it on standard error. Both act between steps, without a
thread, so that nothing runs in parallel with a timed process. `counting` and `tracked` combine them. Only `Ongoing` has
a thread: it reports one call of unknown length without steps, such as a first step, and ends before any later timing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from deep5.core.quantities import duration
from deep5.core.terminal import console_of, plain, styled_where_fit

__all__ = [
    "Ongoing",
    "ProgressLine",
    "Reporter",
    "Steps",
    "Tell",
    "counting",
    "is_silenced",
    "silenced",
    "spent",
    "tracked",
    "unreported",
    "waiting",
]

_Item = TypeVar("_Item")

Tell = Callable[[str], object]
"""Called with a line."""

FIRST_S, AGAIN_S = 5.0, 60.0
"""Seconds until the first progress is shown, and between two lines where there is no terminal."""

_SILENCED = ContextVar("silenced", default=False)
# Minimum time between two drawings of a bar, and of one by a thread.
_REDRAW_S, _LOOK_S = 0.1, 1.0
# How long the end of a report waits for its thread, which a terminal may have stopped.
_PATIENCE_S = 1.0
# The open reporters, the innermost last: two bars at once would overwrite each other.
_OPEN: list[Reporter] = []


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


@contextmanager
def counting(
    what: str, total: int, *, shown: Callable[[int], str] = str, clock: Callable[[], float] = monotonic
) -> Iterator[Callable[[int], None]]:
    """Report steps of this process, a known number; yields the function to call with the number of finished ones.

    Several threads may call it.

    Args:
        what: What the steps do, such as "reading files".
        total: Number of steps, or an amount such as bytes.
        shown: How an amount is written.
        clock: Seconds, for tests.
    """
    with Reporter(clock=clock) as tell:
        steps, lock = Steps(total, tell, shown=shown, clock=clock), threading.Lock()

        def advance(count: int) -> None:
            with lock:
                steps.advance(count)
                if tell.due_s() <= 0:  # formatting takes longer than small steps
                    steps.say(what)

        yield advance


def tracked(
    items: Iterable[_Item], what: str, total: int, *, clock: Callable[[], float] = monotonic
) -> Iterator[_Item]:
    """The items, one after the other, with a report of those that are done.

    Args:
        items: What to go through.
        what: What is done with them, such as "reading files".
        total: Their number.
        clock: Seconds, for tests.
    """
    with counting(what, total, clock=clock) as advance:
        for item in items:
            yield item
            advance(1)


class Ongoing:
    """Reports one call that has no steps, such as a compilation, with the seconds so far; a context manager.

    A thread writes, which sleeps for five seconds first, then for a second on a terminal and for a minute elsewhere. It
    must be ended before anything is timed but the call itself.

    Args:
        what: What is done.
    """

    def __init__(self, what: str) -> None:
        self._what, self._ended = what, threading.Event()
        self._thread: threading.Thread | None = None
        self._reporter = Reporter()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self) -> None:
        """Begin to report."""
        if self._reporter.quiet:
            return
        self._reporter.__enter__()
        self._thread = threading.Thread(target=self._report, name="deep5-progress", daemon=True)
        # Without it where the system allows no more threads.
        with suppress(RuntimeError):
            self._thread.start()

    def end(self) -> None:
        """End the thread, and remove what it shows."""
        if self._thread is not None:
            self._ended.set()
            with suppress(RuntimeError):  # it could not be started
                self._thread.join(_PATIENCE_S)
            self._thread = None
            self._reporter.close()

    def _report(self) -> None:
        begin = monotonic()
        while not self._ended.wait(max(self._reporter.due_s(), _LOOK_S if self._reporter.shows_bar else 0.0)):
            self._reporter(spent(self._what, monotonic() - begin))


def spent(what: str, seconds: float, more: str = "") -> ProgressLine:
    """The line of a wait without a limit.

    Args:
        what: What is waited for.
        seconds: How long so far.
        more: What else is known, such as a count.
    """
    so_far = f"{duration(seconds)} so far"
    return _line(what, f"{more}, {so_far}" if more else so_far, int(seconds), None, "")


def _line(what: str, count: str, done: int, total: int | None, left: str) -> ProgressLine:
    line = ProgressLine(f"{what} ({count})")
    line.what, line.done, line.total, line.left = what, done, total, left
    return line


class Reporter:
    """Prints lines on standard error: a bar on a terminal, otherwise at most one progress line per minute.

    A line without a count is printed at once. Progress appears after five seconds. A context manager, which removes the
    bar. A reporter within another replaces its bar, and is not interrupted by it.

    Args:
        quiet: Print nothing.
        clock: Seconds, for tests.

    Attributes:
        quiet: Whether nothing is printed.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self.quiet = quiet or is_silenced()
        self._clock, self._due = clock, clock() + FIRST_S
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        _OPEN.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def shows_bar(self) -> bool:
        """Whether a bar is shown now."""
        return self._bar is not None

    def due_s(self) -> float:
        """Seconds until progress is printed again; infinite if nothing ever is."""
        return float("inf") if self.quiet else max(self._due - self._clock(), 0.0)

    def __call__(self, line: str) -> None:
        """Print a line, or draw the bar."""
        if self.quiet:
            return
        if not isinstance(line, ProgressLine):
            self._print(line)
        elif self.due_s() <= 0:
            if _is_terminal():
                if self._is_covered():
                    self._due = self._clock() + _LOOK_S
                    return
                self._draw(line)
                self._due = self._clock() + _REDRAW_S
            else:
                self._print(line)
                self._due = self._clock() + AGAIN_S

    def _is_covered(self) -> bool:
        """Whether a reporter within this one shows its bar."""
        return self in _OPEN and any(inner.shows_bar for inner in _OPEN[_OPEN.index(self) + 1 :])

    def close(self) -> None:
        """Remove the bar."""
        if self in _OPEN:
            _OPEN.remove(self)
        self._hide()

    def _hide(self) -> None:
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
            for other in _OPEN:
                other._hide()
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            console = styled_where_fit(console_of(sys.stderr))
            # No thread: it would run in parallel with timed processes.
            self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task(plain(line), total=line.total, completed=line.done)
            self._bar.start()
        self._bar.update(self._task, completed=line.done, total=line.total, description=plain(line), refresh=True)


def _is_terminal() -> bool:
    import os

    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
