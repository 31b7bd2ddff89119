"""Latency percentiles, throughput and goodput of requests, derived independently of `deep5.bench`."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

__all__ = ["COLUMNS", "Phase", "Row", "read_rows"]

COLUMNS = (
    "request", "query", "phase", "sample", "scheduled_s", "issued_s", "started_s", "first_s", "last_s", "batch",
    "tokens_in", "tokens_out", "status",
)  # fmt: skip
_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of requests.csv; times in seconds, None for an empty cell."""

    request: int
    query: int
    phase: int
    sample: int
    scheduled_s: float
    issued_s: float | None
    started_s: float | None
    first_s: float | None
    last_s: float
    batch: int | None
    status: str

    @property
    def answered(self) -> bool:
        """Whether there was an answer."""
        return self.status == "ok"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file.

    Args:
        path: requests.csv.

    Raises:
        ValueError: It is not in deep5's format.
    """
    if path.stat().st_size > _BYTES:
        raise ValueError(f"requests.csv has more than {_BYTES} bytes")
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        if tuple(next(lines, ())) != COLUMNS:
            raise ValueError(f"requests.csv has other columns than {', '.join(COLUMNS)}")
        return [_row(dict(zip(COLUMNS, line, strict=True))) for line in lines]


def _row(cells: dict[str, str]) -> Row:
    def time(name: str) -> float | None:
        return float(cells[name]) if cells[name] else None

    scheduled_s, last_s = time("scheduled_s"), time("last_s")
    if scheduled_s is None or last_s is None:
        raise ValueError(f"the request {cells['request']} has no scheduled or no last time")
    return Row(
        request=int(cells["request"]),
        query=int(cells["query"]),
        phase=int(cells["phase"]),
        sample=int(cells["sample"]),
        scheduled_s=scheduled_s,
        issued_s=time("issued_s"),
        started_s=time("started_s"),
        first_s=time("first_s"),
        last_s=last_s,
        batch=int(cells["batch"]) if cells["batch"] else None,
        status=cells["status"],
    )


class Phase:
    """The requests of one rate.

    Args:
        rows: Its rows.
        begin_s: When it began.
    """

    def __init__(self, rows: Sequence[Row], begin_s: float) -> None:
        self._rows, self._begin_s = rows, begin_s
        by_query: dict[int, list[Row]] = {}
        for row in rows:
            by_query.setdefault(row.query, []).append(row)
        self._sizes = [len(own) for own in by_query.values()]
        self.latencies = [
            max(row.last_s - row.scheduled_s for row in own) if all(row.answered for row in own) else math.inf
            for own in by_query.values()
        ]

    @property
    def failures(self) -> int:
        """Number of requests without an answer."""
        return sum(not row.answered for row in self._rows)

    @property
    def seconds(self) -> float:
        """From the start to the last answer or failure."""
        return max(row.last_s for row in self._rows) - self._begin_s

    @property
    def throughput(self) -> float:
        """Answered requests per second."""
        return (len(self._rows) - self.failures) / self.seconds

    def goodput(self, bound_s: float) -> float:
        """Requests per second of the queries within a bound."""
        pairs = zip(self.latencies, self._sizes, strict=True)
        return sum(size for latency, size in pairs if latency <= bound_s) / self.seconds

    def percentile(self, percent: float) -> float:
        """The smallest latency that at least so many percent of the queries do not exceed."""
        ordered = sorted(self.latencies)
        # In decimal arithmetic: no rounding decides between two ranks.
        share = Decimal(str(percent)) * len(ordered)
        return next(latency for rank, latency in enumerate(ordered, 1) if rank * 100 >= share)
