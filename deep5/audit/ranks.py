"""Rules 8 and 14 for a run of several ranks: each rank's records and samples exist and are consistent."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deep5.audit.batches import Batches
from deep5.audit.collective_values import is_call
from deep5.audit.files import json_of, plain
from deep5.audit.finding import Ledger
from deep5.audit.measured import RANKS
from deep5.audit.numerics import parts_of
from deep5.audit.rank_series import ages_of, check_ages, check_series
from deep5.audit.rank_values import COMBINED, SUMMED, OfAll, Part, part_of_rank
from deep5.audit.rounds import SIDES
from deep5.audit.values import check_order
from deep5.results.samples_file import SampleRow, read_samples
from deep5.results.schema import metric_labels

__all__ = ["check_ranks"]

_OTHERS = re.compile(r"samples-rank-.*\.csv")
# Metrics of the evaluation, to which all ranks contribute: equal on each rank.
_EVALUATED = ("test_accuracy", "test_loss", "epochs_to_accuracy")
_COUNTS = ("steps", "sent_bytes", "messages")
# Series that two ranks cannot have in common: each learns from its own samples and reads its own clock.
_OWN = ("training_loss", "step_latency", "throughput", *SIDES)
_LEAST = 3

All = Mapping[str, Sequence[SampleRow]]


def check_ranks(
    ledger: Ledger, root: Path, document: Mapping[str, Any], samples: All, batches: Batches
) -> OfAll | None:
    """Check the files of the ranks, one after the other; only their contributions to values are kept in memory.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json of a training run.
        samples: Rows of samples.csv, by metric: those of the first rank.
        batches: Batch sizes of the first rank.

    Returns:
        The contribution of each rank to the values of all; None if the samples of a rank are missing.
    """
    ranks, ended = batches.ranks, document["status"] == "success"
    optimizer = (document["components"] or {}).get("optimizer")
    if isinstance(optimizer, Mapping) and "scheme" in optimizer and "ranks" in optimizer:
        ledger.same(14, "the number of ranks, by the scheme", ranks, optimizer["ranks"])
    found = sorted(path.name for path in root.iterdir() if _OTHERS.fullmatch(path.name))
    if ranks == 1:
        left = [*found[:1], *([RANKS] if os.path.lexists(root / RANKS) else [])]
        # Files of other ranks may remain from before the run was resumed with one rank.
        ledger.hold(14, not left or batches.mixed, f"there is {', '.join(left)}, and the run states one rank")
        return _of_all(document, [_parts(document, samples, batches, None)])
    if not ended and not os.path.lexists(root / RANKS):
        return None  # ranks combine their records after training
    reported = _reported(ledger, root, ranks)
    if reported is None:
        return None
    wanted, there = [_name(rank) for rank in range(1, ranks)], set(found)
    gone = [name for name in wanted if name not in there]
    ledger.hold(
        8, not gone, f"there is no {', '.join(gone[:5])}: the raw values of {len(gone)} of {ranks} ranks are missing"
    )
    odd = sorted(there.difference(wanted))
    ledger.hold(8, not odd or batches.mixed, f"{', '.join(odd)[:100]} belongs to none of the {ranks} ranks")
    seen: dict[tuple[str, int], int] = {}
    parts: list[dict[str, Part | None]] = []
    ages: Counter[int] = Counter()
    for entry in reported:
        rank, own = entry["rank"], samples
        if rank and _name(rank) not in there:
            continue
        with ledger.part(8, f"the samples of rank {rank}"):
            if rank:
                plain(root, _name(rank))
                own = read_samples(root / _name(rank))
                _check_other(ledger, document, samples, own, batches, rank)
            _check_entry(ledger, document, entry, own, batches)
            _check_copies(ledger, own, rank, seen)
            check_series(ledger, document, own, rank, batches)
            ages.update(ages_of(own))
            parts.append(_parts(document, own, replace(batches, rank=rank), entry["steps"]))
    if len(parts) < ranks:
        return None
    if ended:
        check_ages(ledger, root, document, ages)
    return _of_all(document, parts)


def _name(rank: int) -> str:
    return f"samples-rank-{rank}.csv"


def _reported(ledger: Ledger, root: Path, ranks: int) -> list[dict[str, Any]] | None:
    """The entries of ranks.json; None if they cannot be trusted."""
    with ledger.part(8, RANKS):
        reported = json_of(root, RANKS)
        if not ledger.hold(
            8, reported is not None, f"there is no {RANKS}: the ranks and what they sent are not described"
        ):
            return None
        right = isinstance(reported, list) and all(map(_is_entry, reported))
        if not ledger.hold(8, right, f"{RANKS} is not as deep5 writes it; allowed: one entry per rank"):
            return None
        numbers = [entry["rank"] for entry in reported]
        if ledger.hold(
            14,
            len(numbers) == ranks and numbers == list(range(ranks)),
            f"the ranks of {RANKS} are {numbers!r:.60}; allowed: 0 to {ranks - 1}, as result.json says",
        ):
            return list(reported)
    return None


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not all(_is_count(entry.get(key)) for key in ("rank", *_COUNTS)):
        return False
    waited, threads = entry.get("waited_s"), entry.get("threads")
    return (
        isinstance(waited, (int, float))
        and not isinstance(waited, bool)
        and waited >= 0
        and all(isinstance(entry.get(key), str) for key in ("host", "communicator"))
        and (threads is None or _is_count(threads))
        and isinstance(entry.get("warnings"), list)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_entry(
    ledger: Ledger, document: Mapping[str, Any], entry: Mapping[str, Any], own: All, batches: Batches
) -> None:
    """Check the steps and bytes of a rank against its samples."""
    who, losses = f"rank {entry['rank']}", own.get("training_loss", ())
    if losses:
        last = losses[-1].step
        ledger.same(8, f"the steps of {who}, by its losses", entry["steps"], None if last is None else last + 1)
        if not batches.mixed:
            steps = [sample.step for sample in losses]
            ledger.hold(
                8, steps == list(range(len(steps))), f"{who}: the losses of some steps are missing or duplicated"
            )
    ledger.hold(
        8,
        (entry["sent_bytes"] > 0) == (entry["messages"] > 0),
        f"{who} sent {entry['sent_bytes']} bytes in {entry['messages']} messages; allowed: none in none",
    )
    # The counters are of the last process; traffic from before the resumption is not included.
    begin = document["resumed"][-1]["step"] if document["resumed"] else 0
    volumes = [sample for label, rows in own.items() if label == "communication_volume" for sample in rows]
    ledger.hold(
        8,
        all(sample.value >= 0 and sample.value == math.floor(sample.value) for sample in volumes),
        f"{who}: a step has an invalid number of sent bytes",
    )
    sent = sum(sample.value for sample in volumes if (sample.step or 0) >= begin)
    ledger.hold(
        8,
        entry["sent_bytes"] >= sent,
        f"{who} sent {entry['sent_bytes']} bytes by {RANKS}, and {sent:.0f} in its steps; allowed: at least those",
    )
    if entry["rank"] == 0 and (document["threads"] or {}).get("framework") is not None:
        ledger.same(3, f"the threads of {who}, by {RANKS}", entry["threads"], document["threads"]["framework"])


def _check_other(
    ledger: Ledger, document: Mapping[str, Any], first: All, own: All, batches: Batches, rank: int
) -> None:
    """Check the samples of a rank other than the first: the same metrics, in order, with the same evaluations."""
    rows, ended = document["metrics"], document["status"] == "success"
    names = {row["name"]: row for row in rows}
    allowed = {**names, **dict(zip(metric_labels(rows), rows, strict=True))}
    if "candidate" in parts_of(document):
        allowed |= {side: {"name": side, "unit": "s"} for side in SIDES}
    if "collective" in parts_of(document):
        allowed |= {label: {"name": label, "unit": "s"} for label in own if is_call(label)}
    odd = [label for label in own if label not in allowed]
    ledger.hold(
        8, not odd, f"rank {rank}: there are samples of {', '.join(odd)[:100]}, which is not a metric of the run"
    )
    for label, series in own.items():
        if label in odd:
            continue
        if label not in first and label in names and label not in metric_labels(rows):
            ledger.skip(f"the samples of {label} of other ranks: they may be of several metrics of one name")
            continue
        name, who = allowed[label]["name"], f"{label} of rank {rank}"
        check_order(ledger, who, series)
        wrong = {sample.unit for sample in series} - {allowed[label]["unit"]}
        ledger.hold(
            8, not wrong, f"{who}: samples are in {', '.join(wrong)}; the metric is in {allowed[label]['unit']}"
        )
        if name in _EVALUATED:
            beside = first.get(label, ())
            # A rank that joined later has only the later ones.
            beside = beside[len(beside) - len(series) :] if batches.mixed and ended else beside
            # Each rank writes its samples by itself: a kill may come between two of them.
            both = None if ended else {sample.epoch for sample in series} & {sample.epoch for sample in beside}
            ledger.same(
                8,
                f"{who}: the results of the evaluations, which are the same on every rank",
                [[sample.epoch, sample.value] for sample in series if both is None or sample.epoch in both],
                [[sample.epoch, sample.value] for sample in beside if both is None or sample.epoch in both],
            )
    if not batches.mixed and ended:
        gone = [label for label in _EVALUATED if first.get(label) and not own.get(label)]
        ledger.hold(8, not gone, f"rank {rank}: the samples of {', '.join(gone)} are missing")


def _check_copies(ledger: Ledger, own: All, rank: int, seen: dict[tuple[str, int], int]) -> None:
    """Check that no two ranks have the same losses at the same times, or the same times."""
    calls = [sample for label, rows in own.items() if is_call(label) for sample in rows]
    for label, series in ("calls", calls), *((label, own.get(label, ())) for label in _OWN):
        if len(series) >= _LEAST:
            key = (label, hash(tuple((sample.value, sample.time_s) for sample in series)))
            first = seen.setdefault(key, rank)
            ledger.hold(
                8,
                first == rank,
                f"the ranks {first} and {rank} have {len(series)} bit-identical samples of {label}; "
                "allowed: different samples",
            )


def _parts(document: Mapping[str, Any], own: All, batches: Batches, steps: int | None) -> dict[str, Part | None]:
    return {
        label: part_of_rank(name, own.get(label, ()), own, batches, steps)
        for label, name in _of_several(document, batches.ranks)
        # If two metrics have one name, other ranks' samples do not distinguish them.
        if label == name or label in own or name not in own
    }


def _of_several(document: Mapping[str, Any], ranks: int) -> Iterator[tuple[str, str]]:
    """Labels and names of the metrics whose values combine several ranks."""
    rows = document["metrics"]
    for label, row in zip(metric_labels(rows), rows, strict=True):
        if row["name"] in (SUMMED if ranks == 1 else COMBINED):
            yield label, row["name"]


def _of_all(document: Mapping[str, Any], parts: Sequence[Mapping[str, Part | None]]) -> OfAll:
    return {label: [part[label] for part in parts] for label in parts[0] if all(label in part for part in parts)}
