"""What a timed process gets: the processors that it is pinned to, and its environment."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment", "processors"]

# OpenBLAS' threads look for work for 30 ms before they sleep, which is work that goes on behind a call's end; 2**22
# cycles are more than lies between two calls. OpenMP's wait as they do for users: asleep at once (OMP_WAIT_POLICY=
# PASSIVE), they made PyTorch's LeNet 1.6 times as slow, which is nobody's PyTorch. Each process is alone on its
# processors. What is in force stands in the result.
_WAITING = {"OPENBLAS_THREAD_TIMEOUT": "22"}


def processors(threads: int) -> list[int]:
    """The processors that a candidate is pinned to: as many as it has threads, of different cores where they are told.

    Args:
        threads: Where there are fewer processors, all of them are given.
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
    # From the last on: interrupts are mostly served by the first.
    return sorted((first[::-1] + rest[::-1])[:threads])


def environment(threads: int) -> dict[str, str]:
    """The environment of a timed process: this one's, with the number of threads and how they wait for work.

    Args:
        threads: Within an operator.
    """
    return {**_WAITING, **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"}
