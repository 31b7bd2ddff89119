"""Jobs in separate processes: pinned, monitored, and ended if they exceed their time or memory limit."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from deep5.compare import child
from deep5.compare.stages import CHECKS, disagreement
from deep5.core.errors import OutputError, UsageError
from deep5.core.process_tree import resident_bytes
from deep5.core.python_child import read_answer, run_function
from deep5.core.quantities import size
from deep5.measuring.pinning import environment, processors

__all__ = ["NO_SPACE", "Outcome", "check_limits", "run_process"]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, or a quota that is used up."""

_LEAST_MEMORY = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a process.

    Attributes:
        answer: Its result, or None. May be present together with a reason: measurements are kept.
        reason: Why it does not count, or None.
        begin_s: Start time, in seconds since the origin.
        wall_s: Duration.
        memory_bytes: Largest observed resident memory, without that of the checks at the end.
    """

    answer: dict[str, Any] | None
    reason: str | None
    begin_s: float
    wall_s: float
    memory_bytes: int


def check_limits(time_limit_s: float, memory_limit_bytes: int | None) -> int:
    """Reject invalid limits.

    Args:
        time_limit_s: Time limit of one process.
        memory_limit_bytes: Memory limit of one process; None: nine tenths of the memory that is free now.

    Returns:
        The memory limit.

    Raises:
        UsageError: States what is allowed.
    """
    if not 0 < time_limit_s < math.inf:
        raise UsageError(f"a limit of {time_limit_s!r} s; allowed: above 0 s, and finite")
    if memory_limit_bytes is not None and not _LEAST_MEMORY <= memory_limit_bytes < 1 << 63:
        raise UsageError(f"a limit of {memory_limit_bytes!r:.40} bytes; allowed: at least {size(_LEAST_MEMORY)}")
    return memory_limit_bytes or int(0.9 * psutil.virtual_memory().available)


def run_process(
    request: Mapping[str, Any],
    folder: Path,
    *,
    threads: int,
    time_limit_s: float,
    memory_limit_bytes: int,
    origin: float = 0.0,
    pinned: int | None = None,
) -> Outcome:
    """Run one job in a fresh process, and wait for it.

    Args:
        request: The request, in JSON types; `folder` is added.
        folder: Folder of the answer.
        threads: Threads within an operator, for each process.
        time_limit_s: Time limit.
        memory_limit_bytes: Memory limit of the process and its children.
        origin: Origin of the outcome's `begin_s`, as a `perf_counter` value.
        pinned: Number of processors for the process and its children; None: as many as threads.

    Raises:
        OutputError: The process, or this one, found no space on a disk. That says nothing about the job, which
            therefore does not count as failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    more = {"folder": str(folder), "processors": processors(pinned or threads)}
    (folder / "request.json").write_text(json.dumps({**request, **more}))
    memory, most = 0, 0
    begin = perf_counter()
    stages, last, since = dict[str, float](), "the start", begin

    def look(processes: Sequence[psutil.Process]) -> str | None:
        nonlocal memory, most
        used = resident_bytes(processes)
        memory, most = max(memory, 0 if last == CHECKS else used), max(most, used)
        return f"used too much memory, {size(most)}," if most > memory_limit_bytes else None

    def hear(doing: str) -> None:
        nonlocal last, since
        now = perf_counter()
        stages[last] = stages.get(last, 0.0) + now - since
        last, since = doing, now

    ended = run_function(
        child.main, str(folder), time_limit_s=time_limit_s, environment=environment(threads), look=look, hear=hear
    )
    answer = read_answer(ended, folder / "answer.json")
    found, reason = answer.value, None if answer.fault is None else f"it {answer.fault}"
    if most > memory_limit_bytes:
        reason = f"{reason}; allowed: {size(memory_limit_bytes)}; remedy: --memory-limit, or a smaller size"
    elif ended.late:
        reason = f"it {ended.stopped}, in {ended.doing}; remedy: --time-limit, or a smaller size"
    if reason is None:
        try:
            memory = max(memory, int(found["memory_bytes"]))
            reason = found.get("reason") or disagreement(found.get("workloads", []), stages)
            found["reason"] = reason
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found, reason = None, f"its answer cannot be read ({type(error).__name__}: {error})"
    if reason is not None and any(os.strerror(number) in reason for number in NO_SPACE):
        raise OutputError(f"a process found no space on a disk: {reason}; remedy: free some space, then --resume")
    return Outcome(answer=found, reason=reason, begin_s=begin - origin, wall_s=ended.wall_s, memory_bytes=memory)
