"""samples.csv of a comparison: every measured time, with its candidate, process, phase and order."""

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
"""Phases of a sample."""


class RoundSample(NamedTuple):
    """One line.

    Attributes:
        candidate: Label of the candidate.
        workload: Name of the workload.
        round: From 0: candidates that ran in the same round can be compared pairwise.
        process: Number of the process, in start order.
        phase: "first", "warm-up" or "steady".
        place: Index among the samples of this process and workload.
        seconds: Seconds per call or step.
        calls: Number of calls averaged in the sample.
        time_s: Seconds from the end of the first call to the end of the sample.
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


def order_of_round(seed: int, number: int, count: int, *, reverses: bool = False) -> list[int]:
    """The order of candidates in a round: drawn for each round, or for every two and reversed in the second.

    If it reverses, the first in one round is the last in the next, and the effect of the position on times cancels. A
    test of single rounds needs an order that is drawn for each.

    Args:
        seed: Seed of the comparison.
        number: Number of the round, from 0.
        count: Number of candidates.
        reverses: Whether every second round has the reversed order of the one before it.
    """
    draw = number // 2 if reverses else number
    drawn: list[int] = generator(seed, "comparison order", draw, count).permutation(count).tolist()
    return drawn[::-1] if reverses and number % 2 else drawn


def round_samples_text(rows: Iterable[RoundSample]) -> str:
    """The rows as CSV with a header line; numbers are exact."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(RoundSample._fields)
    for row in rows:
        writer.writerow((*row[:6], repr(row.seconds), row.calls, repr(row.time_s)))
    return out.getvalue()


def read_round_samples(path: Path) -> list[RoundSample]:
    """Read the file back exactly.

    Raises:
        NotThere: The file does not exist.
        UsageError: The file cannot be read, or a line is not a sample.
    """
    return list(stream_round_samples(path))


def stream_round_samples(path: Path) -> Iterator[RoundSample]:
    """The rows in file order, lazily; errors as for `read_round_samples`."""
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
