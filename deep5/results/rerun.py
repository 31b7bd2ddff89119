"""Comparison of a run with its repetition, bit by bit, and the recorded reasons why they may differ."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.results.continuing import differing, shortened
from deep5.results.reading import NotThere, read_object
from deep5.results.result import Result
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Rerun", "Row", "compare_runs", "rerun_table"]

_HASHES = {
    "data": "data",
    "split": "split",
    "network": "network",
    "init": "weights of --init",
    "initial_weights": "initial weights",
    "batch_order": "order of batches",
    "trained_weights": "trained weights",
}
_INPUTS = ("data", "split", "network", "init", "initial_weights", "batch_order")
# What a metric that reads no clock measures and does not compute.
_MEASURED_UNITS = ("MiB", "J")
# By document of a run that trains nothing, what names a row, and what is computed in it.
_ROWS = {
    "operators.json": (("problem", "direction", "candidate"), ("title", "flops", "bytes")),
    "collective.json": (
        ("algorithm", "size_bytes"),
        ("sent_bytes", "all_sent_bytes", "messages", "largest_error", "right"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One compared thing.

    Attributes:
        what: Its name.
        same: Whether it is the same in both runs, bit by bit.
        since: Where it differs first, and how; empty if it is the same.
    """

    what: str
    same: bool
    since: str = ""


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """A run compared with its repetition; true if everything that must repeat did.

    Attributes:
        first: Name of the run.
        second: Name of its repetition.
        rows: What must repeat bit by bit.
        measured: Labels of the metrics that are measured, and so do not repeat.
        causes: What may change bits and differs between the runs.
    """

    first: str
    second: str
    rows: tuple[Row, ...]
    measured: tuple[str, ...]
    causes: tuple[str, ...]

    def __bool__(self) -> bool:
        return all(row.same for row in self.rows)

    def document(self) -> dict[str, Any]:
        """The comparison in JSON types; `repeated`: whether everything that must repeat did."""
        return {"repeated": bool(self), **asdict(self)}


def compare_runs(first: Result, second: Result) -> Rerun:
    """Compare a finished run with its repetition.

    Hashes of inputs and trained weights, every sample of the metrics that read no clock, and what a run of operators or
    collectives computes besides times are compared bit by bit. Times, memory and energy are measured and not compared.

    Args:
        first: The run.
        second: The repetition.

    Raises:
        UsageError: A file of one of them is not in deep5's format.
    """
    before, after = first.document, second.document
    rows = [Row(what="recipe", **_same(before["recipe"]["hash"], after["recipe"]["hash"]))]
    rows.append(Row(what="seeds", **_same(before["seeds"], after["seeds"])))
    rows.append(Row(what="ranks", **_same(before["ranks"], after["ranks"])))
    rows += _hashes(before["provenance"], after["provenance"])
    measured: list[str] = []
    for rank in range(min(first.rank_count, second.rank_count)):
        rows += _samples(first, second, rank, measured)
    rows += _tables(first, second)
    causes = tuple(_causes(before, after)) if not all(row.same for row in rows) else ()
    return Rerun(
        first=before["run_id"], second=after["run_id"], rows=tuple(rows), measured=tuple(measured), causes=causes
    )


def _same(was: Any, now: Any) -> dict[str, Any]:
    return {"same": True} if was == now else {"same": False, "since": f"{shortened(was)}, now {shortened(now)}"}


def _hashes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Row]:
    for key, what in _HASHES.items():
        if was[key] is not None or now[key] is not None:
            short = [None if each[key] is None else each[key][:12] for each in (was, now)]
            yield Row(what=what, **(_same(*short) if was[key] != now[key] else {"same": True}))


def _samples(first: Result, second: Result, rank: int, measured: list[str]) -> Iterator[Row]:
    """Compare the metrics of one rank; adds the labels of measured metrics to `measured`."""
    old, new = first.samples(rank=rank), second.samples(rank=rank)
    rows = first.document["metrics"]
    mark = f" of rank {rank}" if rank else ""
    for label, row, again in zip(metric_labels(rows), rows, _aligned(rows, second), strict=True):
        if not _must_repeat(row):
            if rank == 0:
                measured.append(label)
            continue
        if rank and label not in old and label not in new:
            continue
        since = _difference(old.get(label, []), new.get(label, []))
        if not since and rank == 0 and again["value"] != row["value"]:
            since = f"{row['value']}, now {again['value']}"
        yield Row(what=f"{label}{mark}", same=not since, since=since)


def _aligned(rows: Sequence[Mapping[str, Any]], second: Result) -> list[Mapping[str, Any]]:
    """The rows of the second run's metrics; a missing one has no value."""
    found = dict(zip(metric_labels(second.document["metrics"]), second.document["metrics"], strict=True))
    return [found.get(label, {"value": None}) for label in metric_labels(rows)]


def _must_repeat(row: Mapping[str, Any]) -> bool:
    return str(row["scope"] or "").startswith("Nothing is on a clock") and row["unit"] not in _MEASURED_UNITS


def _difference(old: Sequence[SampleRow], new: Sequence[SampleRow]) -> str:
    """The first difference of two series, and the largest; empty if all bits are equal."""
    found = [(a, b) for a, b in zip(old, new, strict=False) if _bits(a.value) != _bits(b.value)]
    if found:
        a, b = found[0]
        at = (
            f"step {a.step}"
            if a.step is not None
            else f"epoch {a.epoch}"
            if a.epoch is not None
            else f"sample {a.index}"
        )
        gaps = [abs(a.value - b.value) for a, b in found]
        largest = max((gap for gap in gaps if math.isfinite(gap)), default=math.nan)
        return f"since {at}: {a.value!r}, now {b.value!r}; the largest difference of {len(found)} is {largest:.3g}"
    if len(old) != len(new):
        return f"{len(old)} samples, now {len(new)}"
    return ""


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _tables(first: Result, second: Result) -> Iterator[Row]:
    """Compare what operators or collectives computed."""
    plans = [(each.document["components"] or {}).get("plan") for each in (first, second)]
    if any(plan is not None for plan in plans):
        yield Row(what="plan", **_same(*plans))
    for name, (keys, values) in _ROWS.items():
        old, new = _table(first, name, keys, values), _table(second, name, keys, values)
        if old is None and new is None:
            continue
        old, new = old or {}, new or {}
        differ = [key for key in (*old, *(key for key in new if key not in old)) if old.get(key) != new.get(key)]
        since = ""
        if differ:
            since = (
                f"{' '.join(map(str, differ[0]))}: {shortened(old.get(differ[0]))}, now {shortened(new.get(differ[0]))}"
            )
            since += f"; {len(differ)} of {len({*old, *new})} rows differ"
        yield Row(what=f"rows of {name}", same=not differ, since=since)


def _table(result: Result, name: str, keys: Sequence[str], values: Sequence[str]) -> dict[Any, Any] | None:
    try:
        rows = read_object(result.folder / name)["rows"]
        return {tuple(row[key] for key in keys): {key: row.get(key) for key in values} for row in rows}
    except NotThere:
        return None
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{result.folder / name} has no rows of deep5 ({error!r:.60}); remedy: restore it") from error


def _causes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What may explain a difference, the most likely first."""
    was, now = before["provenance"], after["provenance"]
    for key in _INPUTS:
        if was[key] != now[key]:
            yield f"other {_HASHES[key]}"
    if before["ranks"] != after["ranks"]:
        yield f"another number of ranks: {before['ranks']}, now {after['ranks']}"
    usable = [len((each["system"]["before"] or {}).get("affinity") or ()) for each in (before, after)]
    if usable[0] != usable[1]:
        yield f"another number of usable processors: {usable[0]}, now {usable[1]}"
    cards = [(each["system"]["before"] or {}).get("accelerators") for each in (before, after)]
    names = [[card.get("name") for card in each or () if isinstance(card, dict)] for each in cards]
    if names[0] != names[1]:
        yield f"other accelerators: {shortened(names[0])}, now {shortened(names[1])}"
    for what, old, new in differing(before, after):
        yield f"{what}: {shortened(old)}, now {shortened(new)}"
    commits = [((each["software"] or {}).get("commit") or {}) for each in (before, after)]
    if commits[0] != commits[1] or any(commit.get("dirty") for commit in commits):
        yield f"deep5's source may differ: commit {_commit(commits[0])}, now {_commit(commits[1])}"
    if before["resumed"]:
        yield "the first run was interrupted and resumed"
    if (after["numerics"] or {}).get("deterministic") is False:
        yield "the framework does not compute deterministically at these settings"
    if after["ranks"] > 1:
        yield "several ranks: an asynchronous scheme, or reductions in the order of arrival, do not repeat"


def _commit(commit: Mapping[str, Any]) -> str:
    return f"{str(commit.get('id') or 'unknown')[:12]}{' with changes' if commit.get('dirty') else ''}"


def rerun_table(rerun: Rerun, console: Console) -> None:
    """Print what repeats, what differs and since when, and what may explain it.

    Args:
        rerun: The comparison.
        console: The console to print on.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from deep5.core.terminal import styled_where_fit

    console = styled_where_fit(console)
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    table.add_column("compared with the first run", overflow="fold")
    table.add_column("bit by bit", overflow="fold")
    for row in rerun.rows:
        word = Text("same", style="green") if row.same else Text(f"DIFFERS {row.since}", style="bold red")
        table.add_row(Text(row.what), word)
    console.print(table)
    console.print()
    if rerun.measured:
        console.print(Text(f"measured, not compared: {', '.join(rerun.measured)}"))
    if rerun:
        console.print(Text(f"{rerun.second} repeats {rerun.first} bit by bit"), soft_wrap=True)
        return
    console.print(Text(f"{rerun.second} does not repeat {rerun.first}"), soft_wrap=True)
    for cause in rerun.causes or ("nothing that a result records differs: the computation itself does not repeat",):
        console.print(Text(f"  may explain it: {cause}"), overflow="fold")
