"""State of the machine during a measurement, and the share of processor time that other processes used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from time import perf_counter, process_time
from typing import Any

__all__ = ["CROWDED", "machine_between", "machine_state", "share_of_others"]

CROWDED = 0.05
"""Share of a timed process' processor time that others may use without a warning; the waiting parent uses 0.2 %."""


def machine_state() -> dict[str, Any]:
    """State that changes between processes: clock, load, free memory, and use of the processors.

    For the processors that this process is pinned to, `busy_s` is the total time used by all processes or stolen by the
    host; `own_s` is the time of this process and of its finished children. Both count from an arbitrary past moment.
    `at_s` is the time of the reading.
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
    """Machine state before and now, and the share of this process' processors that others used in between, 0 to 1.

    Args:
        before: Result of `machine_state`.
    """
    after = machine_state()
    return {"before": dict(before), "after": after, "others_share": share_of_others([(before, after)])}


def share_of_others(spans: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float | None:
    """Share of processor time that others used over several intervals, 0 to 1; None if the intervals are too short.

    Args:
        spans: Machine state at the beginning and end of each, from `machine_state` in the timed process.
    """
    elapsed = free = taken = 0.0
    for before, after in spans:
        passed, busy, own = (after[key] - before[key] for key in ("at_s", "busy_s", "own_s"))
        elapsed += passed
        free += passed * after["processors"]
        taken += busy - own
    # The system counts in ticks of 10 ms, which is too coarse for less than a second.
    return None if elapsed < 1 else min(1.0, max(0.0, taken / free))
