"""Collects the folders of a report: each is read, or listed with the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error, UsageError
from deep5.core.files import is_folder
from deep5.results.comparison import ComparisonResult, load_comparison
from deep5.results.kind import COMPARISON_KIND, FILES, RUN_KIND, STUDY, STUDY_KIND, SWEEP_KIND, kind_of
from deep5.results.reading import TABLE_BYTES, NotThere, opened, read_object
from deep5.results.result import Result, load
from deep5.results.samples_file import SAMPLES
from deep5.results.store import survey
from deep5.results.time_to_target import Target

__all__ = ["Collection", "ShownStudy", "Unreadable", "collect"]

_SHOWN = {kind: FILES[kind] for kind in (COMPARISON_KIND, STUDY_KIND, RUN_KIND)}


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A folder, or a file in one, that cannot be read.

    Attributes:
        path: As given.
        reason: The reason, in one sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ShownStudy:
    """A study as its folder states it, finished or not; `deep5.results.study.folder` is stricter.

    Attributes:
        folder: The study's folder.
        recipe: Name of the recipe.
        size: Size of the recipe.
        settings: By candidate.
        runs: The readable runs, by candidate.
        failures: The outcome of unfinished runs, by candidate.
        notes: Notes, one sentence each.
        finished: Whether every run was made.
        target: The target of the runs; None if the study states none or an invalid one.
        timed: Whether its times compare: its runs followed each other on one machine.
    """

    folder: Path
    recipe: str
    size: str
    settings: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Sequence[Result]]
    failures: Mapping[str, Sequence[str]]
    notes: Sequence[str]
    finished: bool
    target: Target | None = None
    timed: bool = True


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The contents of a report, in the order in which they were named."""

    comparisons: list[ComparisonResult] = field(default_factory=list)
    runs: list[Result] = field(default_factory=list)
    studies: list[ShownStudy] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.comparisons) + len(self.runs) + len(self.studies)


def collect(folders: Iterable[str | Path]) -> Collection:
    """Read folders of comparisons, runs and studies, or folders that contain such; duplicates count once.

    Nothing in them is executed, and no file outside of them is read: neither by a path in a result nor by a symbolic
    link.

    Args:
        folders: Paths of the folders.
    """
    found = Collection()
    seen: set[Path] = set()
    for given in folders:
        try:
            for folder in _expanded(Path(given).resolve(), found):
                if (place := folder.resolve()) not in seen:
                    seen.add(place)
                    _take(folder, found)
        except (OSError, RuntimeError, ValueError, UsageError) as error:  # ValueError: a NUL in a path
            found.unreadable.append(Unreadable(path=str(given), reason=str(error)))
    return found


def _expanded(path: Path, found: Collection) -> list[Path]:
    """The folder itself, or the result folders below it."""
    if path.name in _SHOWN.values() and not is_folder(path):
        path = path.parent
    if not is_folder(path):
        raise UsageError(f"{path} is not a folder; allowed: one that deep5 wrote; remedy: check the path")
    if (kind := kind_of(path)) in _SHOWN:
        return [path]
    if kind == SWEEP_KIND:
        raise UsageError(f"{path} is a sweep; allowed: a run, a comparison or a study; remedy: deep5 show sweep {path}")
    seen = survey(path)
    # A study's runs are shown with the study.
    own = [path / entry.folder for entry in seen.found if not entry.study and entry.kind != SWEEP_KIND]
    found.unreadable.extend(Unreadable(path=str(path), reason=note) for note in seen.notes)
    if not own:
        names = ", ".join(_SHOWN.values())
        raise UsageError(f"{path} holds none of {names}; allowed: a folder that deep5 wrote, or one of such folders")
    return own


def _take(folder: Path, found: Collection) -> None:
    kind = kind_of(folder)
    if kind == COMPARISON_KIND:
        comparison = _attempt(folder, folder, kind, load_comparison, found)
        found.comparisons.extend([] if comparison is None else [comparison])
    elif kind == STUDY_KIND:
        study = _attempt(folder, folder, kind, lambda path: _study(path, found), found)
        found.studies.extend([] if study is None else [study])
    else:
        run = _attempt(folder, folder, RUN_KIND, load, found)
        found.runs.extend([] if run is None else [run])


def _attempt(root: Path, folder: Path, kind: str, read: Callable[[Path], Any], found: Collection) -> Any:
    """The contents of a folder, read by `read`; None, with a note, if it cannot be read."""
    name = _SHOWN[kind]
    try:
        # Check both files before reading either: a folder whose samples cannot be read is not shown without them.
        with opened(folder / name, root=root):
            pass
        try:
            with opened(folder / SAMPLES, root=root, most_bytes=TABLE_BYTES):
                pass
        except NotThere:  # studies have none, and runs that ended before there were any
            pass
        return read(folder)
    except Deep5Error as error:
        found.unreadable.append(Unreadable(path=str(folder), reason=str(error)))
    except Exception as error:  # a file may cause any error in the reader; the other folders are still shown
        why = f"{type(error).__name__}: {error}"[:400]
        found.unreadable.append(Unreadable(path=str(folder), reason=f"its {name} cannot be read ({why})"))
    return None


def _study(folder: Path, found: Collection) -> ShownStudy:
    document = read_object(folder / STUDY)
    if not isinstance(document.get("candidates"), dict):
        raise UsageError(f"{folder / STUDY} names no candidates; allowed: a {STUDY} that deep5 wrote")
    settings: dict[str, Mapping[str, Any]] = {}
    runs: dict[str, list[Result]] = {}
    failures: dict[str, list[str]] = {}
    for name, own in document["candidates"].items():
        if not isinstance(own, dict):
            raise UsageError(f"{folder / STUDY}: the candidate {name!r:.60} is not an object; remedy: restore the file")
        settings[name] = own["settings"] if isinstance(own.get("settings"), dict) else {}
        failures[name] = _texts(own.get("failures"))
        # Each once, so that there are no more runs than folders.
        read = [_run(folder, text, found) for text in dict.fromkeys(_texts(own.get("runs")))]
        runs[name] = [run for run in read if run is not None]
    notes = _texts(document.get("notes"))
    # Studies of an older deep5 only state it in their notes.
    ended = any("not finished" in note or "was interrupted" in note for note in notes)
    return ShownStudy(
        folder=folder,
        recipe=str(document.get("recipe")),
        size=str(document.get("size")),
        settings=settings,
        runs=runs,
        failures=failures,
        notes=notes,
        finished=document.get("finished", not ended) is True,
        target=_target(document.get("target")),
        timed=document.get("workers", 1) == 1,
    )


def _texts(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _run(folder: Path, text: str, found: Collection) -> Result | None:
    """A run that a study names, if it is inside the study's folder and not reached by a link."""
    run: Result | None = _attempt(folder, folder / text, RUN_KIND, load, found)
    return run


def _target(stated: Any) -> Target | None:
    try:
        return Target(metric=stated["metric"], goal=stated["goal"]) if isinstance(stated, dict) else None
    except (KeyError, UsageError):  # the charts work without a target; the evaluation of the study reports the problem
        return None
