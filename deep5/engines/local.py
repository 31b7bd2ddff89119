"""`LocalEngine`: runs on this machine, each in a process that is pinned to separate processors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import Any, ParamSpec, TypeVar

from deep5.core.errors import UsageError
from deep5.engines.attempt import Worker, at_work, free_share
from deep5.engines.claims import check_workers
from deep5.measuring.pinning import processors

__all__ = ["LocalEngine"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class LocalEngine(Executor):
    """Calls functions in threads, each of which has processors that no other thread has.

    The functions start processes and wait for them: threads suffice.

    Args:
        workers: Number of calls at the same time.
        processors_each: Number of processors of each.
        options: None: it has no options.

    Attributes:
        queue_limit_s: How long a call may wait until it starts.

    Raises:
        UsageError: There are too few processors, or options are given.
    """

    queue_limit_s = 600.0

    def __init__(self, workers: int = 1, processors_each: int = 1, options: str = "") -> None:
        if options:
            raise UsageError(f"the engine local:{options:.40}; allowed: local, which has no options")
        check_workers(workers, processors_each)
        self._slots: SimpleQueue[list[int]] = SimpleQueue()
        chosen = processors(workers * processors_each)
        for number in range(workers):
            self._slots.put(chosen[number * processors_each : (number + 1) * processors_each])
        self._memory_bytes = free_share(workers)
        self._cancelled = Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="deep5-run")

    def submit(self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        """See `concurrent.futures.Executor.submit`."""
        return self._pool.submit(self._call, fn, args, kwargs)

    def _call(self, fn: Callable[..., _Result], args: Any, kwargs: Any) -> _Result:
        slot = self._slots.get()
        try:
            with at_work(Worker(processors=slot, memory_bytes=self._memory_bytes, cancelled=self._cancelled)):
                return fn(*args, **kwargs)
        finally:
            self._slots.put(slot)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures.Executor.shutdown`; with `cancel_futures`, calls under way are interrupted, too."""
        if cancel_futures:
            self._cancelled.set()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
