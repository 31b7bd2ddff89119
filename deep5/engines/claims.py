"""`claimed`: processors that no other attempt on this machine has, whatever process carries it out."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep

from deep5.core.compiler import cache_folder
from deep5.core.errors import UsageError
from deep5.core.terminal import counted
from deep5.measuring.pinning import processors

__all__ = ["check_workers", "claimed"]

_POLL_S = 0.2


def check_workers(workers: int, processors_each: int) -> None:
    """Reject more workers on this machine than this process has processors for.

    Args:
        workers: Number of workers.
        processors_each: Number of processors of each.

    Raises:
        UsageError: States how many are allowed.
    """
    here = len(processors(1 << 20))
    if workers < 1 or workers * processors_each > here:
        raise UsageError(
            f"{counted(workers, 'worker')} with {counted(processors_each, 'processor')} each; allowed: {here} in all, "
            f"those of this process; remedy: --workers {max(1, here // processors_each)}"
        )


@contextmanager
def claimed(count: int, limit_s: float, meanwhile: Callable[[], object] = bool) -> Iterator[list[int]]:
    """Claim processors of this process; the end of the process, however it ends, also releases them.

    A claim is a lock on a file per processor in deep5's cache, which all processes of one user on a machine share, and
    machines may share.

    Args:
        count: Number of processors.
        limit_s: How long to wait for others to release theirs.
        meanwhile: Called repeatedly while it waits.

    Raises:
        UsageError: This process has fewer processors, or others did not release theirs in time.
    """
    here = processors(1 << 20)
    if count > len(here):
        raise UsageError(f"a run on {count} processors; allowed: at most {len(here)}, those of this process")
    folder = cache_folder() / "processors" / platform.node()
    folder.mkdir(parents=True, exist_ok=True)
    end = monotonic() + limit_s
    while True:
        with ExitStack() as held:
            found: list[int] = []
            for number in reversed(here):  # the first ones usually serve interrupts
                if len(found) < count and _claim(f"{folder}/{number}", held):
                    found.append(number)
            if len(found) == count:
                yield sorted(found)
                return
        if monotonic() > end:
            raise UsageError(
                f"other runs kept the processors {', '.join(map(str, here))} for {limit_s:g} s; allowed: {count} free "
                "ones; remedy: fewer workers, or wait"
            )
        meanwhile()
        sleep(_POLL_S)


def _claim(path: str, held: ExitStack) -> bool:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return False
    held.callback(os.close, handle)
    return True
