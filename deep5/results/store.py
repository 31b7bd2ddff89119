"""Finds the folders under a root that contain results, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from deep5.core.errors import UsageError
from deep5.results.kind import FILES, NETWORK_KIND, PROFILE_KIND, RUN_KIND, STUDY_KIND, kind_of
from deep5.results.reading import shown_path

__all__ = ["UNCLEAR_KIND", "Found", "Survey", "result_folders", "survey"]

UNCLEAR_KIND = "unclear"
"""Kind of a folder that contains the documents of several kinds."""

_DEEPEST = 8
_MOST = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A folder that contains a result, according to its file-system entry; it has not been read.

    Attributes:
        folder: Path below the root, with slashes; "." for the root itself. Unescaped: escape it before showing it.
        kind: Run, comparison, study or sweep; or `UNCLEAR_KIND`.
        study: Path of the study's folder that contains it, or empty.
        stamp: Changes whenever the document, the kind or the study does; empty if the folder cannot be cached.
        changed_ns: When the document's entry was last written, in nanoseconds since the epoch.
        fault: Why it is not a result, or empty.
    """

    folder: str
    kind: str
    study: str
    stamp: str
    changed_ns: int
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The result folders under a root.

    Attributes:
        found: Sorted by name.
        notes: What was left out, one sentence each.
    """

    found: tuple[Found, ...]
    notes: tuple[str, ...]


def survey(root: str | Path, *, depth: int = _DEEPEST) -> Survey:
    """Find runs, comparisons, studies and the runs in them.

    Hidden folders are skipped: they are runs that never started. Links are not followed: their targets are not under
    the root. The inside of a run, comparison or sweep is not searched.

    Args:
        root: A folder that contains result folders at any depth; or a result folder itself.
        depth: Number of folder levels to search; 1: the root, and the folders in it.

    Raises:
        UsageError: The root is not a folder, or cannot be read.
    """
    root = Path(root)
    try:
        with os.scandir(root):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot list {shown_path(root)}: {error.strerror or error}; allowed: a folder that holds result folders, "
            "such as results"
        ) from error
    found: list[Found] = []
    notes: list[str] = []
    looked = 0
    # An explicit stack, because the depth of folders is not under our control.
    waiting = [(str(root), "", 0, "")]
    while waiting:
        path, folder, deep, study = waiting.pop()
        looked += 1
        if looked > _MOST:
            notes.append(
                f"{shown_path(root)} has more than {_MOST} folders; the rest is left out; remedy: list a subfolder"
            )
            break
        own = _result(path, folder or ".", study)
        if own is not None:
            found.append(own)
            if own.kind != STUDY_KIND:
                continue
            study = folder or "."
        if deep == depth:
            if depth == _DEEPEST:
                notes.append(f"{shown_path(folder)} is {_DEEPEST} folders deep; deeper folders are left out")
            continue
        waiting += [
            (inside, f"{folder}/{name}" if folder else name, deep + 1, study)
            for inside, name in islice(_folders(path), _MOST)
        ]
    return Survey(found=tuple(sorted(found, key=lambda own: own.folder)), notes=tuple(notes[:20]))


def result_folders(out: str | Path) -> list[Path]:
    """The result folders of runs directly in a folder, sorted by name, as found by `survey`.

    Raises:
        UsageError: `out` is not a readable folder.
    """
    inside = (own for own in survey(out, depth=1).found if own.folder != ".")
    return [Path(out) / own.folder for own in inside if own.kind == RUN_KIND]


def _folders(path: str) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield entry.path, entry.name
    except OSError:  # deleted in the meantime, or not readable
        return


def _result(path: str, folder: str, study: str) -> Found | None:
    try:
        kind = kind_of(path)
    except UsageError as error:
        return Found(folder=folder, kind=UNCLEAR_KIND, study=study, stamp="", changed_ns=0, fault=str(error))
    if kind in (None, PROFILE_KIND, NETWORK_KIND):
        return None
    try:
        about = os.lstat(f"{path}/{FILES[kind]}")
    except OSError:  # deleted in the meantime
        return None
    stamp = f"{about.st_mtime_ns}:{about.st_ctime_ns}:{about.st_size}:{about.st_ino}:{about.st_dev}:{kind}:{study}"
    changed_ns = max(about.st_mtime_ns, about.st_ctime_ns)
    return Found(folder=folder, kind=kind, study=study, stamp=stamp, changed_ns=changed_ns)
