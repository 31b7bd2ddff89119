"""Ranks that do not answer: what their processes do, as far as the process that watches them can see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic

import psutil

__all__ = ["StoppedRanks", "state_of"]

_LOOK_S = 0.5
# A stopped rank is named within the limit for which others wait for it, before they report only that they waited.
_PART = 0.9
_STATES = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped by a debugger",
    psutil.STATUS_DISK_SLEEP: "in uninterruptible sleep, which mostly waits for a disk",
    psutil.STATUS_RUNNING: "running",
    psutil.STATUS_SLEEPING: "sleeping",
    psutil.STATUS_IDLE: "sleeping",
}


def state_of(process: int) -> str:
    """The state of a process in words that follow "is"."""
    with suppress(psutil.Error):
        return _STATES.get(psutil.Process(process).status(), "ending")
    return "gone"


class StoppedRanks:
    """Observes how long ranks have been stopped (by SIGSTOP, for example), without a break."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._next = 0.0

    def look(self, processes: Mapping[int, Iterable[int]], limit_s: float) -> dict[int, float]:
        """The seconds for which ranks have been stopped, if one of them has been for almost the limit; otherwise empty.

        Args:
            processes: The processes that a rank needs to continue, by rank.
            limit_s: How long other ranks wait for one.
        """
        now = monotonic()
        if now >= self._next:
            self._next = now + _LOOK_S
            stopped = {
                rank for rank, those in processes.items() if any(state_of(each).startswith("stopped") for each in those)
            }
            self._since = {rank: self._since.get(rank, now) for rank in stopped}
        seconds = {rank: now - since for rank, since in self._since.items()}
        return seconds if max(seconds.values(), default=0.0) >= _PART * limit_s else {}
