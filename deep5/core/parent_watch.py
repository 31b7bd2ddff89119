"""A process that ends with the one that started it; nothing is imported for it, so that it is the first thing done."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, *, by: signal.Signals = signal.SIGKILL) -> None:
    """End with the process that started this one: an endless loop must not outlive who waits for it.

    Args:
        parent: Its number, where it may have ended before this call: then this process ends at once.
        by: What ends this process; another than SIGKILL for one that has something to put away, and does.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
