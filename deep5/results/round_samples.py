"""samples.csv of a comparison: every time that was read, with its candidate, process, phase and order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.results.reading import read_rows

__all__ = [
    "PHASES",
    "RoundSample",
    "order_of_round",
    "read_round_samples",
    "round_samples_text",
    "stream_round_samples",
]

PHASES = ("first", "warm-up", "steady")
"""What a sample may be of."""


class RoundSample(NamedTuple):
    """One line.

    Attributes:
        candidate: Its label.
        workload: Its name.
        round: From 0 on: candidates that ran in the same round may be compared pair by pair.
        process: Number of the process, in the order in which they were started.
        phase: One of `PHASES`.
        place: Place among the samples of this process and workload.
        seconds: A call, or a step.
        calls: How many of them the sample is the mean of.
        time_s: When it ended, since the first call had.
    """

    candidate: str
    workload: str
    round: int
    process: int
    phase: str
    place: int
    seconds: float
    calls: int
    time_s: float


def order_of_round(seed: int, number: int, count: int) -> list[int]:
    """In which order candidates run in a round: drawn for every two rounds, and the other way round in the second.

    So whoever comes first in one comes last in the next: what a place in the order does to a time cancels.

    Args:
        seed: Of the comparison.
        number: Of the round, from 0.
        count: How many candidates.
    """
    drawn: list[int] = generator(seed, "comparison order", number // 2, count).permutation(count).tolist()
    return drawn if number % 2 == 0 else drawn[::-1]


def round_samples_text(rows: Iterable[RoundSample]) -> str:
    """The rows as CSV with a header line, numbers exact."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(RoundSample._fields)
    for row in rows:
        writer.writerow((*row[:6], repr(row.seconds), row.calls, repr(row.time_s)))
    return out.getvalue()


def read_round_samples(path: Path) -> list[RoundSample]:
    """Read it back, exactly.

    Raises:
        NotThere: No such file.
        UsageError: The file cannot be read, or a line of it is not a sample.
    """
    return list(stream_round_samples(path))


def stream_round_samples(path: Path) -> Iterator[RoundSample]:
    """The rows in their order, one after the other; errors as those of `read_round_samples`."""
    for place_in_file, line in read_rows(path, RoundSample._fields):
        try:
            candidate, workload, number, process, phase, place, seconds, calls, time_s = line
            row = RoundSample(
                candidate,
                workload,
                int(number),
                int(process),
                phase,
                int(place),
                float(seconds),
                int(calls),
                float(time_s),
            )
        except ValueError as error:
            raise UsageError(f"{path}, line {place_in_file} is not a sample: {line!s:.200} ({error!s:.100})") from error
        if phase not in PHASES:
            raise UsageError(f"{path}, line {place_in_file}: phase {phase!r:.60}; allowed: {', '.join(PHASES)}")
        yield row
