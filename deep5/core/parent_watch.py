"""Ends a process together with its parent; imports almost nothing, so that it can run first."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, *, by: signal.Signals = signal.SIGKILL) -> None:
    """End this process when its parent ends, so that an endless loop does not outlive the parent.

    Args:
        parent: Process ID of the parent, if it may already have ended; this process then ends immediately.
        by: The signal that ends this process; other than SIGKILL for a process that has to clean up.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
