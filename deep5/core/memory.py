"""The memory that this process has taken, and what it can still get."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["available_bytes", "most_array_bytes", "peak_bytes"]

# Where the system does not say: more than any single machine has.
_UNKNOWN = 1 << 40
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
# The limit of a container and what it holds, of both versions of control groups.
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def available_bytes() -> int:
    """The bytes that the machine and the container of this process have left, swap included; 1 TiB if unknown."""
    left = _UNKNOWN
    try:
        rows = (line.split() for line in _MEMINFO.read_text().splitlines())
        kib = {row[0]: int(row[1]) for row in rows}
        left = min(left, (kib["MemAvailable:"] + kib["SwapFree:"]) << 10)
    except (OSError, LookupError, ValueError):
        pass
    for most, held in _GROUPS:
        try:
            left = min(left, max(0, int(most.read_text()) - int(held.read_text())))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return left


def most_array_bytes() -> int:
    """The most bytes that one array may take: three quarters of what is left, as what it is made from takes some."""
    return available_bytes() // 4 * 3


def peak_bytes() -> int:
    """The largest resident memory of this program so far."""
    # On Linux, getrusage's peak survives exec: a small program started by a large one would report the large one's.
    if _STATUS.is_file():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
