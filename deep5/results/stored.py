"""The store's entry of one result: the fields to find, sort and join it by, in JSON types."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from deep5.core import quantities
from deep5.core.errors import Deep5Error, UsageError
from deep5.core.terminal import counted
from deep5.results.comparison import COMPARISON_VERSION, ComparisonResult, comparison_schema
from deep5.results.inputs import data_of, drawn_of
from deep5.results.kind import COMPARISON_KIND, FILES, RUN_KIND, SWEEP_KIND
from deep5.results.reading import read_object, shown_path
from deep5.results.result import Result
from deep5.results.schema import SCHEMA_VERSION
from deep5.results.store import Found
from deep5.results.study.record import STUDY_VERSION
from deep5.results.sweep.record import SWEEP_VERSION, shown_goal
from deep5.results.validation import check_document

__all__ = ["UNREADABLE", "Stored", "printable", "stored"]

UNREADABLE = "unreadable"
"""Status of a folder whose document cannot be read; `reason` states why."""

_LONGEST, _MOST = 500, 300
_WHEN = re.compile(r"-study-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One result.

    Attributes:
        folder: Path below the root. Unescaped: escape it before showing it.
        kind: "run", "comparison", "study", "sweep"; "unclear" if a folder contains the documents of several.
        study: Path of the study's folder that contains it, or None.
        run_id: Name of the result.
        recipe: Name of the recipe.
        hash: Hash of the recipe's fixed part.
        size: Size of the recipe.
        division: "closed" or "open".
        level: 0 to 3.
        compared: For a comparison "training", "inference" or "operators".
        mode: "quick" or "rigorous".
        framework: Name; for a comparison all names, separated by commas.
        version: Version of the framework.
        device: Where it ran.
        status: "success", "failed", "aborted", "invalid" or "unreadable".
        reason: The first reason why it is not a success.
        accepted: Whether every goal was met; None if no goal was evaluated.
        verdict: Short summary of the outcome.
        started: UTC, such as "2025-01-31T12:00:00Z".
        seconds: Duration in seconds; of a sweep, of all its runs together.
        seeds: Seeds by purpose.
        threads: Requested threads.
        ranks: Number of processes of a run; None for other kinds.
        host: Name of the machine.
        cpu: Its processor.
        environment: Hash of machine and software.
        commit: Commit of the source, with "-dirty" if it had changes.
        metrics: Value and unit of the metrics of a run, by label.
        verdicts: By candidate of a comparison, and workload if there are several, the verdict against the baseline:
            "faster", "slower" or "no difference shown", the ratio of times, and the interval's ends, if any.
        settings: The mutable parts by their path, such as `optimizer_kwargs.lr`; of a sweep, its best settings.
        data: Hash of the data of a run and of their split, if the fixed part determines them.
        drawn: What determines the initial weights of a run, and their hash, as `deep5.results.inputs.drawn_of`.
        disputed: Whether a result with the same hash has another network or other initial weights at one seed.
    """

    folder: str
    kind: str
    study: str | None = None
    run_id: str | None = None
    recipe: str | None = None
    hash: str | None = None
    size: str | None = None
    division: str | None = None
    level: int | None = None
    compared: str | None = None
    mode: str | None = None
    framework: str | None = None
    version: str | None = None
    device: str | None = None
    status: str = UNREADABLE
    reason: str | None = None
    accepted: bool | None = None
    verdict: str | None = None
    started: str | None = None
    seconds: float | None = None
    seeds: dict[str, int] = field(default_factory=dict)
    threads: int | None = None
    ranks: int | None = None
    host: str | None = None
    cpu: str | None = None
    environment: str | None = None
    commit: str | None = None
    metrics: dict[str, tuple[float, str]] = field(default_factory=dict)
    verdicts: dict[str, tuple[str, float, float | None, float | None]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    drawn: str | None = None
    disputed: bool = False

    def row(self) -> dict[str, Any]:
        """One flat row: every field, then `metric.NAME`, `ratio.CANDIDATE` and the like, `set.KEY`; seeds as JSON."""
        own = {name: getattr(self, name) for name in _FLAT if name not in _NOT_SHOWN}
        own["seeds"] = json.dumps(self.seeds) if self.seeds else None
        own["comparable"] = self.comparable
        own |= {f"metric.{label}": value for label, (value, _) in self.metrics.items()}
        for label, (word, ratio, low, high) in self.verdicts.items():
            own |= {f"verdict.{label}": word, f"ratio.{label}": ratio}
            own |= {f"ratio_low.{label}": low, f"ratio_high.{label}": high}
        return own | {f"set.{key}": value for key, value in self.settings.items()}

    @property
    def comparable(self) -> str | None:
        """Runs with the same string ran the same fixed part on the same data and may be compared; None: not comparable.

        A run is not comparable either if a run with the same hash has another network or other weights at one seed.
        """
        if self.kind != RUN_KIND or self.status != "success" or self.division != "closed" or not self.hash:
            return None
        if self.disputed:
            return None
        return f"{self.hash[:12]} {self.size}" + (f" {self.data[:8]}" if self.data else "")

    def document(self) -> dict[str, Any]:
        """The entry in JSON types; the inverse of `of_document`."""
        return asdict(self)

    @classmethod
    def of_document(cls, found: Any) -> Stored:
        """Read an entry from its document.

        Raises:
            ValueError: It is not in the format of `document`.
        """
        if not isinstance(found, dict) or found.keys() != _FIELDS:
            raise ValueError("not a stored result")
        if not all(isinstance(found[name], dict) for name in _NESTED):
            raise ValueError("not a stored result")
        for name in _FLAT:
            if not isinstance(found[name], (str, int, float, type(None))):
                raise ValueError(f"{name} has the wrong type")
        metrics = {label: (float(value), str(unit)) for label, (value, unit) in found["metrics"].items()}
        verdicts = {
            label: (str(word), float(ratio), _number(low), _number(high))
            for label, (word, ratio, low, high) in found["verdicts"].items()
        }
        return cls(**{**found, "metrics": metrics, "verdicts": verdicts})


_FIELDS = {own.name for own in fields(Stored)}
_NESTED = ("seeds", "metrics", "verdicts", "settings")
_NOT_SHOWN = ("drawn", "disputed")
_FLAT = [own.name for own in fields(Stored) if own.name not in _NESTED]


def stored(root: str | Path, found: Found) -> Stored:
    """Read a folder that `survey` found; an unreadable one becomes a row with that status.

    Args:
        root: As for `survey`.
        found: The folder.
    """
    common: dict[str, Any] = {
        "folder": found.folder,
        "kind": found.kind,
        "study": found.study or None,
        "run_id": printable(Path(found.folder).name or Path(root).absolute().name),
    }
    folder = Path(root) / found.folder
    try:
        if found.fault:
            raise UsageError(found.fault)
        document = read_object(folder / FILES[found.kind], root=root)
        if found.kind == RUN_KIND:
            own = _run(folder, document)
        elif found.kind == COMPARISON_KIND:
            own = _comparison(folder, document)
        elif found.kind == SWEEP_KIND:
            own = _sweep(document)
        else:
            own = _study(found, document)
    except Deep5Error as error:
        # The folder has its own column.
        return Stored(**common, reason=printable(str(error).replace(f"{folder}/", "", 1)))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # A document may be valid JSON and still contain, for example, a number of a thousand digits.
        return Stored(**common, reason=printable(f"{FILES[found.kind]} is not as deep5 writes it ({error})"))
    return Stored(**{**common, **own})


def printable(text: object) -> str:
    """A string without terminal control characters, of bounded length."""
    text = shown_path(str(text))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _version(document: Mapping[str, Any], expected: str) -> None:
    if document.get("schema_version") != expected:
        raise UsageError(f"schema version {document.get('schema_version')!r:.40}; this deep5 reads {expected!r}")


def _run(folder: Path, document: dict[str, Any]) -> dict[str, Any]:
    _version(document, SCHEMA_VERSION)
    check_document(document)
    result = Result(folder=folder, document=document)
    verdicts = result.verdicts[:_MOST]
    own = document["framework"] or {}
    frameworks = document["recipe"]["mutable"].get("frameworks")
    missed = [verdict.label for verdict in verdicts if verdict.passed is False]
    word = {True: "accepted", False: "not accepted", None: "not evaluated"}[result.accepted]
    return {
        **_common(document),
        "level": document["level"],
        "mode": _text((document["measurement"] or {}).get("mode")),
        "framework": _text(own.get("name") or (", ".join(map(str, frameworks)) if frameworks else None)),
        "version": _text(own.get("version")),
        "device": _text(own.get("device")),
        "accepted": result.accepted,
        "verdict": printable(f"{word}: {', '.join(missed)}" if missed else word),
        "seconds": _number((document["resources"] or {}).get("wall_time_s")),
        "seeds": {printable(name): _whole(seed) for name, seed in list(document["seeds"].items())[:_MOST]},
        "threads": _whole((document["threads"] or {}).get("asked")),
        "ranks": _whole(document["ranks"]),
        "data": data_of(document) or None,
        "drawn": " ".join(drawn_of(document) or ()) or None,
        "metrics": {
            printable(verdict.label): (verdict.value, printable(verdict.unit))
            for verdict in verdicts
            if verdict.value is not None
        },
    }


def _comparison(folder: Path, document: dict[str, Any]) -> dict[str, Any]:
    _version(document, COMPARISON_VERSION)
    check_document(document, comparison_schema())
    result = ComparisonResult(folder=folder, document=document)
    observed = next((row["observed"] for row in result.candidates if row["observed"]), None) or {}
    return {
        **_common(document),
        "compared": printable(document["kind"]),
        "mode": printable(document["mode"]),
        "framework": printable(", ".join(dict.fromkeys(str(row["framework"]) for row in result.candidates))),
        "device": _text(observed.get("device")),
        "verdict": printable("; ".join(_said(result))),
        "seconds": _number((document["resources"] or {}).get("wall_s")),
        "seeds": {"run": _whole(document["seed"])},
        "threads": _whole(document["threads"]),
        "verdicts": dict(islice(_verdicts(result), _MOST)),
    }


def _verdicts(result: ComparisonResult) -> Iterator[tuple[str, tuple[str, float, float | None, float | None]]]:
    several = len({row["workload"] for row in result.verdicts}) > 1
    for row in result.verdicts:
        name = f"{row['candidate']}[{row['workload']}]" if several else row["candidate"]
        yield printable(name), (row["word"], float(row["ratio"]), _number(row["low"]), _number(row["high"]))


def _said(result: ComparisonResult) -> Iterator[str]:
    """The verdict on each candidate; for several workloads, the count of each verdict."""
    by_label: dict[str, list[dict[str, Any]]] = {}
    for row in result.verdicts:
        by_label.setdefault(row["candidate"], []).append(row)
    for candidate in result.candidates:
        label, rows = candidate["label"], by_label.get(candidate["label"], [])
        if len(rows) == 1:
            low, high = rows[0]["low"], rows[0]["high"]
            interval = "" if low is None or high is None else f" [{quantities.ratio(low)}, {quantities.ratio(high)}]"
            yield f"{label} {quantities.ratio(rows[0]['ratio'])}{interval} {rows[0]['word']}"
        elif rows:
            yield f"{label} " + ", ".join(
                f"{word} ({count} of {len(rows)})" for word, count in Counter(row["word"] for row in rows).items()
            )
        elif candidate["status"] not in ("timed", "proved", "waiting"):
            yield f"{label} {candidate['status']}"


def _study(found: Found, document: dict[str, Any]) -> dict[str, Any]:
    # Documents without a version are from an older deep5; their content is read the same way.
    if document.get("schema_version") is not None:
        _version(document, STUDY_VERSION)
    candidates = document["candidates"]
    runs = sum(len(own["runs"]) for own in candidates.values())
    failures = [str(reason) for own in candidates.values() for reason in own["failures"]]
    ended = [note for note in document["notes"] if str(note).startswith(("the study is not", "the study was"))]
    when = _WHEN.search(Path(found.folder).name)
    return {
        "recipe": printable(document["recipe"]),
        "size": _text(document["size"]),
        "hash": _text(document.get("hash")),
        "status": "aborted" if ended or document.get("finished") is False else "success",
        "reason": printable((ended or failures)[0]) if ended or failures else None,
        "verdict": ", ".join(
            [counted(len(candidates), "candidate"), counted(runs, "run")]
            + ([f"{len(failures)} failed"] if failures else [])
        ),
        "started": "{}-{}-{}T{}:{}:{}Z".format(*when.groups()) if when else None,
    }


def _sweep(document: dict[str, Any]) -> dict[str, Any]:
    _version(document, SWEEP_VERSION)
    budget, best, goal = document["budget"], document["best"], document["goal"]
    said = [counted(_whole(budget["trials"]) or 0, "trial")]
    if best is not None:
        said.append(f"best {shown_goal(document)} {best['value']:.6g}")
    return {
        "recipe": printable(Path(document["recipe"]).stem),
        "size": _text(document["size"]),
        "hash": _text(document["hash"]),
        "status": "success" if document["finished"] is True else "aborted",
        "reason": None if document["finished"] is True else "the sweep is not finished",
        "verdict": printable(", ".join(said)),
        "started": _text(document["started"]),
        "seconds": _number(budget["runs_s"]),
        "host": _text(", ".join(budget["hosts"])),
        "environment": _text(document["provenance"].get("environment")),
        "metrics": {}
        if best is None or _number(best["value"]) is None
        else {printable(shown_goal(document)): (best["value"], printable(goal["unit"]))},
        "settings": {} if best is None else dict(list(_flattened(best["settings"]))[:_MOST]),
    }


def _common(document: Mapping[str, Any]) -> dict[str, Any]:
    recipe, system, software = document["recipe"], document["system"]["before"] or {}, document["software"] or {}
    commit = software.get("commit") or {}
    return {
        "run_id": printable(document["run_id"]),
        "recipe": printable(recipe["name"]),
        "hash": _text(recipe["hash"]),
        "size": _text(recipe["size"]),
        "division": printable(recipe["division"]),
        "status": printable(document["status"]),
        "reason": printable(document["reasons"][0]) if document["reasons"] else None,
        "started": _text(document["started"]),
        "host": _text(system.get("host")),
        "cpu": _text((system.get("cpu") or {}).get("model")),
        "environment": _text((document["provenance"] or {}).get("environment")),
        "commit": printable(f"{commit['id']}{'-dirty' if commit.get('dirty') else ''}") if commit.get("id") else None,
        "settings": dict(list(_flattened(recipe["mutable"]))[:_MOST]),
    }


def _flattened(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        name = printable(f"{prefix}{key}")
        if isinstance(inner, Mapping) and inner and depth < 6:
            yield from _flattened(inner, f"{name}.", depth + 1)
        elif isinstance(inner, str):
            yield name, printable(inner)
        elif isinstance(inner, (list, Mapping)):
            yield name, printable(json.dumps(inner))
        else:
            yield name, inner


def _text(value: object) -> str | None:
    return None if value is None else printable(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    # deep5's own seeds are unsigned 64-bit integers.
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64 else None
