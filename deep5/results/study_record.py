"""`Study`: what a study ran and what became of it, as a document and as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from deep5.results.result import Result
from deep5.results.time_to_target import MEASURES, Reached, Target, median_to_target, summary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["STUDY", "STUDY_VERSION", "Study"]

STUDY = "study.json"
"""The file of a study's folder that says what was run and what became of it."""

STUDY_VERSION = "2"
"""Of study.json; those without a version are older, and are read as well."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of one recipe with several settings and seeds.

    Attributes:
        folder: Holds `study.json`, the pictures, and in `runs` a result folder a run.
        recipe: Its name.
        hash: Of its fixed part.
        size: Of the recipe.
        seeds: As declared; each candidate has them all.
        settings: By candidate, in JSON's types.
        runs: By candidate, the runs that came to their end, in the order of the seeds.
        failures: By candidate, what became of those that did not.
        target: What the runs have to reach, or None.
        reached: By candidate and seed, how long each took to the target, failed runs included; empty without one.
        finished: Whether every run was made.
        notes: What is to be known, a sentence each.
    """

    folder: Path
    recipe: str
    hash: str
    size: str
    seeds: Sequence[int]
    settings: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Sequence[Result]]
    failures: Mapping[str, Sequence[str]]
    target: Target | None = None
    reached: Mapping[str, Mapping[int, Reached]] = field(default_factory=dict)
    finished: bool = True
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from deep5.results.report.fragment import study_fragment

        return study_fragment(self.recipe, self.runs, self.failures, self.notes)

    def document(self) -> dict[str, Any]:
        """What was run and what became of it, in JSON's types; of each metric the values, their mean and deviation."""
        candidates: dict[str, dict[str, Any]] = {}
        for name in self.settings:
            candidates[name] = {
                "settings": self.settings[name],
                "runs": [str(result.folder.relative_to(self.folder)) for result in self.runs[name]],
                "seeds": [result.document["seeds"].get("run") for result in self.runs[name]],
                "failures": list(self.failures[name]),
                "metrics": {metric: _summary(values) for metric, values in self._values(name).items()},
                "time_to_target": None if self.target is None else summary(self.reached.get(name, {})),
            }
        return {
            "schema_version": STUDY_VERSION,
            "recipe": self.recipe,
            "hash": self.hash,
            "size": self.size,
            "finished": self.finished,
            "seeds": list(self.seeds),
            "target": None if self.target is None else self.target.document(),
            "candidates": candidates,
            "notes": list(self.notes),
        }

    def _values(self, name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for result in self.runs[name]:
            for verdict in result.verdicts:
                if verdict.value is not None:
                    found.setdefault(verdict.label, []).append(verdict.value)
        return found

    def print(self, console: Console) -> None:
        """A row a candidate: mean and deviation of each metric over the seeds, and the time to the target.

        Args:
            console: Where to print.
        """
        from rich.text import Text

        units = {
            verdict.label: verdict.unit for own in self.runs.values() for result in own for verdict in result.verdicts
        }
        columns = ["candidate", *(f"{name.replace('_', ' ')} [{unit}]" for name, unit in units.items())]
        rows = []
        for name in self.settings:
            values = self._values(name)
            rows.append([name, *(_told(values[metric]) if metric in values else "-" for metric in units)])
        _table(console, columns, rows)
        if self.target is not None:
            console.print(Text(f"to a {self.target}: median over the seeds"), overflow="fold")
            _table(
                console,
                ["candidate", *(f"{measure} to target" for measure in MEASURES), "reached by"],
                [[name, *_cells(self.reached.get(name, {}))] for name in self.settings],
            )
        for name, failed in self.failures.items():
            for reason in failed:
                console.print(Text(f"{name}: {reason}"), overflow="fold")
        for name, reached in self.reached.items():
            for seed, own in reached.items():
                if own.reason is not None and own.reason.startswith("diverged"):
                    console.print(Text(f"{name}: seed {seed}: {own.reason}"), overflow="fold")
        for note in self.notes:
            console.print(Text(f"note: {note}"), overflow="fold")
        console.print(Text(str(self.folder)), soft_wrap=True)


def _table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _cells(reached: Mapping[int, Reached]) -> list[str]:
    """Medians, and how many got there."""
    if not reached:
        return [*("-" for _ in MEASURES), "no run"]
    medians = [median_to_target([getattr(own, measure) for own in reached.values()]) for measure in MEASURES]
    there = sum(math.isfinite(own.seconds) for own in reached.values())
    return [*(f"{value:.4g}" for value in medians), f"{there} of {len(reached)}"]


def _summary(values: Sequence[float]) -> dict[str, Any]:
    listed = [value if math.isfinite(value) else str(value) for value in values]
    if not all(map(math.isfinite, values)):
        return {"values": listed, "mean": None, "deviation": None}
    return {"values": listed, "mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def _told(values: Sequence[float]) -> str:
    if not all(map(math.isfinite, values)):
        return f"{sum(not math.isfinite(value) for value in values)} of {len(values)} without a finite value"
    return f"{mean(values):.5g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")
