"""A server with planted delays, which logs when it really was busy: other programs may delay it further."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter, sleep

from deep5.bench.serving.records import ServedLoad

__all__ = ["Planted", "on_a_quiet_moment", "within"]


class Planted:
    """Sleeps as long as the sample says, the longest of a batch, and logs the start and the end.

    Attributes:
        log: By call, the batch, its start and its end.
    """

    def __init__(self) -> None:
        self.log: list[tuple[list[float], float, float]] = []
        self._lock = threading.Lock()

    def __call__(self, batch: list[float]) -> list[float]:
        started_s = perf_counter()
        sleep(max(batch))
        with self._lock:
            self.log.append((list(batch), started_s, perf_counter()))
        return batch

    def ends(self) -> list[float]:
        """By request in the order of the batches, when it was done."""
        return [end_s for batch, _, end_s in self.log for _ in batch]

    def starts(self) -> list[float]:
        """By request in the order of the batches, when it was begun."""
        return [start_s for batch, start_s, _ in self.log for _ in batch]


def within(load: ServedLoad, server: Planted) -> float:
    """Share of the requests whose recorded start and end are within 1 ms of the server's own log.

    The log and the record are two clocks readings after each other; between them another program may run.
    """
    logged = list(zip(server.starts(), server.ends(), strict=True))
    rows = [row for row in load.requests if row.started_s is not None]
    assert len(rows) == len(logged)
    # The two clocks have another zero: that of the load is known from any one request, here the least difference.
    zero_s = min(end_s - row.last_s for row, (_, end_s) in zip(rows, logged, strict=True))
    near = [
        abs(row.last_s + zero_s - end_s) < 1e-3 and abs((row.started_s or 0.0) + zero_s - start_s) < 1e-3
        for row, (start_s, end_s) in zip(rows, logged, strict=True)
    ]
    return sum(near) / len(near)


def on_a_quiet_moment(attempt: Callable[[], Sequence[str]], times: int = 5) -> None:
    """Require that an attempt has no complaint, once in several: a busy machine may delay any of them.

    Args:
        attempt: Returns what is wrong.
        times: Number of attempts.
    """
    for _ in range(times):
        wrong = attempt()
        if not wrong:
            return
    raise AssertionError(wrong)
