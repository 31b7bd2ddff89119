"""Reads samples.csv of a comparison, with the audit's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from deep5.core.errors import UsageError
from deep5.results.reading import NotThere, read_rows

__all__ = ["TimedSample", "timed_samples"]

_PHASES = ("first", "warm-up", "steady")


class TimedSample(NamedTuple):
    """One line: the columns of samples.csv, in their order.

    Attributes:
        candidate: Label of the candidate.
        workload: Name of the workload.
        round: From 0.
        process: Index into the processes of comparison.json.
        phase: "first", "warm-up" or "steady".
        place: Index among the samples of this process and workload.
        seconds: Seconds per call.
        calls: Number of calls averaged in the sample.
        time_s: End of the sample, in seconds after the first call.
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


def timed_samples(path: Path, processes: int) -> list[TimedSample]:
    """The samples of the processes that the document lists; none without a file.

    A comparison killed between two writes leaves samples of a process that is not listed yet.

    Args:
        path: Path of samples.csv.
        processes: Number of processes that the document lists.

    Raises:
        UsageError: The file cannot be read, or a line is not a sample.
    """
    found = []
    try:
        for number, line in read_rows(path, TimedSample._fields):
            sample = _sample(path, number, line)
            if sample.process < processes:
                found.append(sample)
    except NotThere:
        return []
    return found


def _sample(path: Path, number: int, line: list[str]) -> TimedSample:
    kinds: tuple[Any, ...] = (str, str, int, int, str, int, float, int, float)
    try:
        sample = TimedSample(*(kind(value) for kind, value in zip(kinds, line, strict=True)))
    except ValueError as error:
        raise UsageError(f"{path}, line {number} is not a sample: {line!s:.200} ({error!s:.100})") from error
    if sample.phase not in _PHASES:
        raise UsageError(f"{path}, line {number}: phase {sample.phase!r:.60}; allowed: {', '.join(_PHASES)}")
    return sample
