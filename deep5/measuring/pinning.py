"""Resources of a timed process: the processors that it is pinned to, and its environment."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment", "processors"]

# By default, OpenBLAS' threads spin for 30 ms before they sleep, which is work that continues after the end of a call;
# 2**22 cycles exceed the gap between two calls. OpenMP's threads wait as in normal use: passive waiting
# (OMP_WAIT_POLICY=PASSIVE) made PyTorch's LeNet 1.6 times as slow, which is not how users run it. Each process has its
# processors to itself. The result records the settings in effect.
_WAITING = {"OPENBLAS_THREAD_TIMEOUT": "22"}


def processors(threads: int) -> list[int]:
    """The processors that a candidate is pinned to: one per thread, on different cores if the topology is known.

    Args:
        threads: Number of threads; if there are fewer processors, all are returned.
    """
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    seen: set[str] = set()
    first: list[int] = []
    rest: list[int] = []
    for number in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        core = siblings.read_text().strip() if siblings.exists() else str(number)
        (rest if core in seen else first).append(number)
        seen.add(core)
    # Start with the last processors: the first ones usually serve interrupts.
    return sorted((first[::-1] + rest[::-1])[:threads])


def environment(threads: int) -> dict[str, str]:
    """The environment of a timed process: this process' environment plus the number of threads and their wait policy.

    Args:
        threads: Threads within an operator.
    """
    return {**_WAITING, **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"}
