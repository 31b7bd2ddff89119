"""`InFlight`: calls of an engine that are under way; a call whose worker is lost is made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from time import monotonic
from typing import Any, Generic, TypeVar

from deep5.core.errors import Deep5Error, RunFailed, described
from deep5.core.progress import unreported
from deep5.engines.call import Function

__all__ = ["InFlight"]

_Name = TypeVar("_Name")

# How often the worker of a call may be lost; interval of looking for calls that wait.
_MOST_LOST, _LOOK_S = 3, 5.0
# How long a call may wait for a worker, unless the engine states it.
_QUEUED_S = 600.0


class InFlight(Generic[_Name]):
    """Calls of a function by an engine, each with a name.

    Args:
        engine: The engine.
        function: What it calls.
        time_limit_s: Time limit of a run.
        left: Where to resume, at the end of an error.
        say: Called now and then with what the engine says about calls that wait to start.
    """

    def __init__(
        self,
        engine: Executor,
        function: Function,
        time_limit_s: float,
        left: str,
        say: Callable[[str], object] = unreported,
    ) -> None:
        self._engine, self._function, self._left, self._say = engine, function, left, say
        self._limit_s = time_limit_s + float(getattr(engine, "queue_limit_s", _QUEUED_S))
        self._running: dict[Future[dict[str, Any]], tuple[_Name, Mapping[str, Any]]] = {}
        self._lost: dict[_Name, int] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def shared(self) -> bool:
        """Whether workers see the folder of the results."""
        return bool(getattr(self._engine, "shared", True))

    def start(self, name: _Name, request: Mapping[str, Any]) -> None:
        """Start a call.

        Args:
            name: Its name.
            request: Its argument, in JSON types.
        """
        self._running[self._engine.submit(self._function, request)] = name, request

    def ended(self) -> list[tuple[_Name, dict[str, Any]]]:
        """Wait for the next calls to end, and return their results by name; those whose workers were lost start again.

        Raises:
            Deep5Error: The one that a call raised.
            RunFailed: A call was lost too often, or none ended in time.
        """
        end = monotonic() + self._limit_s
        while not (done := wait(self._running, _LOOK_S, return_when=FIRST_COMPLETED).done):
            if monotonic() > end:
                raise RunFailed(
                    f"the engine returned no run within {self._limit_s:g} s; {self._left}; remedy: start its workers, "
                    "then the same command with --resume"
                )
            if queued := str(getattr(self._engine, "queued", "")):
                self._say(queued)
        results = []
        for future in done:
            name, request = self._running.pop(future)
            try:
                results.append((name, future.result()))
            except Deep5Error:
                raise
            except OSError as error:
                if not isinstance(error, ConnectionError):  # of a disk, and another worker has no other
                    raise
                self._again(name, request, error)
            except Exception as error:  # the worker was lost with the run, which another one carries out
                self._again(name, request, error)
        return results

    def _again(self, name: _Name, request: Mapping[str, Any], error: Exception) -> None:
        """Make a call again, unless its worker has been lost too often."""
        self._lost[name] = self._lost.get(name, 0) + 1
        if self._lost[name] == _MOST_LOST:
            raise RunFailed(
                f"the run {name} was lost {_MOST_LOST} times, the last time because {described(error)}; {self._left}"
            ) from error
        self.start(name, request)
