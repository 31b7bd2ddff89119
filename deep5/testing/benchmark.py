"""The fixture `deep5_benchmark`: a function timed by deep5's rules, with all raw samples stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deep5.core.errors import OutputError, UsageError
from deep5.testing.timed import Timed, time_function

__all__ = ["Benchmark", "Session"]

__tracebackhide__ = True  # pytest shows the line of the test in place of the lines of this module


@dataclass(kw_only=True)
class Session:
    """The benchmarks of one run of pytest.

    Attributes:
        storage: The folder of the option --deep5-storage, resolved.
        timed: The times, in order.
        disabled: Why functions were only called; empty if they were timed.
        stored: The file that was written, or None.
        fault: Why no file was written; empty if it was.
        before: The earlier samples that the times are compared with, by full name.
        before_file: The file of those; None without one.
    """

    storage: Path
    timed: list[Timed] = field(default_factory=list)
    disabled: str = ""
    stored: Path | None = None
    fault: str = ""
    before: dict[str, list[float]] = field(default_factory=dict)
    before_file: Path | None = None

    def store(self) -> None:
        """Store all times in one file, and read the last file that was stored before; does nothing without times."""
        if not self.timed:
            return
        from deep5.testing.storage import earlier, store

        self.before_file, self.before = earlier(self.storage)
        try:
            self.stored = store(self.storage, self.timed)
        except (OutputError, UsageError) as error:
            self.fault = str(error)

    def summary(self) -> Iterator[str]:
        """Lines for pytest's terminal: median and interval of every benchmark, and the change since the last run."""
        from deep5.testing.storage import change_of, shown

        if self.timed:
            yield ""
            width = max(len(timed.name) for timed in self.timed)
            yield "deep5 benchmarks: median and interval (95 %) of a call"
        for timed in self.timed:
            change = change_of(timed.samples_s, self.before.get(timed.fullname, []))
            yield f"  {timed.name:<{width}}  {shown(timed)}{f'; {change}' if change else ''}"
        if self.before_file is not None and self.timed:
            yield f"  compared with {self.before_file}"
        if self.stored is not None:
            yield f"  stored in {self.stored}"
        if self.fault:
            yield f"  not stored: {self.fault}"
        if self.disabled:
            yield f"deep5 benchmarks: called once and not timed, because of {self.disabled}"


class Benchmark:
    """The fixture `deep5_benchmark` of one test.

    Args:
        session: Where the times are collected.
        name: Name of the test.
        fullname: Its name with its file.
        disabled: Why the function is only called; empty: it is timed.
    """

    def __init__(self, session: Session, name: str, fullname: str, *, disabled: str = "") -> None:
        self._session, self._name, self._fullname, self._disabled = session, name, fullname, disabled
        self.timed: Timed | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Time `function(*arguments, **keywords)`, which is called many times, and return its last result.

        Args:
            function: The function.
            arguments: Its arguments.
            keywords: Its keyword arguments.

        Raises:
            UsageError: It is not a function, or the test has timed another one.
        """
        if not callable(function):
            raise UsageError(f"got {function!r:.80}; allowed: deep5_benchmark(function, *arguments)")
        if self.timed is not None:
            raise UsageError("deep5_benchmark is called twice in one test; allowed: once; remedy: a second test")
        if self._disabled:
            self._session.disabled = self._disabled
            return function(*arguments, **keywords)
        result, self.timed = time_function(lambda: function(*arguments, **keywords), self._name, self._fullname)
        self._session.timed.append(self.timed)
        return result
