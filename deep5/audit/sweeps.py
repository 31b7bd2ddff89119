"""Checks one sweep: every trial has its run, whose settings and value are the ones stated; the budget follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.audit.runs import audit_run
from deep5.results.kind import RUN_KIND, SWEEP, kind_of
from deep5.results.result import Result
from deep5.results.sweep.log import read_trials
from deep5.results.sweep.record import RUNS, SWEEP_VERSION
from deep5.results.sweep.trial import Trial

__all__ = ["audit_sweep"]

_STATED = {
    "schema_version", "recipe", "hash", "size", "space", "settings", "goal", "sampler", "pruner", "trials", "seed",
    "parallel", "time_limit_s", "memory_limit_bytes", "engine", "workers", "provenance", "started", "resumed",
    "finished", "notes", "budget", "best",
}  # fmt: skip
_STATES = ("finished", "pruned", "failed")
_BY_TEST = "test samples choose the settings"


def audit_sweep(root: Path, ledger: Ledger, ledgers: list[Ledger]) -> None:
    """Check a sweep's folder, and every run in it.

    Args:
        root: The resolved folder.
        ledger: Receives the findings of the sweep.
        ledgers: One ledger per run is appended.
    """
    with ledger.part(11, SWEEP):
        document = json_of(root, SWEEP)
        odd = sorted(_STATED ^ document.keys())
        ledger.hold(11, not odd, f"{SWEEP} lacks or adds {', '.join(odd)!s:.100}; allowed: what deep5 writes there")
        ledger.same(11, f"the schema version of {SWEEP}", document["schema_version"], SWEEP_VERSION)
        trials = read_trials(root)
        ended = [trial for trial in trials if trial.state is not None]
        ledger.hold(
            11,
            not document["finished"] or len(ended) == document["trials"],
            f"it is finished with {len(ended)} ended trials of {document['trials']}",
        )
        _check_listed(ledger, root, trials)
        hashes = set()
        for trial in ended:
            with ledger.part(9, f"the trial {trial.number}"):
                result = _run(root, trial, ledger, ledgers)
                if result is not None:
                    _check_trial(ledger, document, trial, result)
                    provenance = result.document["provenance"]
                    hashes.add((provenance["data"], provenance["split"], provenance["environment"]))
        ledger.hold(12, len(hashes) <= 1, "its runs differ in data, split, or machine and software")
        with ledger.part(9, "the budget and the best trial"):
            if document["finished"]:
                _check_summary(ledger, document, ended)
        chosen = document["goal"]["samples"]
        noted = any(str(note).startswith(_BY_TEST) for note in document["notes"])
        ledger.same(12, "the note that test samples choose the settings", noted, chosen == "test")


def _check_listed(ledger: Ledger, root: Path, trials: list[Trial]) -> None:
    """Every folder below `runs` belongs to a proposed trial."""
    known = {f"{trial.number:05d}" for trial in trials}
    there = {path.name for path in (root / RUNS).iterdir() if not path.name.startswith(".")}
    ledger.hold(11, there <= known, f"the runs {', '.join(sorted(there - known))!s:.100} belong to no trial")


def _run(root: Path, trial: Trial, ledger: Ledger, ledgers: list[Ledger]) -> Result | None:
    if trial.run is None:
        ledger.hold(11, trial.state == "failed", f"the trial {trial.number} is {trial.state} without a run")
        return None
    folder = root / trial.run
    within = folder.resolve() == folder and folder.parent.parent == root / RUNS / f"{trial.number:05d}"
    if not ledger.hold(11, within, f"the run {trial.run!r:.100} is not in the folder of the trial {trial.number}"):
        return None
    if not ledger.hold(11, kind_of(folder) == RUN_KIND, f"the run {trial.run!r:.100} does not exist"):
        return None
    own = Ledger(f"{ledger.folder}/{trial.run}")
    ledgers.append(own)
    return audit_run(folder, own)


def _check_trial(ledger: Ledger, document: Mapping[str, Any], trial: Trial, result: Result) -> None:
    who, recipe = f"the trial {trial.number}", result.document["recipe"]
    for key, field in (("hash", "hash"), ("size", "size")):
        ledger.same(14, f"the {key} of {who}", recipe[field], document[key])
    for key, value in {**document["settings"], **trial.settings}.items():
        name, _, entry = key.partition(".")
        found = recipe["mutable"].get(name)
        for part in entry.split(".") if entry else ():
            found = found.get(part) if isinstance(found, Mapping) else None
        ledger.same(11, f"{key} of {who}", found, value)
    goal = document["goal"]["metric"]
    if trial.state == "finished":
        ledger.same(11, f"the status of {who}", result.status, "success")
        ledger.same(9, f"{goal} of {who}", trial.value, result.metric(goal))
        if trial.curve:
            ledger.same(9, f"the end of the curve of {who}", trial.curve[-1][0], trial.epochs)
    elif trial.state == "pruned":
        ledger.same(9, f"{goal} of {who}", trial.value, trial.curve[-1][1])


def _check_summary(ledger: Ledger, document: Mapping[str, Any], ended: list[Trial]) -> None:
    states = Counter(trial.state for trial in ended)
    budget = {
        "trials": len(ended),
        **{state: states[state] for state in _STATES},  # type: ignore[index]
        "epochs": sum(trial.epochs for trial in ended),
        "steps": sum(trial.steps for trial in ended),
        "runs_s": math.fsum(trial.wall_s for trial in ended),
        "hosts": sorted({trial.host for trial in ended if trial.host}),
    }
    ledger.same(9, "the budget", document["budget"], budget)
    sign = -1.0 if document["goal"]["direction"] == "higher" else 1.0
    values = [
        (sign * trial.value, trial.number)
        for trial in ended
        if trial.state == "finished" and trial.value is not None and math.isfinite(trial.value)
    ]
    best = None if not values else min(values)[1]
    ledger.same(9, "the best trial", (document["best"] or {}).get("number"), best)
    if best is not None:
        own = next(trial for trial in ended if trial.number == best)
        ledger.same(9, "its value", document["best"]["value"], own.value)
        ledger.same(9, "its settings", document["best"]["settings"], dict(own.settings))
