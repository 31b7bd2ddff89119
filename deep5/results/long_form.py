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

__all__ = ["SAMPLE_COLUMNS", "ended_candidates", "sample_records"]

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
