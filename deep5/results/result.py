"""A result as read back from its folder: values only, nothing in it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.metric import Goal
from deep5.results.kind import RESULT
from deep5.results.notebook import render
from deep5.results.ranks_file import RANKS, RankRow, rank_samples, read_ranks
from deep5.results.reading import NotThere, read_json
from deep5.results.samples_file import SampleRow, read_samples
from deep5.results.schema import SCHEMA_VERSION, metric_labels
from deep5.results.validation import check_document

__all__ = ["EVENTS", "Result", "Verdict", "load"]

EVENTS = "events.mllog"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one metric.

    Attributes:
        name: Of the metric.
        label: The name, with the parameters that distinguish the metric from others of its name: `top_k[k=5]`.
        unit: Of value, goal and interval.
        direction: "higher" or "lower": what is better.
        goal: The bound, or None: reported, not judged.
        value: What was held against the goal, or None where the run did not yield it.
        passed: Whether the goal was met; None without a goal, or where the run did not get so far.
        interval: Ends of the value's interval, or None.
        confidence: Coverage of the interval, or None where none is stated.
        samples: Number of raw values.
        scope: What the clock covers, or None.
        missing: Why there is no value, where machine or framework do not let it be known; else None.
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
    def word(self) -> str:
        """One of "passed", "FAILED", "reported" (no goal) and "not judged" (a goal, and a run that did not finish)."""
        if self.passed is None:
            return "reported" if self.goal is None else "not judged"
        return "passed" if self.passed else "FAILED"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run as its folder states it; true where it was accepted.

    Attributes:
        folder: The result folder.
        document: result.json as it stands (see schema.json), in JSON's types.
    """

    folder: Path
    document: dict[str, Any]

    def __bool__(self) -> bool:
        return self.status == "success" and self.accepted is not False

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return render(self)

    @property
    def status(self) -> str:
        """One of "success", "failed", "aborted" and "invalid"."""
        return str(self.document["status"])

    @property
    def accepted(self) -> bool | None:
        """Whether every goal was met; None where nothing was judged."""
        accepted: bool | None = self.document["accepted"]
        return accepted

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run is no success, or is not accepted."""
        return tuple(self.document["reasons"])

    @property
    def division(self) -> str:
        """Either "closed" or "open", where something of the recipe's fixed part was changed."""
        return str(self.document["recipe"]["division"])

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every metric in the recipe's order."""
        rows = self.document["metrics"]
        return tuple(_verdict(row, label) for row, label in zip(rows, metric_labels(rows), strict=True))

    def metric(self, name: str) -> float | None:
        """The value of a metric, by its name or label, in its unit; None where the run did not yield it.

        Raises:
            UsageError: No metric of this name or label, or several of this name, which their labels distinguish.
        """
        found = [verdict.value for verdict in self.verdicts if name in (verdict.name, verdict.label)]
        if len(found) != 1:
            known = ", ".join(verdict.label for verdict in self.verdicts) or "none"
            raise UsageError(f"{len(found)} metrics are named {name!r} in {self.folder}; metrics: {known}")
        return found[0]

    @property
    def rank_count(self) -> int:
        """Processes that the run was of."""
        return int(self.document["ranks"])

    def ranks(self) -> tuple[RankRow, ...]:
        """What each rank was, sent and waited for, read from ranks.json.

        Empty for a run of one process, and for one that ended before its ranks put theirs together.

        Raises:
            UsageError: A file that is not as deep5 writes it, or of another number of ranks.
        """
        # Ranks that the run had before it went on with one may have left theirs.
        found = read_ranks(self.folder) if self.rank_count > 1 else ()
        if found and len(found) != self.rank_count:
            raise UsageError(
                f"{self.folder} has {len(found)} ranks in its {RANKS}; allowed: {self.rank_count}, as its {RESULT} says"
            )
        return found

    def samples(self, *, rank: int = 0) -> dict[str, list[SampleRow]]:
        """Raw values by metric, read from the rank's file; empty where the run ended before it was written.

        Args:
            rank: Whose; every rank of a run has its own, in samples-rank-1.csv and so on.

        Raises:
            UsageError: A file that is not as deep5 writes it, or a rank that the run did not have.
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


def load(path: str | Path, *, root: str | Path | None = None) -> Result:
    """Read a result folder.

    Args:
        path: The folder, or the result.json in it.
        root: A folder above it that the user named: links on the way from there are refused. None: the folder itself.

    Raises:
        UsageError: No result.json there, or it is truncated, of another schema version, or not valid.
    """
    path = Path(path)
    file = path if path.name == RESULT else path / RESULT
    try:
        document = read_json(file, root=root)
    except NotThere as error:
        raise UsageError(
            f"{path} is no result folder: it holds no {RESULT}; allowed: a folder that a run wrote"
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
    # float() also reads "inf", "-inf" and "nan", which stand for what JSON cannot write.
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
