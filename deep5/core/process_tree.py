"""The processes below a process: find them, measure their memory, and end them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

__all__ = ["ancestors", "descendants", "end_processes", "is_alive", "kill_processes", "resident_bytes"]

_LOOK_S = 0.025


def descendants(process: int | psutil.Process) -> list[psutil.Process]:
    """All processes below a process; none if it is gone.

    Args:
        process: The process or its ID.
    """
    import psutil

    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def ancestors(process: psutil.Process) -> list[psutil.Process]:
    """All processes above a process; none if it is gone."""
    import psutil

    try:
        return list(process.parents())
    except psutil.Error:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is alive; a zombie is not (containers without an init process keep them)."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def resident_bytes(processes: Iterable[psutil.Process]) -> int:
    """Resident memory of all processes together; ended processes are ignored."""
    import psutil

    total = 0
    for each in processes:
        with suppress(psutil.Error):
            total += int(each.memory_info().rss)
    return total


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; ended processes are ignored."""
    import psutil

    for each in processes:
        with suppress(psutil.Error):
            each.kill()


def end_processes(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Wait until all processes have ended by themselves, and kill those that have not after `grace_s` seconds."""
    left, deadline = set(processes), monotonic() + grace_s
    while (left := {each for each in left if is_alive(each)}) and monotonic() < deadline:
        sleep(_LOOK_S)
    if left:
        kill_processes(left)
