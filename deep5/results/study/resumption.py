"""Checks whether a study equals an interrupted one and may resume in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.results.kind import STUDY
from deep5.results.study.folder import LeftStudy

__all__ = ["DIRTY", "check_same", "source_note"]

DIRTY = "deep5's own source had changes that no commit holds when the study "
"""The beginning of the note that deep5's source cannot be verified to be unchanged."""

_SAME = ("recipe", "size", "seeds", "target", "time_limit_s", "memory_limit_bytes", "workers")
_HASHES = {"contents": "recipe files, or files named in them", "environment": "hardware or software"}
_NOTHING = object()
# Characters of a long string shown before the first difference.
_BEFORE = 12


def check_same(left: LeftStudy, requested: Mapping[str, Any]) -> None:
    """Refuse to resume a study that differs from the interrupted one: new runs would not be comparable with its runs.

    Args:
        left: The interrupted study.
        requested: The document that study.json would contain for the resumed study.

    Raises:
        UsageError: The first difference, with both values.
    """
    stored = left.document
    for key in _SAME:
        _hold(left.folder, key, stored.get(key), requested[key])
    ours, theirs = ({name: row["settings"] for name, row in own["candidates"].items()} for own in (stored, requested))
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in ours or name not in theirs:
            _hold(left.folder, f"the candidate {name!r}", ours.get(name, _NOTHING), theirs.get(name, _NOTHING))
        for key in dict.fromkeys((*ours[name], *theirs[name])):
            then, now = (own[name].get(key, _NOTHING) for own in (ours, theirs))
            _hold(left.folder, f"{key!r} of the candidate {name!r}", then, now)
    began, now = stored["provenance"], requested["provenance"]
    for key, what in _HASHES.items():
        if began.get(key) != now[key]:
            raise UsageError(
                f"the study in {left.folder} was started with other {what}; allowed: the same files, machine "
                "and versions; remedy: a new one, without --resume"
            )
    commits = ["none" if own.get("commit") is None else own["commit"].get("id") for own in (began, now)]
    if commits[0] != commits[1]:
        raise UsageError(
            f"the study in {left.folder} was started by deep5's commit {brief(commits[0])}; got {brief(commits[1])}; "
            "allowed: the same one; remedy: that commit, or a new study, without --resume"
        )
    if stored.get("hash") != requested["hash"]:
        raise UsageError(
            f"{left.folder / STUDY}: hash is {brief(stored.get('hash'))}; allowed: {requested['hash']!r}, the "
            "recipe's; the file is damaged"
        )


def source_note(left: LeftStudy, requested: Mapping[str, Any]) -> list[str]:
    """The note if deep5's source had uncommitted changes, then or now, so that its commit does not identify it."""
    for own, when in ((requested, "was resumed"), (left.document, "began")):
        if (own["provenance"].get("commit") or {}).get("dirty"):
            return [DIRTY + when]
    return []


def _hold(folder: Path, what: str, stored: Any, requested: Any) -> None:
    if stored == requested:
        return
    texts = ["nothing" if value is _NOTHING else brief(value) for value in (stored, requested)]
    if texts[0] == texts[1]:  # both are long and begin alike
        if isinstance(stored, list) and isinstance(requested, list) and len(stored) != len(requested):
            texts = [f"{len(stored)} of them", f"{len(requested)} of them"]
        else:
            texts = _apart(*(json.dumps(value, sort_keys=True) for value in (stored, requested)))
    raise UsageError(
        f"the study in {folder} has {what}: {texts[0]}; got {texts[1]}; allowed: the same command with --resume"
    )


def _apart(one: str, other: str) -> list[str]:
    """Two strings from their first difference."""
    same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(0, same - _BEFORE)
    return [f"…{text[begin : begin + 60]}" for text in (one, other)]
