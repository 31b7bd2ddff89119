"""A leaderboard: runs of one recipe by settings, ranked over their seeds; equal ranks where no difference is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any

from deep5.core.canonical import canonical_hash
from deep5.core.errors import UsageError, suggestion
from deep5.core.quantities import counts_time
from deep5.core.seeds import generator
from deep5.core.terminal import counted
from deep5.measuring.order_test import holm
from deep5.measuring.samples import median_ends
from deep5.results.result import Result
from deep5.results.schema import metric_labels
from deep5.results.screen_table import print_table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DIVISIONS", "Entry", "Leaderboard", "leaderboard", "summary"]

DIVISIONS = ("closed", "open")

# Divisions of values into two groups that the exact test goes through; of more, it draws so many.
_RESAMPLED = 20_000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Runs with the same settings and different seeds.

    Attributes:
        name: What distinguishes it from the others of its division.
        division: "closed" or "open".
        folders: The runs, by seed.
        values: The metric, by seed.
        accepted: Number of runs that reached all goals of the recipe.
        interval: The ends of the median's interval, at least 95 %; None: there are too few seeds.
        rank: 1 plus the number of entries of the division that are shown to be better.
    """

    name: str
    division: str
    folders: Mapping[int, str]
    values: Mapping[int, float]
    accepted: int
    interval: tuple[float, float] | None
    rank: int

    @property
    def median(self) -> float:
        """The median over the seeds."""
        return median(self.values.values())


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """Entries of one recipe, ranked by one metric.

    Attributes:
        recipe: Name of the recipe.
        size: Its size.
        hash: Hash of its fixed part.
        metric: Label of the metric.
        unit: Its unit.
        direction: Whether higher or lower values are better.
        entries: The best first; of both divisions.
        left_out: Folders that do not count, with the reasons.
    """

    recipe: str
    size: str
    hash: str
    metric: str
    unit: str
    direction: str
    entries: Sequence[Entry]
    left_out: Mapping[str, str]

    def of(self, division: str) -> list[Entry]:
        """The entries of a division, the best first."""
        return [entry for entry in self.entries if entry.division == division]

    def document(self) -> dict[str, Any]:
        """In JSON types."""
        return {
            "recipe": self.recipe,
            "size": self.size,
            "hash": self.hash,
            "metric": {"label": self.metric, "unit": self.unit, "direction": self.direction},
            "entries": [
                {
                    "rank": own.rank,
                    "division": own.division,
                    "name": own.name,
                    "median": own.median,
                    "interval": None if own.interval is None else list(own.interval),
                    "values": {str(seed): value for seed, value in own.values.items()},
                    "accepted": own.accepted,
                    "runs": dict(own.folders),
                }
                for own in self.entries
            ],
            "left_out": dict(self.left_out),
        }

    def rows(self, division: str) -> list[list[str]]:
        """A row of a table per entry of a division: rank, name, median with its interval, seeds, accepted runs."""
        entries = self.of(division)
        ranks = [own.rank for own in entries]
        return [
            [
                f"{own.rank}{'=' if ranks.count(own.rank) > 1 else ''}",
                own.name,
                f"{own.median:.6g}"
                + ("" if own.interval is None else f" ({own.interval[0]:.6g} … {own.interval[1]:.6g})"),
                str(len(own.values)),
                f"{own.accepted} of {len(own.values)}",
            ]
            for own in entries
        ]

    @property
    def columns(self) -> list[str]:
        """Heads of the columns of `rows`."""
        return ["rank", "entry", f"median of {self.metric} [{self.unit}]", "seeds", "goals reached"]

    def print(self, console: Console) -> None:
        """Print a table per division.

        Args:
            console: The console to print on.
        """
        from rich.text import Text

        console.print(
            Text(f"{self.recipe}, size {self.size}: by {self.metric}, {self.direction} is better"), overflow="fold"
        )
        for division in DIVISIONS:
            if rows := self.rows(division):
                console.print(Text(f"{division} division"))
                print_table(console, self.columns, rows)
        for line in self.remarks():
            console.print(Text(line), overflow="fold")

    def remarks(self) -> list[str]:
        """What a reader of the ranks has to know, one sentence each."""
        said = []
        if any(row[0].endswith("=") for division in DIVISIONS for row in self.rows(division)):
            said.append("=: no difference shown between entries of equal rank")
        said += [f"left out: {folder}: {why}" for folder, why in self.left_out.items()]
        return said


def leaderboard(
    runs: Sequence[Result], left_out: Mapping[str, str], *, recipe: str | None, size: str | None, by: str | None
) -> Leaderboard:
    """Rank runs.

    Entries are compared by the values of their seeds: exact two-sided rank tests of all pairs of a division, which hold
    together (Holm). A metric of time, or of amounts per second, compares entries of one machine only.

    Args:
        runs: Audited runs.
        left_out: Folders that do not count, with the reasons.
        recipe: Name of the recipe; None: that of the runs.
        size: Its size; None: that of the runs.
        by: Label of the metric; None: the first one with a goal, or else the first one.

    Raises:
        UsageError: No run, several recipes or sizes, no such metric, or times of several machines.

    References:
        Mann, Whitney, 1947; Holm, 1979.
    """
    out = dict(left_out)
    chosen = [run for run in runs if recipe in (None, run.document["recipe"]["name"])]
    chosen = [run for run in chosen if size in (None, run.document["recipe"]["size"])]
    if not runs:
        raise UsageError(
            f"no run counts: {'; '.join(dict.fromkeys(out.values()))}; allowed: runs and studies of a recipe"
        )
    kinds = {(own["name"], own["size"]) for own in (run.document["recipe"] for run in chosen)}
    # The open division may change the fixed part.
    hashes = {run.document["recipe"]["hash"] for run in chosen if run.division == DIVISIONS[0]}
    if len(kinds) != 1 or len(hashes) > 1:
        there = ", ".join(sorted(f"{name} at size {own}" for name, own in kinds)) or "none"
        parts = f" with {len(hashes)} fixed parts" if len(hashes) > 1 else ""
        why = "; ".join(dict.fromkeys(out.values()))
        raise UsageError(
            f"runs of {there}{parts}{f' ({why})' if why else ''}; allowed: one recipe, at one size, with one fixed "
            "part in the closed division; remedy: --recipe NAME, --size NAME"
        )
    [(name, own_size)] = kinds
    fixed = next(iter(hashes), str(chosen[0].document["recipe"]["hash"]))
    rows = chosen[0].document["metrics"]
    labels = metric_labels(rows)
    with_goal = [label for label, row in zip(labels, rows, strict=True) if row["goal"] is not None]
    chosen_by = next(iter([*with_goal, *labels]), "") if by is None else by
    if chosen_by not in labels:
        allowed = ", ".join(labels) or "none"
        raise UsageError(
            f"{chosen_by!r:.80} is not a metric of {name}; allowed: {allowed}{suggestion(chosen_by, labels)}"
        )
    row = rows[labels.index(chosen_by)]
    groups: dict[tuple[str, str], list[Result]] = {}
    for run in sorted(chosen, key=lambda own: (str(own.document["started"]), str(own.folder))):
        unfit = _unfit(run, chosen_by)
        if unfit is not None:
            out[str(run.folder)] = unfit
            continue
        groups.setdefault((run.division, _identity(run)), []).append(run)
    if not groups:
        raise UsageError(f"no run of {name} counts: {'; '.join(dict.fromkeys(out.values()))}; allowed: at least one")
    if counts_time(str(row["unit"])):
        places = {run.document["provenance"]["environment"] for own in groups.values() for run in own}
        if len(places) > 1:
            raise UsageError(
                f"{chosen_by} is a time, and the runs are of {len(places)} machines or kinds of software; allowed: "
                "one; remedy: --by a metric that does not depend on the machine"
            )
    sign = 1.0 if row["direction"] == "higher" else -1.0
    entries: list[Entry] = []
    for division in DIVISIONS:
        own = [group for (where, _), group in groups.items() if where == division]
        entries += _ranked(own, division, chosen_by, sign, out)
    return Leaderboard(
        recipe=name,
        size=own_size,
        hash=fixed,
        metric=chosen_by,
        unit=str(row["unit"]),
        direction=str(row["direction"]),
        entries=entries,
        left_out=out,
    )


def _unfit(run: Result, by: str) -> str | None:
    """Why a run does not count."""
    if run.status != "success":
        return f"its status is {run.status}"
    held_out = {**run.document["recipe"]["fixed"], **run.document["recipe"]["mutable"]}.get("validation")
    if held_out is not None:
        return "its metrics are of samples held out of the training samples"
    value = next((own.value for own in run.verdicts if own.label == by), None)
    if value is None or not math.isfinite(value):
        return f"it has no finite value of {by}"
    return None


def _identity(run: Result) -> str:
    """Hash of all that an entry's runs have in common."""
    document = run.document
    mutable = {key: value for key, value in document["recipe"]["mutable"].items() if key != "seed"}
    framework = document["framework"] or {}
    source = document["provenance"]["recipe_source"]
    return canonical_hash([mutable, document["ranks"], framework.get("name"), framework.get("version"), source])


def _ranked(
    groups: Sequence[Sequence[Result]], division: str, by: str, sign: float, out: dict[str, str]
) -> list[Entry]:
    """The entries of a division, the best first."""
    made = []
    for group, name in zip(groups, _names(groups), strict=True):
        by_seed: dict[int, Result] = {}
        for run in group:
            seed = int(run.document["seeds"]["run"])
            if seed in by_seed:
                out[str(run.folder)] = f"the seed {seed} of its entry is there already, in {by_seed[seed].folder}"
            else:
                by_seed[seed] = run
        values = {seed: _value(by_seed[seed], by) for seed in sorted(by_seed)}
        folders = {seed: str(by_seed[seed].folder) for seed in values}
        made.append((name, folders, values, sum(map(bool, by_seed.values()))))
    pairs = list(combinations(range(len(made)), 2))
    tests = [_p(list(made[one][2].values()), list(made[two][2].values())) for one, two in pairs]
    worse = [0] * len(made)
    for (one, two), holds in zip(pairs, holm(tests), strict=True):
        if holds:
            ahead = sign * (median(made[one][2].values()) - median(made[two][2].values())) > 0
            worse[two if ahead else one] += 1
    entries = [
        Entry(name=name, division=division, folders=folders, values=values, accepted=accepted,
              interval=median_ends(list(values.values())), rank=1 + worse[place])
        for place, (name, folders, values, accepted) in enumerate(made)
    ]  # fmt: skip
    return sorted(entries, key=lambda own: (own.rank, -sign * own.median, own.name))


def _value(run: Result, by: str) -> float:
    return float(next(own.value for own in run.verdicts if own.label == by and own.value is not None))


def _p(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Two-sided p-value of the rank test that neither group has greater values; None: no division of them is rare."""
    from scipy.stats import PermutationMethod, mannwhitneyu

    if math.comb(len(one) + len(two), len(one)) < 2 / 0.05:
        return None
    method = PermutationMethod(n_resamples=_RESAMPLED, rng=generator(0, "leaderboard"))
    return float(mannwhitneyu(one, two, method=method).pvalue)


def _names(groups: Sequence[Sequence[Result]]) -> list[str]:
    """Framework and what differs, per entry."""
    stated: list[dict[str, str]] = []
    for group in groups:
        document = group[0].document
        about: dict[str, Any] = {"framework": (document["framework"] or {}).get("name"), "ranks": document["ranks"]}
        about |= {"version": (document["framework"] or {}).get("version")}
        mutable = document["recipe"]["mutable"]
        about |= {key: own for key, own in mutable.items() if key not in ("seed", "framework", "ranks")}
        about["recipe file"] = document["provenance"]["recipe_source"][:8]
        stated.append({key: own if isinstance(own, str) else json.dumps(own) for key, own in about.items()})
    keys = list(dict.fromkeys(key for own in stated for key in own))
    differ = [key for key in keys if key != "framework" and len({own.get(key) for own in stated}) > 1]
    return [", ".join([str(own["framework"]), *(f"{key} {own.get(key, '-')}" for key in differ)]) for own in stated]


def summary(board: Leaderboard) -> str:
    """How many entries and runs there are, in words."""
    runs = sum(len(own.values) for own in board.entries)
    return f"{len(board.entries)} {'entry' if len(board.entries) == 1 else 'entries'}, {counted(runs, 'run')}"
