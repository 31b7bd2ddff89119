"""A study read from its folder: how long each run took to the target, computed from the runs themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.core.files import is_folder
from deep5.results.kind import STUDY
from deep5.results.reading import NotThere, read_json
from deep5.results.result import Result, load
from deep5.results.study.record import FAILED, RUNS, STUDY_VERSION, moment
from deep5.results.time_to_target import Reached, Target, stated_goals, time_to_target

__all__ = ["LeftStudy", "StudyFolder", "folder_of", "left_of", "load_study_folder"]


@dataclass(frozen=True, kw_only=True)
class StudyFolder:
    """One study as its folder states it.

    Attributes:
        folder: The study's folder.
        recipe: Name of the recipe.
        hash: Hash of its fixed part; empty if no run finished and the study does not state it.
        size: Size of the recipe.
        division: "closed" if every run is of the closed division.
        target: The target of the runs.
        settings: The study's settings, by candidate.
        reached: By candidate and seed; a declared run that is missing never reached the target.
        environments: Distinct hashes of the runs' machines and software.
        runs: Number of finished runs.
        process_per_run: Whether each run had its own process; runs of older studies share one.
        timed: Whether its times compare: its runs followed each other on one machine.
    """

    folder: Path
    recipe: str
    hash: str
    size: str
    division: str
    target: Target
    settings: Mapping[str, Mapping[str, Any]]
    reached: Mapping[str, Mapping[int, Reached]]
    environments: Sequence[str] = ()
    runs: int = 0
    process_per_run: bool = False
    timed: bool = True


@dataclass(frozen=True, kw_only=True)
class LeftStudy:
    """An interrupted study.

    Attributes:
        folder: The study's folder.
        document: study.json.
        runs: The finished runs, by candidate and seed.
        failures: Why the others did not finish, by candidate and seed.
    """

    folder: Path
    document: Mapping[str, Any]
    runs: Mapping[str, Mapping[int, Result]]
    failures: Mapping[str, Mapping[int, str]]


def folder_of(path: str | Path) -> Path:
    """The folder of a study; a path of the study.json in it is also accepted."""
    path = Path(path).resolve()  # its name is shown, and "." has none
    return path.parent if path.name == STUDY else path


def left_of(path: str | Path) -> LeftStudy:
    """What an interrupted study left, for its resumption.

    Args:
        path: The folder, or the study.json in it.

    Raises:
        UsageError: There is no study, or it is finished, from an older deep5, or damaged.
    """
    folder = folder_of(path).absolute()
    file = folder / STUDY
    document = _read(file)
    if not _can_go_on(document):
        raise UsageError(
            f"the study {folder} is finished, or of an older deep5; allowed: an interrupted study; remedy: the "
            "command without --resume"
        )
    candidates = _mapping(document.get("candidates"), file, "candidates")
    notes = document.get("notes")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise UsageError(f"{file}: notes is {brief(notes)}; allowed: a list of strings; the file is damaged")
    _check_resumed(file, document.get("resumed"))
    if (commit := document["provenance"].get("commit")) is not None:
        _mapping(commit, file, "provenance.commit")
    for name, own in candidates.items():
        _mapping(_mapping(own, file, f"the candidate {name!r}").get("settings"), file, "settings")
    if (folder / RUNS).is_symlink() or not is_folder(folder / RUNS):  # the resumed study writes there
        raise UsageError(
            f"{folder / RUNS} is not a folder; allowed: the folder of the study's runs; the study is damaged"
        )
    runs = {name: _runs(folder, file, name, own) for name, own in candidates.items()}
    every = [result for own in runs.values() for result in own]
    for result in every:
        if result.status != "success":
            raise UsageError(
                f"{file} lists {result.folder} as a finished run, and its status is {result.status}; "
                "allowed: success; the file is damaged"
            )
    _identity(file, document, every)
    by_seed, failed = _by_seeds(file, candidates, runs)
    _seeds(file, document, [*by_seed.values(), *failed.values()])
    return LeftStudy(folder=folder, document=document, runs=by_seed, failures=failed)


def _can_go_on(document: Mapping[str, Any]) -> bool:
    return document.get("finished") is False and isinstance(document.get("provenance"), dict)


def _check_resumed(file: Path, resumed: Any) -> None:
    try:
        if not isinstance(resumed, list):
            raise ValueError("it is not a list")
        for time in resumed:
            moment(time)
    except ValueError as error:
        raise UsageError(
            f"{file}: resumed is {brief(resumed)}; allowed: a list of times; the file is damaged"
        ) from error


def load_study_folder(path: str | Path) -> StudyFolder:
    """Read a study's folder; times are read from its runs, not from the study's own summary.

    Args:
        path: The folder, or the study.json in it.

    Raises:
        UsageError: There is no study, or it is unfinished, has no target or is damaged; runs are of several recipes, on
            several data sets, or outside the folder; a candidate has a seed twice.
    """
    folder = folder_of(path)
    try:
        return _load(folder, folder / STUDY)
    except OverflowError as error:  # JSON integers are unbounded
        raise UsageError(
            f"{folder} holds a number that is too large ({error}); allowed: the range of a float; it is damaged"
        ) from error


def _load(folder: Path, file: Path) -> StudyFolder:
    document = _read(file)
    candidates = _mapping(document.get("candidates"), file, "candidates")
    if not candidates:
        raise UsageError(f"{file} has no candidates; allowed: at least one")
    for name in (*candidates, str(document.get("recipe"))):
        if not name or not name.isprintable():  # they are printed on a terminal
            raise UsageError(f"{file} has the name {brief(name)}; allowed: printable characters")
    notes = document.get("notes")
    ended = isinstance(notes, list) and any("not finished" in str(n) or "was interrupted" in str(n) for n in notes)
    if document.get("finished", not ended) is not True:
        raise UsageError(
            f"the study {folder} is not finished; allowed: a study with all its runs; remedy: "
            + (f"the same command with --resume {folder}" if _can_go_on(document) else "a new one")
        )
    runs = {name: _runs(folder, file, name, own) for name, own in candidates.items()}
    every = [result for own in runs.values() for result in own]
    identity = _identity(file, document, every)
    target = _target(file, document, every)
    by_seed, failed = _by_seeds(file, candidates, runs)
    seeds = _seeds(file, document, [*by_seed.values(), *failed.values()])
    reached = {
        name: {
            seed: time_to_target(by_seed[name][seed], target)
            if seed in by_seed[name]
            else Reached.never(f"failed: {failed[name][seed]}" if seed in failed[name] else "no run of this seed")
            for seed in seeds
        }
        for name in candidates
    }
    return StudyFolder(
        folder=folder,
        **identity,
        division="closed" if every and all(result.division == "closed" for result in every) else "open",
        target=target,
        settings={name: _mapping(own.get("settings"), file, "settings") for name, own in candidates.items()},
        reached=reached,
        environments=sorted({str(result.document["provenance"]["environment"]) for result in every}),
        runs=len(every),
        process_per_run=document.get("process_per_run") is True,
        timed=document.get("workers", 1) == 1,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        document = read_json(file)
    except NotThere as error:
        raise UsageError(f"{file.parent} holds no {STUDY}; allowed: a folder that 'deep5 study' wrote") from error
    found: dict[str, Any] = _mapping(document, file, "the document")
    version = found.get("schema_version")
    if version not in (None, STUDY_VERSION):
        raise UsageError(
            f"{file} is of schema version {brief(version)}; allowed: {STUDY_VERSION!r}, or none; remedy: the deep5 "
            "that wrote it"
        )
    return found


def _mapping(value: Any, file: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{file}: {what} is {brief(value)}; allowed: an object; the file is damaged")
    return value


def _texts(own: Any, file: Path, name: str, key: str) -> list[str]:
    value = _mapping(own, file, f"the candidate {name!r}").get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise UsageError(
            f"{file}: {key} of {name!r} is {brief(value)}; allowed: a list of strings; the file is damaged"
        )
    return value


def _runs(folder: Path, file: Path, name: str, own: Any) -> list[Result]:
    return [load(_inside(folder, file, text), root=folder) for text in _texts(own, file, name, "runs")]


def _inside(folder: Path, file: Path, text: str) -> Path:
    """The folder of a run; it must be inside the study's own folder, and reading follows no link."""
    path = PurePosixPath(text)
    if not text.isprintable():
        raise UsageError(f"{file} names the run {brief(text)}, which is not a path; allowed: printable characters")
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"{file} names the run {brief(text)}; allowed: a result folder within the study's own folder")
    return folder / path


def _identity(file: Path, document: Mapping[str, Any], runs: Sequence[Result]) -> dict[str, str]:
    """Recipe, hash and size, which all runs share with the study."""
    found: dict[str, str] = {}
    for key, field in (("recipe", "name"), ("hash", "hash"), ("size", "size")):
        stated = document.get(key, "" if key == "hash" else None)
        if not isinstance(stated, str):
            raise UsageError(f"{file}: {key} is {brief(stated)}; allowed: a string; the file is damaged")
        own = {str(result.document["recipe"][field]) for result in runs}
        if len(own) > 1 or (own and stated and own != {stated}):
            values = ", ".join(sorted(own | ({stated} if stated else set())))
            raise UsageError(f"{file} holds runs whose {key} differs: {values}; allowed: one recipe at one size")
        found[key] = stated or next(iter(own), "")
    for part in ("data", "split"):
        if len({str(result.document["provenance"][part]) for result in runs}) > 1:
            raise UsageError(
                f"the runs of {file.parent} were evaluated on different data (provenance.{part}); allowed: one data "
                "set and one split, on which every run has to reach the target"
            )
    return found


def _target(file: Path, document: Mapping[str, Any], runs: Sequence[Result]) -> Target:
    stated = stated_goals(runs)
    own = document.get("target")
    if own is not None:
        stored = _mapping(own, file, "target")
        target = Target(metric=stored.get("metric", ""), goal=stored.get("goal", 0.0))
        ours = target.metric == "test_accuracy" and float(target.goal) in stated
        # If no run finished, only the study itself states the origin.
        origin = "recipe" if ours or (not runs and stored.get("origin") == "recipe") else "asked"
        return Target(metric=target.metric, goal=float(target.goal), origin=origin)
    if len(stated) != 1:
        raise UsageError(
            f"the study {file.parent} states {'no target' if not stated else 'several targets'}; allowed: one, in the "
            "recipe's TimeToAccuracy or EpochsToAccuracy; remedy: deep5 study … --target accuracy=97"
        )
    return Target(metric="test_accuracy", goal=stated.pop())


def _by_seeds(
    file: Path, candidates: Mapping[str, Any], runs: Mapping[str, Sequence[Result]]
) -> tuple[dict[str, dict[int, Result]], dict[str, dict[int, str]]]:
    """The listed runs, and the reasons for missing ones, by candidate and seed; each seed has one or the other."""
    by_seed = {name: _by_seed(file, name, own) for name, own in runs.items()}
    failed = {name: _failed(file, name, own) for name, own in candidates.items()}
    for name, own in failed.items():
        if both := own.keys() & by_seed[name].keys():
            raise UsageError(
                f"{file}: the seed {min(both)} of {name!r} has a run and a failure; allowed: one of them; the file is "
                "damaged"
            )
    return by_seed, failed


def _failed(file: Path, name: str, own: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    for text in _texts(own, file, name, "failures"):
        match = FAILED.fullmatch(text)
        if match is None or int(match[1]) in found:
            raise UsageError(
                f"{file}: a failure of {name!r} is {brief(text)}; allowed: 'seed N: why', each seed once; the file is "
                "damaged"
            )
        found[int(match[1])] = match[2]
    return found


def _by_seed(file: Path, name: str, runs: Sequence[Result]) -> dict[int, Result]:
    found: dict[int, Result] = {}
    for result in runs:
        seed = result.document["seeds"].get("run")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"{result.folder} states the seed {brief(seed)}; allowed: an integer")
        if seed in found:
            raise UsageError(
                f"{file}: two runs of {name!r} have the seed {seed}; allowed: each seed once, since a repetition with "
                "the same seed says nothing about convergence"
            )
        found[seed] = result
    return found


def _seeds(file: Path, document: Mapping[str, Any], known: Sequence[Mapping[int, Any]]) -> list[int]:
    """The declared seeds; for an older study, all seeds that any candidate has."""
    seen = sorted(set().union(*known))
    declared = document.get("seeds", seen)
    whole = isinstance(declared, list) and all(isinstance(s, int) and not isinstance(s, bool) for s in declared)
    if not whole or not declared or len(set(declared)) < len(declared) or not set(seen) <= set(declared):
        raise UsageError(
            f"{file}: the seeds are {brief(declared)}, and there are runs of {brief(seen)}; allowed: each declared once"
        )
    return list(declared)
