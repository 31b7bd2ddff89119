"""Requests as they were served, one row each: requests.csv."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deep5.bench.serving.plan import ServingPlan
from deep5.core.errors import UsageError

__all__ = ["OK", "REQUESTS", "Request", "ServedLoad", "read_requests", "requests_text"]

REQUESTS = "requests.csv"
"""The raw file of a serving run, one row per request."""

OK = "ok"
"""The status of an answered request; any other status is the error."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request, with its times on the run's clock in seconds since the start of the load.

    The latency of a request is `last_s - scheduled_s`. It begins at the scheduled time, not when the generator issued
    the request: a generator that is late because the server stalls must not hide the wait (coordinated omission).

    Attributes:
        request: Its number, from 0, over all phases.
        query: Number of its query; only queries of `multi_stream` have several requests.
        phase: Number of the rate.
        sample: Index of its sample.
        scheduled_s: When the load requires it to be issued; in a closed loop, when the previous query was answered.
        issued_s: When the generator issued it; None: it did not.
        started_s: When the server started its batch; None: it did not.
        first_s: When the first part of the answer was there: the first token, or for a network the whole answer.
        last_s: When the last part was there, or for a failure, when it was known.
        batch: Number of requests in its batch; None: it was in none.
        tokens_in: Tokens of the request, for a language model.
        tokens_out: Tokens of the answer, for a language model.
        status: `OK`, or the error.
    """

    request: int
    query: int
    phase: int
    sample: int
    scheduled_s: float
    issued_s: float | None = None
    started_s: float | None = None
    first_s: float | None = None
    last_s: float
    batch: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    status: str = OK

    @property
    def latency_s(self) -> float:
        """Seconds from the scheduled time to the end of the answer; infinite for a failure."""
        return self.last_s - self.scheduled_s if self.status == OK else math.inf


@dataclass(frozen=True, kw_only=True)
class ServedLoad:
    """A load, and what became of its requests.

    Attributes:
        plan: The load.
        requests: All requests, in the order of their numbers.
        begins_s: By phase, the time at which it began, from which its schedule counts.
    """

    plan: ServingPlan
    requests: tuple[Request, ...]
    begins_s: tuple[float, ...]

    def of_phase(self, phase: int) -> tuple[Request, ...]:
        """The requests of a phase."""
        size = self.plan.requests_per_phase
        return self.requests[phase * size : (phase + 1) * size]


_COLUMNS = tuple(field.name for field in fields(Request))
_INTEGERS = frozenset(("request", "query", "phase", "sample", "batch", "tokens_in", "tokens_out"))


def requests_text(requests: Iterable[Request]) -> str:
    """The content of requests.csv; numbers with all digits, an empty cell for what there is not.

    >>> print(requests_text([Request(request=0, query=0, phase=0, sample=3, scheduled_s=0.5, last_s=0.75)]))
    request,query,phase,sample,scheduled_s,issued_s,started_s,first_s,last_s,batch,tokens_in,tokens_out,status
    0,0,0,3,0.5,,,,0.75,,,,ok
    <BLANKLINE>
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in requests:
        writer.writerow(["" if (value := getattr(each, name)) is None else value for name in _COLUMNS])
    return file.getvalue()


def read_requests(path: Path) -> list[Request]:
    """The rows of requests.csv.

    Args:
        path: The file.

    Raises:
        UsageError: It cannot be read, or has other columns or values.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            if (head := tuple(next(rows, ()))) != _COLUMNS:
                raise UsageError(f"{path} has the columns {head!r:.200}; allowed: {', '.join(_COLUMNS)}")
            return [_read(row, path) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _read(row: Sequence[str], path: Path) -> Request:
    try:
        values: dict[str, Any] = {
            name: _value(name, text) for name, text in zip(_COLUMNS, row, strict=True) if text or name == "status"
        }
        return Request(**values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} has the row {','.join(row)!r:.200}, which cannot be read: {error}") from error


def _value(name: str, text: str) -> Any:
    if name == "status":
        return text
    return int(text) if name in _INTEGERS else float(text)
