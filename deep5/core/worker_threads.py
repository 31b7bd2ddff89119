"""Settings that a library applies thread by thread: every thread that runs a framework begins with them."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["at_start", "begin"]

_calls: list[Callable[[], object]] = []


def at_start(call: Callable[[], object]) -> None:
    """Make this call now, and at the start of every later thread that runs a framework.

    Args:
        call: Applies the settings of the process to the calling thread; calls that compare equal are made once.
    """
    if call not in _calls:
        _calls.append(call)
    # A thread may have begun before another one loaded the library.
    call()


def begin() -> None:
    """Make the calls of `at_start`: the first thing that a thread does before it runs a framework.

    For example as the `initializer` of a thread pool.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import threading
    >>> at_start(threading.get_ident)
    >>> with ThreadPoolExecutor(1, initializer=begin) as pool:
    ...     pool.submit(len, "work").result()
    4
    """
    for call in _calls:
        call()
