"""What is exported: a result folder with what the store says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.results.kind import COMPARISON_KIND, FILES, RUN_KIND
from deep5.results.reading import read_object
from deep5.results.store import survey
from deep5.results.stored import UNREADABLE, Stored, stored

__all__ = ["Source", "sources"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run or a comparison that can be read.

    Attributes:
        folder: Its folder.
        about: What the store says of it.
        document: Its result.json or comparison.json, valid.
    """

    folder: Path
    about: Stored
    document: dict[str, Any]


def sources(folders: Iterable[str | Path]) -> tuple[list[Source], list[str]]:
    """The runs and comparisons in these folders, those of studies and of whole roots too, each once.

    Returns:
        Them, and what is left out and why, a sentence each.

    Raises:
        UsageError: A folder that cannot be listed.
    """
    found: dict[Path, Source] = {}
    left_out: dict[str, None] = {}
    for folder in folders:
        root = Path(folder)
        seen = survey(root)
        left_out |= dict.fromkeys(seen.notes)
        if not seen.found:
            left_out[f"{root} holds no results; allowed: folders that deep5 wrote, or folders of them"] = None
        for own in seen.found:
            path = (root / own.folder).absolute()
            about = stored(root, own)
            if about.status == UNREADABLE:
                left_out[f"{path} cannot be read: {about.reason}"] = None
            elif own.kind in (RUN_KIND, COMPARISON_KIND) and path not in found:
                found[path] = Source(folder=path, about=about, document=read_object(path / FILES[own.kind]))
    return list(found.values()), list(left_out)
