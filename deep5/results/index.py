"""A cache of the contents of result folders: one file per root in deep5's cache, which may be deleted at any time.

The folders are authoritative: a row is used only if the file-system entry of its document is unchanged. An index that
is damaged or from another deep5 version is rebuilt; if it cannot be written, none is used. It is not stored in the
root, which may belong to another user: nothing is written there, and no file there is used as an index.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deep5.core.compiler import cache_folder
from deep5.core.errors import UsageError
from deep5.core.files import write_atomically
from deep5.core.progress import tracked
from deep5.results.inputs import disputes
from deep5.results.reading import TABLE_BYTES, opened
from deep5.results.store import Found, survey
from deep5.results.stored import Stored, stored

__all__ = ["INDEX", "Listing", "index_folder", "index_of", "list_results"]

INDEX = ".index.jsonl"
"""Suffix of an index's file name."""

# Increment after a change of `Stored`, or of how it is read from a folder.
_VERSION = 9
_MOST_INDICES = 50
_MOST_BYTES = 2 * TABLE_BYTES
_LONGEST_ROW = 1 << 20
# A more recent file may be written again within the same tick of the file system's clock.
_SETTLED_NS = 1_000_000_000

_Known = dict[str, tuple[str, dict[str, Any]]]
"""By folder, its stamp and the row as a document."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The results under a root.

    Attributes:
        results: The oldest first; results without a date come before them.
        notes: What was left out, one sentence each.
        read: Number of folders that had to be read because the index did not have them.
    """

    results: tuple[Stored, ...]
    notes: tuple[str, ...]
    read: int


def list_results(root: str | Path, *, rebuild: bool = False) -> Listing:
    """All results under a root; those in the index are not read again.

    Concurrent calls each write a whole index, and the last one remains: rows that only another call read are read
    again.

    Args:
        root: As for `survey`.
        rebuild: Ignore the index and rewrite it.

    Raises:
        UsageError: The root is not a folder, or cannot be read.
    """
    root = Path(root)
    seen = survey(root)
    path = index_of(root)
    known = {} if rebuild else _known(path)
    kept: _Known = {}
    rows = []
    read = 0
    for own in tracked(seen.found, f"reading the results in {root}", len(seen.found)):
        row = _remembered(known.get(own.folder), own)
        if row is None:
            begin = time.time_ns()
            row = stored(root, own)
            read += 1
            if own.stamp and begin - own.changed_ns > _SETTLED_NS:
                kept[own.folder] = (own.stamp, row.document())
        else:
            kept[own.folder] = known[own.folder]
        rows.append(row)
    if kept != known and (kept or path.exists()):
        _keep(path, kept)
    rows.sort(key=lambda row: (row.started or "", row.folder))
    rows, notes = _disputed(rows)
    return Listing(results=tuple(rows), notes=(*seen.notes, *notes), read=read)


def _disputed(rows: list[Stored]) -> tuple[list[Stored], list[str]]:
    """The rows, marked if they are not comparable to others with their hash; and a note for each such hash."""
    drawn = [(row.drawn or "").partition(" ") for row in rows]
    found = disputes([(key, value) if value else None for key, _, value in drawn])
    notes: dict[tuple[str | None, str | None], str] = {}
    for first, other in found:
        one, two = rows[first], rows[other]
        notes.setdefault(
            (one.hash, one.size),
            f"{one.folder} and {two.folder} have one hash, {str(one.hash)[:12]}, and another network or other initial "
            "weights at one seed: no run with this hash is comparable",
        )
    marked = [replace(row, disputed=True) if (row.hash, row.size) in notes else row for row in rows]
    return marked, list(notes.values())


def index_folder() -> Path:
    """The folder of the indices."""
    return cache_folder() / "results"


def index_of(root: str | Path) -> Path:
    """The index file of a root."""
    name = hashlib.sha256(os.fsencode(Path(root).resolve())).hexdigest()[:32]
    return index_folder() / f"{name}{INDEX}"


def _remembered(known: tuple[str, dict[str, Any]] | None, found: Found) -> Stored | None:
    if known is None or not found.stamp or known[0] != found.stamp:
        return None
    try:
        row = Stored.of_document(known[1])
    except (ValueError, TypeError, AttributeError):
        return None
    return row if row.folder == found.folder else None


def _known(path: Path) -> _Known:
    """The rows of an index; empty if there is no readable one."""
    known: _Known = {}
    try:
        with opened(path, most_bytes=TABLE_BYTES) as file:
            if json.loads(file.readline(_LONGEST_ROW)) != _header():
                return {}
            while line := file.readline(_LONGEST_ROW + 1):
                folder, stamp, row = json.loads(line)
                known[folder] = (stamp, row)
    except (UsageError, OSError, ValueError, TypeError, RecursionError):
        return {}
    return known


def _keep(path: Path, known: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
    """Write the rows that were read; if they cannot be written, they are read again next time."""
    lines = [json.dumps(_header())]
    lines += [json.dumps([folder, stamp, row]) for folder, (stamp, row) in known.items()]
    text = "".join(f"{line}\n" for line in lines if len(line) < _LONGEST_ROW)
    if len(text) > TABLE_BYTES:
        return
    with suppress(OSError):
        # Names of results are private.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text)
        _prune(path.parent)


def _prune(folder: Path) -> None:
    """Keep only the most recently written indices, because roots come and go."""
    indices = [(path.lstat(), path) for path in folder.glob(f"*{INDEX}")]
    indices.sort(key=lambda entry: entry[0].st_mtime_ns, reverse=True)
    total = 0
    for number, (about, path) in enumerate(indices):
        total += about.st_size
        if number >= _MOST_INDICES or total > _MOST_BYTES:
            path.unlink(missing_ok=True)


def _header() -> dict[str, Any]:
    return {"deep5": "index of results", "version": _VERSION}
