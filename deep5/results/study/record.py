"""`Study`: the runs of a study and their outcomes, as a document and as tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from deep5.core.errors import brief
from deep5.core.notebook import render
from deep5.core.quantities import counts_time
from deep5.core.screen import on_a_screen
from deep5.results.ran_optimizers import RanOptimizer, optimizer_lines, without_kernel
from deep5.results.result import Result
from deep5.results.screen_table import print_table
from deep5.results.study.scaling import Scaling, scaling_cells, scaling_of
from deep5.results.time_to_target import MEASURES, TO_ACCURACY, Reached, Target, median_to_target, summary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["FAILED", "RUNS", "STUDY_VERSION", "TIME", "Study", "moment", "without_mean"]

FAILED = re.compile(r"seed ([0-9]{1,40}): (.*)", re.DOTALL)
"""How a study reports an unfinished run: its seed, and the reason."""

RUNS = "runs"
"""The subfolder of a study's folder that contains its runs."""

STUDY_VERSION = "2"
"""Version of study.json; files without one are older and are also read."""

TIME = "%Y-%m-%dT%H:%M:%SZ"
"""Format of the resumption times in study.json and of the start time in result.json."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of one recipe with several settings and seeds.

    Attributes:
        folder: Contains `study.json`, the charts, and in `runs` one result folder per run.
        recipe: Name of the recipe.
        hash: Hash of its fixed part.
        size: Size of the recipe.
        seeds: As declared; each candidate has all of them.
        settings: By candidate, in JSON types.
        runs: The finished runs, by candidate, in the order of the seeds.
        failures: The outcome of the unfinished runs, by candidate.
        target: The target of the runs, or None.
        reached: How long each run took to the target, by candidate and seed, failed runs included; empty without a
            target.
        finished: Whether every run was made.
        provenance: Hashes of all inputs of the runs, and of the environment at the start; deep5's commit.
        resumed: The times of resumption after an interruption; an interrupted run starts again.
        time_limit_s: Time limit per run.
        memory_limit_bytes: Memory limit per run; None: nine tenths of the free memory.
        source: The name or absolute path by which `deep5 run` finds the recipe.
        engine: Where its runs were carried out.
        workers: Number of runs at the same time; with several, times do not compare, and none is stated.
        notes: Notes, one sentence each.
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
    provenance: Mapping[str, Any] = field(default_factory=dict)
    resumed: Sequence[str] = ()
    time_limit_s: float | None = None
    memory_limit_bytes: int | None = None
    source: str = ""
    engine: str = "local"
    workers: int = 1
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether its times compare."""
        return self.workers == 1

    @property
    def scaling(self) -> list[Scaling]:
        """Scaling over candidates that differ in their number of ranks."""
        return scaling_of(self.runs) if self.timed else []

    @property
    def optimizers(self) -> dict[str, RanOptimizer]:
        """Each candidate's optimizer, as its first run describes it."""
        firsts = {name: next((run.document for run in self.runs[name]), None) for name in self.settings}
        return {
            name: RanOptimizer(
                settings=self.settings[name],
                parts={} if first is None else {**first["recipe"]["fixed"], **first["recipe"]["mutable"]},
                described=without_kernel(((first or {}).get("components") or {}).get("optimizer")),
            )
            for name, first in firsts.items()
        }

    def __str__(self) -> str:
        return on_a_screen(self, f"deep5 report {self.folder} shows all")

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)

    def document(self) -> dict[str, Any]:
        """The runs and their outcomes in JSON types; for each metric the values, their mean and deviation."""
        candidates: dict[str, dict[str, Any]] = {}
        for name in self.settings:
            candidates[name] = {
                "settings": self.settings[name],
                "optimizer": without_kernel(self.optimizers[name].described),
                "runs": [str(result.folder.relative_to(self.folder)) for result in self.runs[name]],
                "seeds": [result.document["seeds"].get("run") for result in self.runs[name]],
                "failures": list(self.failures[name]),
                "metrics": {metric: _summary(values) for metric, values in self._values(name).items()},
                "time_to_target": None
                if self.target is None
                else summary(self.reached.get(name, {}), timed=self.timed),
            }
        return {
            "schema_version": STUDY_VERSION,
            "recipe": self.recipe,
            "hash": self.hash,
            "size": self.size,
            "provenance": dict(self.provenance),
            "finished": self.finished,
            "resumed": list(self.resumed),
            "time_limit_s": self.time_limit_s,
            "memory_limit_bytes": self.memory_limit_bytes,
            "process_per_run": True,
            "source": self.source,
            "engine": self.engine,
            "workers": self.workers,
            "seeds": list(self.seeds),
            "target": None if self.target is None else self.target.document(),
            "candidates": candidates,
            "scaling": [scaling.document() for scaling in self.scaling],
            "notes": list(self.notes),
        }

    def _values(self, name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for result in self.runs[name]:
            for verdict in result.verdicts:
                if verdict.value is not None and (self.timed or not counts_time(verdict.unit)):
                    found.setdefault(verdict.label, []).append(verdict.value)
        return found

    def print(self, console: Console) -> None:
        """Print a row per candidate: each metric's mean and deviation over the seeds; time to the target; scaling.

        Args:
            console: The console to print on.
        """
        from rich.text import Text

        heads = self._heads()
        rows = []
        for name in self.settings:
            values = self._values(name)
            rows.append(
                [name, *(_mean_and_spread(values[metric], metric) if metric in values else "-" for metric in heads)]
            )
        if heads:
            print_table(console, ["candidate", *heads.values()], rows)
        for line in optimizer_lines(self.optimizers):
            console.print(Text(line), overflow="fold")
        if self.target is not None:
            console.print(Text(f"to a {self.target}: median over the seeds (least … most)"), overflow="fold")
            measures = [measure for measure in MEASURES if self.timed or measure != "seconds"]
            print_table(
                console,
                ["candidate", *measures, "reached by"],
                [[name, *_cells(self.reached.get(name, {}), measures)] for name in self.settings],
            )
        for scaling in self.scaling:
            console.print(Text(f"{scaling.title}: median over the seeds"), overflow="fold")
            print_table(console, *scaling_cells(scaling))
            for note in scaling.notes():
                console.print(Text(note), overflow="fold")
        for line in self._lost():
            console.print(Text(line), overflow="fold")
        for note in self.notes:
            console.print(Text(f"note: {note}"), overflow="fold")
        console.print(Text(str(self.folder)), soft_wrap=True)

    def _heads(self) -> dict[str, str]:
        """Column heads by metric; the goal accuracy is named, because the study's target may differ from it."""
        heads = {}
        for result in (result for own in self.runs.values() for result in own):
            for verdict, row in zip(result.verdicts, result.document["metrics"], strict=True):
                heading = verdict.label.replace("_", " ")
                if verdict.name in TO_ACCURACY:
                    heading = f"{heading.partition(' ')[0]} to {row['parameters']['target']:g} % (recipe's goal)"
                if self.timed or not counts_time(verdict.unit):
                    heads[verdict.label] = f"{heading} [{verdict.unit}]"
        return heads

    def _lost(self) -> list[str]:
        """Outcomes of runs that failed or diverged: each reason once, with its runs."""
        found = [(name, FAILED.fullmatch(failure)) for name, own in self.failures.items() for failure in own]
        lost = [(name, match[1], match[2]) for name, match in found if match is not None]
        for name, reached in self.reached.items():
            diverged = {seed: str(own.reason) for seed, own in reached.items()}
            lost += [(name, str(seed), why) for seed, why in diverged.items() if why.startswith("diverged")]
        # Each failed run names its own folder; `study.json` keeps the names.
        of_a_run = re.compile(re.escape(f"{self.folder}/") + r"[\w./-]+")
        grouped: dict[str, dict[str, list[str]]] = {}
        for name, seed, why in lost:
            grouped.setdefault(of_a_run.sub("its folder", why), {}).setdefault(name, []).append(seed)
        return [
            "; ".join(
                f"{name}, {f'{len(seeds)} seeds' if len(seeds) > 1 else f'seed {seeds[0]}'}"
                for name, seeds in own.items()
            )
            + f": {why}"
            for why, own in grouped.items()
        ]


def _cells(reached: Mapping[int, Reached], measures: Sequence[str]) -> list[str]:
    """Medians with their ranges if these differ, and how many runs reached the target."""
    if not reached:
        return [*("-" for _ in measures), "no run"]
    cells = []
    for measure in measures:
        values = [getattr(own, measure) for own in reached.values()]
        least, most = min(values), max(values)
        ends = f" ({least:.3g} … {most:.3g})" if least < most else ""
        cells.append(f"{median_to_target(values):.4g}{ends}")
    there = sum(math.isfinite(own.seconds) for own in reached.values())
    return [*cells, f"{there} of {len(reached)}"]


def _summary(values: Sequence[float]) -> dict[str, Any]:
    listed = [value if math.isfinite(value) else str(value) for value in values]
    if not all(map(math.isfinite, values)):
        return {"values": listed, "mean": None, "deviation": None}
    return {"values": listed, "mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def _mean_and_spread(values: Sequence[float], label: str = "") -> str:
    if not all(map(math.isfinite, values)):
        return without_mean(values, label)
    return f"{mean(values):.5g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def moment(stated: object) -> datetime:
    """Parse a time in a document.

    Raises:
        ValueError: It is not a string in the format `TIME`.

    >>> moment("2026-01-31T23:59:00Z").isoformat()
    '2026-01-31T23:59:00+00:00'
    """
    if not isinstance(stated, str):
        raise ValueError(f"{brief(stated)} is not a time; allowed: a string such as 2026-01-31T23:59:00Z")
    return datetime.strptime(stated, TIME).replace(tzinfo=UTC)


def without_mean(values: Sequence[float], label: str) -> str:
    """Why there is no mean: how often a target was not reached, or a metric was not finite.

    Args:
        values: Values of one metric, not all of them finite.
        label: Label of the metric.

    >>> without_mean([1.0, math.inf], "time_to_accuracy"), without_mean([1.0, math.nan], "test_loss")
    ('not reached in 1 of 2', '1 of 2 without a finite value')
    """
    bad = sum(not math.isfinite(value) for value in values)
    if label.startswith(TO_ACCURACY):
        return f"not reached in {bad} of {len(values)}"
    return f"{bad} of {len(values)} without a finite value"
