"""What a machine was doing while something was timed on it, and what others took of the processors meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from time import perf_counter, process_time
from typing import Any

__all__ = ["CROWDED", "machine_between", "machine_state", "share_of_others"]

CROWDED = 0.05
"""What others may take of a timed process' processors unsaid; the process that waits for it takes a five hundredth."""


def machine_state() -> dict[str, Any]:
    """What changes on a machine from one process to the next: clock, load, free memory, and who uses the processors.

    Of the processors that this process is pinned to, `busy_s` is the time that anybody has used of them, and that a
    host took from them; `own_s` is this process' own, and that of what it started and waited for; both since some
    moment in the past. `at_s` is when this was read.
    """
    import psutil

    ended = os.times()
    frequency, times = psutil.cpu_freq(), psutil.cpu_times(percpu=True)
    pinned = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    idle = sum(times[number].idle + getattr(times[number], "iowait", 0.0) for number in pinned if number < len(times))
    busy = sum(sum(times[number][:8]) for number in pinned if number < len(times)) - idle
    return {
        "at_s": perf_counter(),
        "busy_s": busy,
        "own_s": process_time() + ended.children_user + ended.children_system,
        "processors": len(pinned),
        "clock_mhz": None if frequency is None else float(frequency.current),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "available_bytes": int(psutil.virtual_memory().available),
    }


def machine_between(before: Mapping[str, Any]) -> dict[str, Any]:
    """The machine before and now, and what others took of this process' processors in between, 0 to 1.

    Args:
        before: As `machine_state` gave it.
    """
    after = machine_state()
    return {"before": dict(before), "after": after, "others_share": share_of_others([(before, after)])}


def share_of_others(spans: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float | None:
    """What others took of the processors over some spans of time, 0 to 1; None where they are too short to tell.

    Args:
        spans: The machine at the beginning and at the end of each, as `machine_state` gave it in the timed process.
    """
    elapsed = free = taken = 0.0
    for before, after in spans:
        passed, busy, own = (after[key] - before[key] for key in ("at_s", "busy_s", "own_s"))
        elapsed += passed
        free += passed * after["processors"]
        taken += busy - own
    # The system counts in ticks of 10 ms: over less than a second that says nothing.
    return None if elapsed < 1 else min(1.0, max(0.0, taken / free))
