"""Checks one study: every declared run exists, is listed, and has its own seed; the summaries follow from the runs."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from statistics import mean, stdev
from typing import Any

from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.own_optimizer import without_kernel
from deep5.audit.runs import audit_run
from deep5.audit.scaling import scaling_again
from deep5.audit.sets import Together
from deep5.audit.settings import check_runs_alike, check_set
from deep5.audit.target_summary import target_summary
from deep5.results.kind import RESULT, RUN_KIND, STUDY, kind_of
from deep5.results.result import Result
from deep5.results.study.record import FAILED, RUNS, STUDY_VERSION, moment
from deep5.results.time_to_target import Reached, Target, stated_goals, time_to_target

__all__ = ["audit_study"]

_MOST = 100_000
# Required fields of study.json: a missing one would disable the checks that use it.
_STATED = {
    "schema_version", "recipe", "hash", "size", "provenance", "finished", "resumed", "seeds", "target", "candidates",
    "notes",
}  # fmt: skip
_KNOWN = {
    *_STATED, "time_limit_s", "memory_limit_bytes", "process_per_run", "scaling", "source", "engine", "workers",
}  # fmt: skip
# Units of what depends on the machine, and the end of others.
_TIMES, _PER_SECOND = ("s", "ms", "us", "ns"), "/s"
# Relation and unit of a target, by its metric.
_TARGETS = {"test_accuracy": (">=", "%"), "test_loss": ("<=", "nat")}
_OF_CANDIDATE = {"settings", "optimizer", "runs", "seeds", "failures", "metrics", "time_to_target"}


def audit_study(root: Path, ledger: Ledger, ledgers: list[Ledger]) -> None:
    """Check a study's folder, and every run in it.

    Args:
        root: The resolved folder.
        ledger: Receives the findings of the study.
        ledgers: One ledger per run is appended.
    """
    with ledger.part(11, STUDY):
        document = json_of(root, STUDY)
        missing = sorted(_STATED - document.keys())
        ledger.hold(
            11, not missing, f"{STUDY} does not state its {', '.join(missing)}; allowed: what deep5 writes there"
        )
        ledger.same(11, f"the schema version of {STUDY}", document["schema_version"], STUDY_VERSION)
        candidates = document["candidates"]
        _check_known(ledger, document)
        listed = [(name, str(path)) for name, own in candidates.items() for path in own["runs"]]
        paths = [path for _, path in listed]
        ledger.hold(11, len(set(paths)) == len(paths), "a run is listed twice")
        runs: dict[str, Result] = {}
        together = Together(ledger, study=True)
        for path in dict.fromkeys(paths):
            run = _run(root, path, ledger, ledgers)
            if run is not None:
                runs[path] = run
                together.add(path, run)
        _check_listed(ledger, root, document, set(paths))
        _check_planned(ledger, document, runs)
        _check_origin(ledger, document, runs)
        for name, own in candidates.items():
            with ledger.part(9, f"the statements about {name}"):
                _check_candidate(ledger, document, name, own, runs)
        with ledger.part(9, "the statements about scaling"):
            _check_scaling(ledger, document, runs)
        _check_alike(ledger, document, runs)


def _check_known(ledger: Ledger, document: Mapping[str, Any]) -> None:
    own = {f"candidates.{name}": (row, _OF_CANDIDATE) for name, row in document["candidates"].items()}
    for place, (row, known) in {STUDY: (document, _KNOWN), **own}.items():
        odd = sorted(row.keys() - known)
        ledger.hold(11, not odd, f"{place} states {', '.join(odd)!s:.100}; allowed: what deep5 writes there")


def _run(root: Path, path: str, ledger: Ledger, ledgers: list[Ledger]) -> Result | None:
    """A listed run, if it is in the study's folder."""
    folder = root / path
    try:
        # A link that leads back into the folder is also rejected.
        within = folder.resolve() == folder and folder.is_relative_to(root) and folder != root
    except (OSError, RuntimeError, ValueError):
        within = False
    if not ledger.hold(
        11,
        within,
        f"{path!r:.100} is listed as a run, and is not a separate folder within the study's; allowed: a folder there",
    ):
        return None
    kind = None
    with ledger.part(14, f"the kind of {path!r:.100}"):
        kind = kind_of(folder)
        ledger.hold(11, kind == RUN_KIND, f"the run {path!r:.100} is listed, and does not exist")
    if kind != RUN_KIND:
        return None
    own = Ledger(f"{ledger.folder}/{path}")
    ledgers.append(own)
    result = audit_run(folder, own)
    if result is not None:
        ledger.hold(
            11,
            result.status == "success",
            f"{path} is listed as finished, and its status is {result.status}",
        )
    return result


def _timed(document: Mapping[str, Any]) -> bool:
    """Whether its runs followed each other; with several workers, no times are stated. Older studies have one."""
    return bool(document.get("workers", 1) == 1)


def _check_listed(ledger: Ledger, root: Path, document: Mapping[str, Any], listed: set[str]) -> None:
    """Check run folders that are not listed: failures are reported, others were interrupted or dropped."""
    folder = root / RUNS
    if not ledger.hold(11, folder.is_dir() and not folder.is_symlink(), f"there is no folder {RUNS}"):
        return
    reported = sum(len(own["failures"]) for own in document["candidates"].values())
    failed = 0
    ended: list[tuple[datetime, str]] = []
    inner = list(islice(folder.iterdir(), _MOST + 1))
    ledger.hold(11, len(inner) <= _MOST, f"there are more than {_MOST} runs; allowed: at most as many")
    for path in sorted(inner):
        name = f"{RUNS}/{path.name}"
        if path.name.startswith(".") or name in listed or path.is_symlink() or not path.is_dir():
            continue
        if kind_of(path) != RUN_KIND:
            _check_attempts(ledger, root, document, name, listed)
            continue
        with ledger.part(11, name):
            if kind_of(path) != RUN_KIND:
                continue
            found = json_of(root, f"{name}/{RESULT}")
            if found["status"] == "success":
                ended.append((moment(found["started"]), name))
            else:
                failed += 1
    resumed = _resumed(ledger, document)
    # Each interruption breaks off at most one run, which starts again; or the run had finished but was not listed yet.
    ends = len(resumed) + _unfinished(document)
    _check_broken_off(ledger, ended, resumed, ends)
    ledger.hold(
        11,
        len(ended) + max(0, failed - reported) <= ends,
        f"{failed} runs failed, {reported} failures are listed, and {len(ended)} runs finished and are not listed; "
        f"allowed: {ends} more than are listed, one for each interruption of the study",
    )
    if resumed:
        ledger.skip("a run that was interrupted and started again: the study states that it was resumed")


def _check_attempts(ledger: Ledger, root: Path, document: Mapping[str, Any], name: str, listed: set[str]) -> None:
    """Check the folder of a run, with a folder per attempt: of finished attempts, one is listed.

    Others may have finished on a machine that was taken for lost. Of an unfinished study, the last runs may not be
    listed yet; and a failure may have a complete run, such as one with another environment.
    """
    with ledger.part(11, name):
        counted = [PurePosixPath(path).parent for path in listed if path.startswith(f"{name}/")]
        hosts = {_host(root, folder) for folder in counted}
        reported = {
            int(found[1])
            for own in document["candidates"].values()
            for found in map(FAILED.fullmatch, own["failures"])
            if found
        }
        for path in sorted(islice((root / name).glob("*/*"), _MOST)):
            place = PurePosixPath(name, path.parent.name, path.name)
            if path.name.startswith(".") or path.is_symlink() or str(place) in listed or kind_of(path) != RUN_KIND:
                continue
            found = json_of(root, f"{place}/{RESULT}")
            if found["status"] != "success":
                continue
            if counted:
                fits = place.parent not in counted and _host(root, place.parent) not in hosts
            else:
                fits = _unfinished(document) or found["seeds"]["run"] in reported
            ledger.hold(11, fits, f"the run {place} finished, and is not listed: it was dropped")


def _host(root: Path, folder: PurePosixPath) -> object:
    """The machine of an attempt."""
    return json_of(root, f"{folder}/attempt.json")["host"]


def _resumed(ledger: Ledger, document: Mapping[str, Any]) -> list[datetime]:
    """When the study was resumed; times that are not in deep5's format count as never."""
    reported = document.get("resumed", [])
    with ledger.part(11, f"resumed in {STUDY}"):
        if ledger.hold(
            11, isinstance(reported, list), f"resumed in {STUDY} is {reported!r:.60}; allowed: a list of times"
        ):
            return sorted(map(moment, reported))
    return []


def _check_broken_off(
    ledger: Ledger, ended: Sequence[tuple[datetime, str]], resumed: Sequence[datetime], ends: int
) -> None:
    """Of the finished but unlisted runs, at most one began between two consecutive resumptions of the study."""
    last = -1
    for began, name in sorted(ended):
        # Times are in whole seconds: a run that began in the second of a resumption counts on either side.
        place = max(bisect_left(resumed, began), last + 1)
        fits = place <= bisect_right(resumed, began) and place < ends
        if ledger.hold(11, fits, f"the run {name} finished, and is not listed: it was dropped"):
            last = place


def _unfinished(document: Mapping[str, Any]) -> bool:
    reported = any("not finished" in note or "interrupted" in note for note in document["notes"])
    return document.get("finished", not reported) is not True


def _check_planned(ledger: Ledger, document: Mapping[str, Any], runs: Mapping[str, Result]) -> None:
    """Every candidate has every seed once: as a run, or as a failure."""
    seeds: dict[str, list[int | None]] = {}
    for name, own in document["candidates"].items():
        ledger.hold(
            11,
            len(own["seeds"]) == len(own["runs"]),
            f"{name} has {len(own['runs'])} runs and {len(own['seeds'])} seeds",
        )
        failed = [FAILED.fullmatch(reported) for reported in own["failures"]]
        ledger.hold(11, all(failed), f"a failure of {name} does not state its seed")
        seeds[name] = [*own["seeds"], *(int(found[1]) for found in failed if found)]
        twice = sorted((seed for seed, count in Counter(seeds[name]).items() if count > 1), key=str)
        ledger.hold(11, not twice, f"repetitions of {name} share the seeds {twice}")
    planned = {seed for own in seeds.values() for seed in own}
    if "seeds" in document:
        odd = sorted(planned - set(document["seeds"]), key=str)
        ledger.hold(11, not odd, f"there are runs of the seeds {odd}, which are not declared")
        planned |= set(document["seeds"])
    for name, found in seeds.items():
        missing = sorted(planned - set(found), key=str)
        if missing and _unfinished(document):
            ledger.skip("missing runs: the study states that it is not finished")
            continue
        ledger.hold(
            11, not missing, f"{name} has no run and no failure of the seeds {missing}, which are declared: dropped"
        )


def _check_candidate(
    ledger: Ledger, document: Mapping[str, Any], name: str, own: Mapping[str, Any], runs: Mapping[str, Result]
) -> None:
    results = [runs[path] for path in own["runs"] if path in runs]
    if len(results) < len(own["runs"]):
        ledger.skip(f"the statements about {name}: not all of its runs can be read")
        return
    ledger.same(11, f"{name}: the seeds of its runs", own["seeds"], [r.document["seeds"].get("run") for r in results])
    if "optimizer" in own:  # older studies do not state it
        follows = without_kernel(results[0].document) if results else None
        ledger.same(14, f"{name}: its optimizer", own["optimizer"], follows)
    _check_target(ledger, document, name, own, results)
    values: dict[str, list[float]] = {}
    for result in results:
        recipe = result.document["recipe"]
        ledger.same(14, f"{name}: the recipe of {result.folder.name}", recipe["name"], document["recipe"])
        ledger.same(14, f"{name}: the size of {result.folder.name}", recipe["size"], document["size"])
        if "hash" in document:
            ledger.same(14, f"{name}: the fixed part of {result.folder.name}", recipe["hash"], document["hash"])
        check_set(ledger, f"{name}: {result.folder.name}", own["settings"], parts_of(result.document))
        for verdict in result.verdicts:
            unit = str(verdict.unit)
            if verdict.value is not None and (_timed(document) or not (unit in _TIMES or unit.endswith(_PER_SECOND))):
                values.setdefault(verdict.label, []).append(verdict.value)
    check_runs_alike(ledger, name, results)
    stored = own["metrics"]
    ledger.same(9, f"{name}: its metrics", sorted(stored), sorted(values))
    for label, found in values.items():
        reported = stored[label]
        ledger.same(9, f"{name}: the values of {label}", [float(value) for value in reported["values"]], found)
        finite = all(map(math.isfinite, found))
        ledger.same(9, f"{name}: the mean of {label}", reported["mean"], mean(found) if finite else None)
        spread = stdev(found) if finite and len(found) > 1 else None
        ledger.same(9, f"{name}: the deviation of {label}", reported["deviation"], spread)


def _check_scaling(ledger: Ledger, document: Mapping[str, Any], runs: Mapping[str, Result]) -> None:
    """Check speedups and efficiencies against the runs; older studies have none."""
    by_candidate = {name: [runs.get(path) for path in own["runs"]] for name, own in document["candidates"].items()}
    if any(run is None for own in by_candidate.values() for run in own):
        ledger.skip("the statements about scaling: not all of the study's runs can be read")
    elif "scaling" in document:
        there = {name: [run for run in own if run is not None] for name, own in by_candidate.items()}
        _check_scaled(ledger, document["scaling"], scaling_again(there) if _timed(document) else [])


def _check_scaled(ledger: Ledger, stored: Sequence[Mapping[str, Any]], follows: Sequence[Mapping[str, Any]]) -> None:
    what = "the statements about scaling"
    if not ledger.same(9, what, [_unnoted(own) for own in stored], [_unnoted(own) for own in follows]):
        return
    for own, due in zip(stored, follows, strict=True):
        notes = own["notes"]
        fits = len(notes) == len(due["notes"]) and all(
            part in note for note, parts in zip(notes, due["notes"], strict=True) for part in parts
        )
        ledger.hold(9, fits, f"{what}: the notes are {notes!r:.100}; due: {due['notes']!r:.100}")


def _unnoted(scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in scaling.items() if field != "notes"}


def _check_target(
    ledger: Ledger, document: Mapping[str, Any], name: str, own: Mapping[str, Any], results: Sequence[Result]
) -> None:
    """Check the time to the target against the runs: a failed run took infinitely long."""
    reported = document.get("target")
    if reported is None:
        ledger.same(11, f"{name}: the time to a target; there is no target", own.get("time_to_target"), None)
        return
    target = Target(metric=reported["metric"], goal=float(reported["goal"]), origin=reported["origin"])
    stated = (reported["relation"], reported["unit"])
    ledger.same(11, "the relation and the unit of the target", stated, _TARGETS[target.metric])
    reached = {result.document["seeds"]["run"]: time_to_target(result, target) for result in results}
    for failure in own["failures"]:
        seed, _, reason = failure.partition(": ")
        reached[int(seed.removeprefix("seed "))] = Reached.never(f"failed: {reason}")
    order = [seed for seed in document["seeds"] if seed in reached]
    follows = target_summary({seed: reached[seed] for seed in order}, timed=_timed(document))
    ledger.same(11, f"{name}: the time to a {target}", own["time_to_target"], follows)


def _check_origin(ledger: Ledger, document: Mapping[str, Any], runs: Mapping[str, Result]) -> None:
    """A target reported as the recipe's own is one that the recipe of the runs states."""
    reported = document.get("target")
    if reported is None or reported["origin"] != "recipe" or not runs:
        return
    goals = stated_goals(runs.values())
    ledger.hold(
        11,
        reported["metric"] == "test_accuracy" and float(reported["goal"]) in goals,
        f"the target {reported['metric']!r:.40} {reported['goal']!r:.40} is stored as the recipe's; its runs state "
        f"{sorted(goals)!s:.100}",
    )


def _check_alike(ledger: Ledger, document: Mapping[str, Any], runs: Mapping[str, Result]) -> None:
    """Runs of one study have one environment, one recipe file, and one precision.

    Without times, candidates may differ in their number of processors, which belongs to the environment.
    """
    paths = [own["runs"] for own in document["candidates"].values()]
    for group in [list(runs)] if _timed(document) else paths:
        environments = {runs[path].document["provenance"]["environment"] for path in group if path in runs}
        ledger.hold(14, len(environments) <= 1, f"the runs of one study have {len(environments)} environments")
    sources: Sequence[Any] = list({run.document["provenance"]["recipe_source"] for run in runs.values()})
    ledger.hold(14, len(sources) <= 1, f"the runs of one study have {len(sources)} recipe files")
    for key in ("dtype", "compute_dtype", "tf32"):
        found = {
            (str(parts_of(run.document).get("precision")), str(value))
            for run in runs.values()
            if run.document["numerics"] is not None
            for value in [run.document["numerics"].get(key)]
        }
        precisions = [precision for precision, _ in found]
        ledger.hold(
            2, len(set(precisions)) == len(precisions), f"runs of one precision have different {key}: {sorted(found)}"
        )
