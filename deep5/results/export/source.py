"""An export source: a result folder with its entry in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.terminal import counted
from deep5.results.kind import COMPARISON_KIND, FILES, RUN_KIND, STUDY, STUDY_KIND, SWEEP_KIND
from deep5.results.reading import read_object
from deep5.results.store import survey
from deep5.results.stored import UNREADABLE, Stored, stored

__all__ = ["Source", "sources"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A readable run or comparison.

    Attributes:
        folder: The result folder.
        about: The store's entry.
        document: Its result.json or comparison.json, valid.
    """

    folder: Path
    about: Stored
    document: dict[str, Any]


def sources(folders: Iterable[str | Path]) -> tuple[list[Source], list[str]]:
    """The runs and comparisons in these folders, including those of studies and of whole roots, each once.

    Returns:
        The sources, and a sentence for each one that is left out.

    Raises:
        UsageError: A folder cannot be listed.
    """
    found: dict[Path, Source] = {}
    left_out: dict[str, None] = {}
    for folder in folders:
        root = Path(folder)
        seen = survey(root)
        left_out |= dict.fromkeys(seen.notes)
        unsuccessful: Counter[str] = Counter()
        failures: dict[str, int] = {}
        if not seen.found:
            left_out[f"{root} holds no results; allowed: folders that deep5 wrote, or folders of them"] = None
        for own in seen.found:
            # Resolved, because its name becomes a file name, and a result that is reached by several links counts once.
            path = (root / own.folder).resolve()
            about = stored(root, own)
            unsuccessful[own.study] += about.status != "success"
            if about.status == UNREADABLE:
                left_out[f"{path} cannot be read: {about.reason}"] = None
            elif own.kind == STUDY_KIND:
                failures[own.folder] = _failures(path / FILES[own.kind])
            elif own.kind == SWEEP_KIND:
                left_out[f"{path} is a sweep; remedy: deep5 export {path}/runs for its runs"] = None
            elif own.kind in (RUN_KIND, COMPARISON_KIND) and path not in found:
                found[path] = Source(folder=path, about=about, document=read_object(path / FILES[own.kind]))
        for study, count in failures.items():
            if (lost := count - unsuccessful[study]) > 0:
                lost_runs = f"{counted(lost, 'run')} that failed without results; its {STUDY} says why"
                left_out[f"{(root / study).resolve()} has {lost_runs}"] = None
    return list(found.values()), list(left_out)


def _failures(path: Path) -> int:
    """Number of failed runs that a study's document states; it was read before and is valid."""
    return sum(len(own["failures"]) for own in read_object(path)["candidates"].values())
