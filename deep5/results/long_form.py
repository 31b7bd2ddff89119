"""Raw samples of runs and comparisons in long form: one row per value, the same columns for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from deep5.results.kind import COMPARISON_KIND, RUN_KIND
from deep5.results.ranks_file import sample_files
from deep5.results.reading import NotThere
from deep5.results.round_samples import stream_round_samples
from deep5.results.samples_file import SAMPLES, stream_samples

__all__ = ["SAMPLE_COLUMNS", "SAMPLE_MEANINGS", "ended_candidates", "sample_records"]

SAMPLE_COLUMNS: dict[str, type] = {
    "metric": str,
    "index": int,
    "value": float,
    "unit": str,
    "step": int,
    "epoch": int,
    "time_s": float,
    "rank": int,
    "candidate": str,
    "workload": str,
    "round": int,
    "process": int,
    "phase": str,
    "calls": int,
}
"""Name and type; absent fields are None. Columns from `candidate` on are of comparisons, `rank` of runs."""

SAMPLE_MEANINGS: dict[str, str] = {
    "metric": "Name of the metric; 'time' for the times of a comparison.",
    "index": "Index from 0 among the samples of the metric and the rank, or of the process and the workload.",
    "value": "The value, in the column 'unit'; NaN and infinities included.",
    "unit": "Unit of the value.",
    "step": "Steps completed when the sample was taken.",
    "epoch": "Epochs completed when the sample was taken.",
    "time_s": "Seconds since training began; in comparisons, since the end of the process's first call.",
    "rank": "Rank that took the sample, from 0.",
    "candidate": "Label of the candidate.",
    "workload": "Name of the workload.",
    "round": "Round from 0: candidates in the same round can be compared pairwise.",
    "process": "Number of the process, in start order.",
    "phase": "'first', 'warm-up' or 'steady'; verdicts use 'steady'.",
    "calls": "Number of calls or steps averaged in the sample.",
}
"""Meaning of each column."""

_NONE: dict[str, Any] = dict.fromkeys(SAMPLE_COLUMNS)


def sample_records(folder: Path, kind: str, *, ranks: int = 1) -> Iterator[dict[str, Any]]:
    """The samples of one result in file order; none if there is no file, or for a study.

    Times of a comparison are samples of the metric "time", in seconds per call. Those of a run are ordered by rank.

    Args:
        folder: The result folder.
        kind: As the store names it.
        ranks: Number of ranks that the result declares for a run.

    Raises:
        UsageError: A file is not in deep5's format.
    """
    if kind == RUN_KIND:
        for rank, path in sample_files(folder, ranks):
            yield from _of_run(path, rank)
    elif kind == COMPARISON_KIND:
        with suppress(NotThere):
            yield from _of_comparison(folder / SAMPLES)


def ended_candidates(document: Mapping[str, Any], kind: str) -> dict[str | None, str]:
    """Status of a comparison's failed or different candidates, by label: their samples get this status.

    Args:
        document: The result's document.
        kind: As the store names it.
    """
    if kind != COMPARISON_KIND:
        return {}
    return {row["label"]: row["status"] for row in document["candidates"] if row["status"] in ("failed", "different")}


def _of_run(path: Path, rank: int) -> Iterator[dict[str, Any]]:
    for row in stream_samples(path):
        yield {
            **_NONE,
            "metric": row.metric,
            "index": row.index,
            "value": row.value,
            "unit": row.unit,
            "step": row.step,
            "epoch": row.epoch,
            "time_s": row.time_s,
            "rank": rank,
        }


def _of_comparison(path: Path) -> Iterator[dict[str, Any]]:
    for time in stream_round_samples(path):
        yield {
            **_NONE,
            "metric": "time",
            "index": time.place,
            "value": time.seconds,
            "unit": "s",
            "time_s": time.time_s,
            "candidate": time.candidate,
            "workload": time.workload,
            "round": time.round,
            "process": time.process,
            "phase": time.phase,
            "calls": time.calls,
        }
