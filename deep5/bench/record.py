"""operators.json: medians, rates, coverage, and the machine's peaks of a run that timed operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.bench.summary import OperatorTimes

__all__ = ["OPERATORS", "operators_document", "unsure"]

OPERATORS = "operators.json"
"""File in a result folder with medians, rates, coverage, and the machine's peaks."""


def operators_document(times: OperatorTimes) -> dict[str, Any]:
    """The content of operators.json."""
    from deep5.bench.summary import series_name

    series: dict[tuple[str, str, str], list[str]] = {}
    for raw in times.raw:
        for entry in raw["series"]:
            key = (entry["problem"], entry["direction"], entry["candidate"])
            series.setdefault(key, []).append(series_name(entry, "samples", raw["process"]))
    rows = [{**row, "series": series[row["problem"], row["direction"], row["candidate"]]} for row in times.rows]
    clocks: list[Mapping[str, Any]] = [
        {name: raw[name] for name in ("process", "resolution_s", "overhead_s", "settings")} for raw in times.raw
    ]
    return {
        "rows": rows,
        "left_out": list(times.left_out),
        "coverage": times.coverage,
        "roofline": {**asdict(times.roofline), "seen": dict(times.roofline.seen)},
        "processes": clocks,
        "warnings": list(times.warnings),
    }


def unsure(times: OperatorTimes) -> list[str]:
    """One line on all numbers that may be unstable; operators.json lists them, with reasons."""
    number = sum(bool(row["warnings"]) for row in times.rows)
    if not number:
        return []
    return [f"{number} of {len(times.rows)} numbers may be unstable; {OPERATORS} lists them with reasons and remedies"]
