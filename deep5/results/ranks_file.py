"""ranks.json: each rank's host, traffic and waits; and the file that contains each rank's samples."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError
from deep5.results.reading import NotThere, read_json, shown_path
from deep5.results.samples_file import SAMPLES

__all__ = ["RANKS", "RankRow", "rank_samples", "read_ranks", "sample_files"]

RANKS = "ranks.json"
"""Each rank's host, traffic and waits."""

_OTHERS = re.compile(r"samples-rank-([1-9][0-9]{0,8})\.csv")
_COUNTS = ("rank", "steps", "sent_bytes", "messages")


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One entry of ranks.json.

    Attributes:
        rank: From 0.
        host: Name of its machine.
        communicator: Class of its communicator.
        steps: Completed steps.
        sent_bytes: Bytes sent to other ranks in the whole run.
        messages: Number of operations that sent them.
        waited_s: Seconds in operations and waits, in the whole run.
        launcher: The launcher that started it; None for a thread, and if the result does not state it.
        threads: Threads of its framework, or None.
        warnings: Reasons why its numbers are less certain.
    """

    rank: int
    host: str
    communicator: str
    steps: int
    sent_bytes: int
    messages: int
    waited_s: float
    launcher: str | None = None
    threads: int | None = None
    warnings: tuple[str, ...] = ()


def rank_samples(rank: int) -> str:
    """The name of the file with a rank's samples.

    >>> rank_samples(0), rank_samples(2)
    ('samples.csv', 'samples-rank-2.csv')
    """
    return f"samples-rank-{rank}.csv" if rank else SAMPLES


def sample_files(folder: Path, ranks: int) -> list[tuple[int, Path]]:
    """The sample files of a run, ordered by rank.

    Args:
        folder: The result folder.
        ranks: Number of ranks of the run; files of higher ranks, left by an earlier number of ranks, are ignored.

    Raises:
        UsageError: The folder cannot be listed.
    """
    found = {0} if os.path.lexists(folder / SAMPLES) else set()
    if ranks > 1:
        # The existing files, not the expected ones: a result may declare any number of ranks.
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError as error:
            raise UsageError(
                f"cannot list {shown_path(folder)}: {error.strerror or error}; allowed: a readable folder"
            ) from error
        own = (_OTHERS.fullmatch(name) for name in names)
        found |= {int(each[1]) for each in own if each is not None and int(each[1]) < ranks}
    return [(rank, folder / rank_samples(rank)) for rank in sorted(found)]


def read_ranks(folder: str | Path) -> tuple[RankRow, ...]:
    """The contents of a result folder's ranks.json, in rank order; empty without the file.

    A run of one process has none, nor has a run that ended before its ranks combined their data.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    path = Path(folder) / RANKS
    try:
        document = read_json(path)
    except NotThere:
        return ()
    rows = [_row(entry) for entry in document] if isinstance(document, list) else [None]
    if not rows or None in rows or [row.rank for row in rows if row is not None] != list(range(len(rows))):
        raise UsageError(
            f"{shown_path(path)} is not as deep5 writes it; allowed: one entry per rank, in their "
            "order; remedy: restore it from a copy"
        )
    return tuple(row for row in rows if row is not None)


def _row(entry: Any) -> RankRow | None:
    """The row of an entry; None if the entry is invalid."""
    if not isinstance(entry, Mapping):
        return None
    texts = [entry.get(name) for name in ("host", "communicator")]
    counts = [entry.get(name) for name in _COUNTS]
    waited_s, launcher, threads, warnings = (entry.get(key) for key in ("waited_s", "launcher", "threads", "warnings"))
    right = (
        all(isinstance(text, str) for text in texts)
        and all(map(_is_count, counts))
        and isinstance(waited_s, (int, float))
        and not isinstance(waited_s, bool)
        and 0 <= waited_s < 2**63
        and (launcher is None or isinstance(launcher, str))
        and (threads is None or _is_count(threads))
        and isinstance(warnings, list)
    )
    if not right:
        return None
    return RankRow(
        **{name: entry[name] for name in (*_COUNTS, "host", "communicator")},
        waited_s=float(entry["waited_s"]),
        launcher=launcher,
        threads=threads,
        warnings=tuple(map(str, entry["warnings"])),
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
