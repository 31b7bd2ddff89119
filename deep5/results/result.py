"""A result read from its folder: values only; nothing in it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.metric import Goal
from deep5.core.notebook import render
from deep5.core.screen import on_a_screen
from deep5.results.kind import RESULT
from deep5.results.ranks_file import RANKS, RankRow, rank_samples, read_ranks
from deep5.results.reading import NotThere, read_json
from deep5.results.samples_file import SampleRow, read_samples
from deep5.results.schema import SCHEMA_VERSION, metric_labels
from deep5.results.validation import check_document

__all__ = ["EVENTS", "Result", "Verdict", "load"]

EVENTS = "events.mllog"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one metric.

    Attributes:
        name: Name of the metric.
        label: The name, with the parameters that distinguish metrics of the same name: `top_k[k=5]`.
        unit: Unit of value, goal and interval.
        direction: "higher" or "lower": which is better.
        goal: The bound, or None: reported, without a goal.
        value: The value compared with the goal, or None if the run did not yield it.
        passed: Whether the goal was met; None without a goal, or if the run did not get that far.
        interval: Ends of the value's interval, or None.
        confidence: Coverage of the interval, or None if not stated.
        samples: Number of raw values.
        scope: What the clock covers, or None.
        missing: Why there is no value, if the machine or framework does not provide it; else None.
    """

    name: str
    label: str
    unit: str
    direction: str
    goal: Goal | None
    value: float | None
    passed: bool | None
    interval: tuple[float, float] | None
    confidence: float | None
    samples: int
    scope: str | None
    missing: str | None = None

    @property
    def is_ratio(self) -> bool:
        """Whether value and interval are ratios, of which 1 means equal."""
        return self.unit == "ratio"

    @property
    def word(self) -> str:
        """One of `passed`, `FAILED`, `reported` (no goal), `not evaluated` (a goal, and a run that did not finish)."""
        if self.passed is None:
            return "reported" if self.goal is None else "not evaluated"
        return "passed" if self.passed else "FAILED"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run as its folder states it; true if it was accepted.

    Attributes:
        folder: The result folder.
        document: result.json (see schema.json), in JSON types.
    """

    folder: Path
    document: dict[str, Any]

    def __bool__(self) -> bool:
        return self.status == "success" and self.accepted is not False

    def __repr__(self) -> str:
        word = "not evaluated" if self.accepted is None else "accepted" if self.accepted else "not accepted"
        return f"<Result of {self.document['recipe']['name']!r}: {word}; {self.folder}>"

    def __str__(self) -> str:
        return on_a_screen(self, f"deep5 report {self.folder} shows all")

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)

    @property
    def status(self) -> str:
        """One of "success", "failed", "aborted" and "invalid"."""
        return str(self.document["status"])

    @property
    def accepted(self) -> bool | None:
        """Whether every goal was met; None if no goal was evaluated."""
        accepted: bool | None = self.document["accepted"]
        return accepted

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run is not a success, or is not accepted."""
        return tuple(self.document["reasons"])

    @property
    def division(self) -> str:
        """Either "closed" or "open"; open if the recipe's fixed part was changed."""
        return str(self.document["recipe"]["division"])

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every metric in the recipe's order."""
        rows = self.document["metrics"]
        return tuple(_verdict(row, label) for row, label in zip(rows, metric_labels(rows), strict=True))

    def metric(self, name: str) -> float | None:
        """The value of a metric, by its name or label, in its unit; None if the run did not yield it.

        Raises:
            UsageError: No metric has this name or label, or several have this name, which their labels distinguish.
        """
        found = [verdict.value for verdict in self.verdicts if name in (verdict.name, verdict.label)]
        if len(found) != 1:
            known = ", ".join(verdict.label for verdict in self.verdicts) or "none"
            raise UsageError(f"{len(found)} metrics are named {name!r} in {self.folder}; metrics: {known}")
        return found[0]

    @property
    def rank_count(self) -> int:
        """Number of processes of the run."""
        return int(self.document["ranks"])

    def ranks(self) -> tuple[RankRow, ...]:
        """Each rank's host, traffic and waits, read from ranks.json.

        Empty for a run of one process, and for one that ended before its ranks combined their data.

        Raises:
            UsageError: The file is not in deep5's format, or has another number of ranks.
        """
        # A run that was resumed with one rank may still have the file of its earlier ranks.
        found = read_ranks(self.folder) if self.rank_count > 1 else ()
        if found and len(found) != self.rank_count:
            raise UsageError(
                f"{self.folder} has {len(found)} ranks in its {RANKS}; allowed: {self.rank_count}, as its {RESULT} says"
            )
        return found

    def samples(self, *, rank: int = 0) -> dict[str, list[SampleRow]]:
        """Raw values by metric, read from the rank's file; empty if the run ended before it was written.

        Args:
            rank: The rank; every rank of a run has its own file, samples-rank-1.csv and so on.

        Raises:
            UsageError: The file is not in deep5's format, or the run has no such rank.
        """
        if not is_whole(rank) or not 0 <= rank < self.rank_count:
            raise UsageError(
                f"{self.folder}: samples of rank {brief(rank)}; allowed: a rank of the run, from 0 to "
                f"{self.rank_count - 1}"
            )
        try:
            return read_samples(self.folder / rank_samples(rank))
        except NotThere:
            return {}


def _inside(path: Path) -> str:
    """The remedy where a folder of result folders was named."""
    try:
        found = max((file.parent for file in path.glob(f"*/{RESULT}")), default=None, key=lambda each: each.name)
    except OSError:
        return ""
    return "" if found is None else f"; remedy: one of those inside, such as {found}"


def load(path: str | Path, *, root: str | Path | None = None) -> Result:
    """Read a result folder.

    Args:
        path: The folder, or the result.json in it.
        root: A parent folder that the user named: links below it are rejected. None: the folder itself.

    Raises:
        UsageError: There is no result.json, or it is truncated, of another schema version, or not valid.
    """
    path = Path(path)
    file = path if path.name == RESULT else path / RESULT
    try:
        document = read_json(file, root=root)
    except NotThere as error:
        raise UsageError(
            f"{path} is not a result folder: it holds no {RESULT}; allowed: a folder that a run wrote{_inside(path)}"
        ) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{file} has schema version {version!r}; this deep5 reads {SCHEMA_VERSION!r}"
            + ("; it was not written by deep5" if version is None else "; read it with the deep5 that wrote it")
        )
    try:
        check_document(document)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return Result(folder=file.parent, document=document)


def _verdict(row: dict[str, Any], label: str) -> Verdict:
    # float() also parses "inf", "-inf" and "nan", which represent values that JSON lacks.
    goal, ends, value = row["goal"], row["interval"], row["value"]
    return Verdict(
        name=row["name"],
        label=label,
        unit=row["unit"],
        direction=row["direction"],
        goal=None if goal is None else Goal(relation=goal["relation"], bound=goal["bound"]),
        value=None if value is None else float(value),
        passed=row["passed"],
        interval=None if ends is None else (float(ends["low"]), float(ends["high"])),
        confidence=None if ends is None else ends["confidence"],
        samples=row["samples"],
        scope=row["scope"],
        missing=row["missing"],
    )
