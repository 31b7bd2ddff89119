"""Options of an interrupted comparison, read from its folder, so that the folder is sufficient to resume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.compare.candidate import MODES, Candidate
from deep5.core.errors import UsageError
from deep5.measuring.scheme import scheme_of
from deep5.results.comparison import ComparisonResult

__all__ = ["options_left"]

_WHO = ("frameworks", "vary", "settings")


def options_left(left: ComparisonResult, given: Mapping[str, Any], recipe: str) -> dict[str, Any]:
    """The options of `deep5.compare.plan.make_plan` of a comparison, each replaced by the one given now, if any.

    Candidates are taken from the folder only if none are given. The folder is untrusted data: no file that it names is
    loaded.

    Args:
        left: The comparison.
        given: Options given now.
        recipe: Name of the recipe given now.

    Raises:
        UsageError: It is of another recipe, or a candidate, or a setting of one, may be a file.
    """
    document = left.document
    if (name := document["recipe"]["name"]) != recipe:
        # Checked before its kind, size, and candidates, which belong to that recipe.
        raise UsageError(
            f"the comparison in {left.folder} is of {name}; got {recipe}; remedy: that recipe, or a new comparison, "
            "without --resume"
        )
    reported = document["measurement"]
    options = {
        "size": document["recipe"]["size"],
        "kind": document["kind"],
        "rigorous": document["mode"] == MODES[True],
        "baseline": document["baseline"],
        "threads": document["threads"],
        "seed": document["seed"],
        "steps": reported["proof_steps"],
        "most": reported["most_processes"],
        "time_limit_s": reported["time_limit_s"],
        "memory_limit_bytes": reported["memory_limit_bytes"],
        "scheme": scheme_of(document["statistics"]),
    }
    if not any(given.get(name) for name in _WHO):
        options["candidates"] = [_candidate(left, row) for row in left.candidates]
    if given.get("rigorous", options["rigorous"]) != options["rigorous"]:
        del options["most"]  # it belongs to the other mode
    return {**options, **given}


def _candidate(left: ComparisonResult, row: Mapping[str, Any]) -> Candidate:
    made = Candidate(label=row["label"], framework=row["framework"], settings=row["settings"])
    for text in made.texts:
        if any(mark in text for mark in "./\\"):
            raise UsageError(
                f"the comparison in {left.folder} names {text!r:.200}, which may be a file; deep5 reads no file that a "
                "result folder names; remedy: repeat the whole command with its --frameworks, --vary and --set"
            )
    return made
