"""Check whether a comparison may resume: its earlier and later rounds count together, so nothing else may differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.core.errors import UsageError
from deep5.measuring.calibration import machine_id
from deep5.results.comparison import ComparisonResult

__all__ = ["refuse_another"]

_SAME = ("kind", "mode", "baseline", "threads", "seed", "recipe", "measurement", "provenance")
# Fields of `measurement`: limits do not affect the measured values.
_LIMITS = ("memory_limit_bytes", "time_limit_s")


def refuse_another(left: ComparisonResult, now: Mapping[str, Any]) -> None:
    """Check an interrupted comparison against the one that is to resume it.

    Args:
        left: The interrupted comparison.
        now: comparison.json as the new comparison would begin it.

    Raises:
        UsageError: It is finished, or it has another recipe, other candidates, another machine or environment, or
            another version of deep5.
    """
    document = left.document
    if document["status"] == "success":
        raise UsageError(f"the comparison in {left.folder} is finished; remedy: a new one, without --resume")
    for key in _SAME:
        then = document[key]
        if key == "measurement":
            then = {**then, **{name: now[key][name] for name in _LIMITS}}
        if then != now[key]:
            raise UsageError(
                f"the comparison in {left.folder} has a different {key!r}; allowed: the same command, on "
                "the same machine and versions; remedy: a new one, without --resume"
            )
    known = document["calibration"]
    if known is not None and known["machine"] != machine_id():
        raise UsageError(
            f"the comparison in {left.folder} was started on another machine, or with other processors, and has "
            "their noise floor; remedy: resume it there, or start a new one, without --resume"
        )
    ids = [str((reported["software"].get("commit") or {}).get("id")) for reported in (document, now)]
    if ids[0] != ids[1]:
        raise UsageError(
            f"the comparison in {left.folder} was started by deep5's commit {ids[0]:.12}, and this is {ids[1]:.12}; "
            "allowed: the same; remedy: a new one, without --resume"
        )
    mine, theirs = (
        [(row["label"], row["framework"], row["settings"], row["recipe"]) for row in rows]
        for rows in (now["candidates"], document["candidates"])
    )
    if mine != theirs:
        labels = ["; ".join(row[0] for row in rows) for rows in (theirs, mine)]
        raise UsageError(f"the comparison in {left.folder} is of {labels[0]}; got {labels[1]}")
