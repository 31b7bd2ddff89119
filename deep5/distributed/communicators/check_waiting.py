"""Checks of time: waits for other ranks, how they are counted, and time limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import CommunicationError
from deep5.distributed.communicators.check_parts import (
    ENOUGH_S,
    counted_as,
    run_collective,
)

__all__ = ["check_barrier", "check_hidden", "check_late", "check_mismatches"]

# Time limit of a call that must time out, and the slack on a machine with more ranks than processors.
_SHORT_S, _SLACK_S = 0.25, 5.0


def check_barrier(communicator: Communicator) -> None:
    """Check that no rank leaves a barrier before the last one arrives, and that the wait is counted.

    Raises:
        CommunicationError: A rank leaves too early, or `waited_ns` is wrong.
    """
    late_s, last = 0.2, communicator.rank == communicator.size - 1
    for started in (False, True):
        communicator.barrier(timeout_s=ENOUGH_S)
        if last:
            sleep(late_s)
        begin, before_ns = monotonic(), communicator.waited_ns
        with counted_as(communicator, "barrier", 0):
            run_collective(communicator, "barrier", started)
        took_s, waited_s = monotonic() - begin, (communicator.waited_ns - before_ns) / 1e9
        # Half, because the ranks' offsets when they left the previous barrier are unknown.
        if not last and took_s < late_s / 2:
            raise CommunicationError(f"barrier: over in {took_s:.3f} s, before rank {communicator.size - 1} had come")
        if not last and not late_s / 2 < waited_s <= took_s:
            raise CommunicationError(f"waited_ns: {waited_s:.3f} s more after a barrier of {took_s:.3f} s")


def check_hidden(communicator: Communicator) -> None:
    """A started operation ends when the last rank arrives, not when the caller waits for it."""
    late_s, busy_s = 0.15, 0.6
    part = communicator.split(0)
    counts, last = part.count_hidden(), part.rank == part.size - 1
    part.barrier(timeout_s=ENOUGH_S)
    if last:
        sleep(late_s)
    request = part.barrier_start()
    sleep(busy_s)
    before_ns, waited_ns = part.hidden_ns, part.waited_ns
    request.wait(ENOUGH_S)
    hidden_s, waited_s = (part.hidden_ns - before_ns) / 1e9, (part.waited_ns - waited_ns) / 1e9
    # A third, because the ranks' offsets when they left the previous barrier are unknown. A communicator that detects
    # the end only in the wait counts all of `busy_s`.
    low_s, high_s = ((0.0 if last else late_s / 3), 0.95 * busy_s) if counts else (0.0, 0.0)
    if not low_s <= hidden_s <= high_s:
        raise CommunicationError(
            f"hidden_ns: {hidden_s:.3f} s more on rank {part.rank} after {busy_s:g} s in which a started barrier "
            f"waited {late_s:g} s for rank {part.size - 1}, and {waited_s:.3f} s of waiting"
        )
    part.barrier(timeout_s=ENOUGH_S)
    part.close()


def check_late(communicator: Communicator) -> None:
    """A wait for a rank that does not arrive times out with an error."""
    last = communicator.size - 1
    late = communicator.rank == last
    waits: dict[str, Callable[[Communicator], Any]] = {
        "barrier": lambda part: part.barrier(timeout_s=_SHORT_S),
        "all_reduce": lambda part: part.all_reduce(np.ones(3), timeout_s=_SHORT_S),
        "all_reduce_start": lambda part: part.all_reduce_start(np.ones(3)).wait(_SHORT_S),
        "receive": lambda part: part.receive(np.ones(3), last, timeout_s=_SHORT_S),
        "receive_start": lambda part: part.receive_start(np.ones(3), last).wait(_SHORT_S),
    }
    for name, wait in waits.items():
        # A separate communicator each: it may be unusable afterwards.
        part = communicator.split(0)
        if not late:
            _fails(part, f"{name} while rank {last} does not come", wait)
        communicator.barrier(timeout_s=ENOUGH_S)
        if late and not name.startswith("receive"):
            # The late rank arrives, so that no operation stays open; whether that helps depends on the library.
            with suppress(CommunicationError):
                wait(part)
        communicator.barrier(timeout_s=ENOUGH_S)
        part.close()


def check_mismatches(communicator: Communicator) -> None:
    """Check that ranks that call different collectives get an error.

    Raises:
        CommunicationError: They get no error.
    """
    other = communicator.rank == communicator.size - 1
    large = np.zeros(40_000 * communicator.size)
    calls: dict[str, Callable[[Communicator], Any]] = {
        "buffers of two sizes": lambda part: part.all_reduce(large[: 30_000 + other], timeout_s=_SHORT_S),
        "two dtypes": lambda part: part.all_reduce(large.view(np.int64) if other else large, timeout_s=_SHORT_S),
        "two reductions": lambda part: part.all_reduce(large, op="max" if other else "sum", timeout_s=_SHORT_S),
        "two roots": lambda part: part.broadcast(large, root=int(other), timeout_s=_SHORT_S),
        "two collectives": lambda part: (
            part.all_to_all(large, large.copy(), timeout_s=_SHORT_S)
            if other
            else part.all_reduce(large, timeout_s=_SHORT_S)
        ),
    }
    for what, call in calls.items():
        part = communicator.split(0)
        _fails(part, what, call)
        communicator.barrier(timeout_s=ENOUGH_S)
        part.close()
    # A message whose size differs from the receiver's buffer.
    part = communicator.split(0)
    if part.rank == 0:
        part.send_start(np.zeros(5), part.size - 1)
    elif other:
        _fails(part, "a message of another size", lambda part: part.receive(np.zeros(3), 0, timeout_s=_SHORT_S))
    communicator.barrier(timeout_s=ENOUGH_S)
    part.close()


def _fails(part: Communicator, what: str, call: Callable[[Communicator], Any]) -> None:
    begin = monotonic()
    try:
        call(part)
    except CommunicationError:
        if (took_s := monotonic() - begin) > _SHORT_S + _SLACK_S:
            raise CommunicationError(
                f"{what}: rank {part.rank} got the error after {took_s:.1f} s; allowed: {_SHORT_S:g} s"
            ) from None
        return
    raise CommunicationError(f"{what}: rank {part.rank} got no error; allowed: CommunicationError")
