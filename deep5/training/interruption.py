"""`saved_when_interrupted`: a training that a signal interrupts loses no step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deep5.core.errors import OutputError
from deep5.training.checkpointer import Checkpointer

__all__ = ["saved_when_interrupted"]

# The time for the current step to end before the signal takes effect; batch systems kill after some 30 s.
_LIMIT_S = 10.0


@contextmanager
def saved_when_interrupted(keeper: Checkpointer) -> Iterator[None]:
    """Let a training interrupted by SIGINT, SIGTERM or SIGHUP finish its step and write a checkpoint first.

    A second signal ends it immediately, and so does the first if no step ends within 10 s (an evaluation counts as part
    of the step before it). Signals without a Python handler are unchanged, and so are all outside the main thread,
    where Python does not handle signals.

    Args:
        keeper: Writes the checkpoint; must be attached to the training.
    """
    main = threading.main_thread()
    handlers: dict[int, Callable[[int, Any], Any]] = {}
    if threading.current_thread() is main:
        for number in map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                handlers[number] = handler
    requested: list[int] = []
    again = threading.Timer(_LIMIT_S, lambda: signal.pthread_kill(main.ident or 0, requested[0]))
    again.daemon = True

    def end() -> None:
        handlers[requested[0]](requested[0], None)

    def first(number: int, frame: Any) -> None:
        if requested:
            handlers[number](number, frame)
            return
        requested.append(number)
        again.start()
        keeper.interruption = end

    for number in handlers:
        signal.signal(number, first)
    try:
        yield
    except Exception as error:
        # Data-loading processes receive a terminal's signal, too: their failure results from the interruption.
        if requested and not isinstance(error, OutputError):
            end()
        raise
    else:
        if requested:
            end()
    finally:
        again.cancel()
        keeper.interruption = None
        for number, handler in handlers.items():
            signal.signal(number, handler)
