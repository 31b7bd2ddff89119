"""Rules 11 and 14: the recipe that ran has the declared settings, and everything else is the same for all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.own_optimizer import without_kernel
from deep5.recipe.keys import base
from deep5.results.result import Result

__all__ = ["check_candidate_recipes", "check_runs_alike", "check_set"]

# The framework is what a comparison varies; the executor is another name for it.
_FRAMEWORK = {"framework", "frameworks", "executor"}
# A recipe contains the object of a file or module where a setting has its name; `native:adam` is a name in both.
_ELSEWHERE = re.compile(r"\.py:|^(?!native:)[\w.]+:[\w.<>]+$")


def check_set(ledger: Ledger, who: str, settings: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Check that the settings are in the recipe that ran.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        settings: As declared; `optimizer_kwargs.lr` is one entry, and is applied after the whole.
        parts: Fixed and mutable parts of the recipe that ran.
    """
    due = {key: value for key, value in settings.items() if "." not in key}
    for key, value in settings.items():
        name, dot, entry = key.partition(".")
        if dot:
            due[name] = {**(due.get(name, parts.get(name)) or {}), entry: value}
    for key, value in due.items():
        if key == "init" or (_names_elsewhere(value) and parts.get(key) != value):
            ledger.skip("settings that name a file or a class: its content is not stored")
            continue
        ledger.same(14, f"{who}: {key} of its recipe, by its settings", parts.get(key), value)


def _names_elsewhere(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_names_elsewhere, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_names_elsewhere, value))
    return isinstance(value, str) and _ELSEWHERE.search(value) is not None


def check_candidate_recipes(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """For a comparison: the recipes of candidates differ only in framework and settings.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    fixed, reported = document["recipe"]["fixed"], document["recipe"]["mutable"]
    candidates = document["candidates"]
    own: Mapping[str, Any] = next((row["settings"] for row in candidates if row["label"] == document["baseline"]), {})
    firsts: dict[str, Mapping[str, Any]] = {}
    for row in candidates:
        label, recipe = row["label"], row["recipe"]
        check_set(ledger, label, row["settings"], {**fixed, **recipe})
        ledger.same(
            14,
            f"{label}: the recipe, compared with the comparison's, except framework and settings",
            _without(recipe, {**row["settings"], **own}),
            _without(reported, {**row["settings"], **own}),
        )
        first = firsts.setdefault(json.dumps(row["settings"], sort_keys=True), row)
        ledger.same(
            14,
            f"{label}: the recipe, compared with that of {first['label']} with the same settings, except the framework",
            _without(recipe, {}),
            _without(first["recipe"], {}),
        )
        _check_batches(ledger, label, {**fixed, **recipe}, document["results"])


def _check_batches(ledger: Ledger, label: str, parts: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> None:
    """The timed batches had the recipe's size."""
    own = [row for row in results if row["candidate"] == label and row["batch_size"] is not None]
    size = parts.get("batch_size")
    if not own:
        return
    if not isinstance(size, int) or parts.get("train_sampler", "shuffle") not in ("shuffle", "ordered"):
        ledger.skip("sizes of batches: the recipe states no number, or its sampler determines them")
        return
    for found in own:
        ledger.hold(
            14,
            found["batch_size"] == size,
            f"{label}, {found['workload']}: timed with batches of {found['batch_size']}; its recipe has {size}",
        )


def _without(parts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parts that neither framework nor settings change; a new component drops the previous component's arguments."""
    changed = _FRAMEWORK | {base(key.partition(".")[0]) for key in settings}
    return {key: value for key, value in parts.items() if base(key) not in changed}


def check_runs_alike(ledger: Ledger, name: str, results: Sequence[Result]) -> None:
    """For a study: the runs of a candidate differ only in their seed.

    Args:
        ledger: Receives the findings.
        name: Name of the candidate.
        results: Its runs.
    """
    for result in results[1:]:
        stored, first = (
            {**run.document["recipe"]["fixed"], **run.document["recipe"]["mutable"], "seed": None}
            for run in (result, results[0])
        )
        beside = f"compared with {results[0].folder.name}"
        ledger.same(14, f"{name}: the recipe of {result.folder.name} {beside}, except the seed", stored, first)
        for key, rule in (("split", 12), ("data", 1)):
            own, other = (run.document["provenance"][key] for run in (result, results[0]))
            ledger.same(rule, f"{name}: the {key} of {result.folder.name} {beside}", own, other)
        ledger.same(
            14,
            f"{name}: the optimizer of {result.folder.name} {beside}",
            *(without_kernel(run.document) for run in (result, results[0])),
        )
