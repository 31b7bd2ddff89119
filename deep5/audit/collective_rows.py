"""Rules 8, 9 and 14 for a run of collectives: collective.json follows from recipe and samples and is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.audit.collective_summary import Calls, constants_of, faults, row_of, segment_sizes
from deep5.audit.collective_values import is_series, plan_requested, requested
from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.audit.measured import RANKS, ranks_of
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

if TYPE_CHECKING:
    from deep5.bench.collective.plan import CollectivePlan

__all__ = ["check_collective_rows"]

_FILE = "collective.json"
# Up to this buffer size the correct result is recomputed, if its bits do not depend on the order of additions.
_MOST_BYTES = 1 << 22
# Tolerance between the clock of the calls and that of the run.
_SLACK_S = 0.01

Samples = Mapping[str, Sequence[SampleRow]]


def check_collective_rows(ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Samples) -> None:
    """Check collective.json.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json of a finished run.
        samples: By series; for calls, those of the slowest rank.
    """
    from deep5.results.validation import encode

    with ledger.part(9, _FILE):
        reported = json_of(root, _FILE)
        if not ledger.hold(9, isinstance(reported, dict), f"there is no {_FILE}"):
            return
        plan, ranks = plan_requested(document), ranks_of(document)
        ledger.same(14, "the number of ranks, by the recipe", ranks, requested(document, "ranks"))
        ledger.same(14, f"the number of ranks of {_FILE}", reported["ranks"], ranks)
        ledger.same(14, f"the plan of {_FILE}, by the recipe", reported["plan"], encode(asdict(plan)))
        measured = _measured(ledger, plan, ranks, reported["measured"], samples)
        if measured is None:
            return
        lived, took = float(document["resources"]["wall_time_s"]), sum(sum(each.seconds) for each in measured)
        ledger.hold(8, took <= lived + _SLACK_S, f"all calls took {took:.6g} s, and the run {lived:.6g} s")
        _check_sent(ledger, root, plan, measured)
        for each, entry in zip(measured, reported["measured"], strict=True):
            _check_bits(ledger, each, entry, plan, ranks)
        machine = constants_of(_fitted("message", samples), _fitted("addition", samples))
        ledger.same(9, f"machine of {_FILE}", reported["machine"], machine)
        _check_segments(ledger, reported["optimal_segment_bytes"], plan, ranks, machine)
        for row, each in zip(reported["rows"], measured, strict=True):
            follows = encode(row_of(each, plan, ranks, machine))
            for field in {**row, **follows}:
                ledger.same(9, f"{field} of {each.where} in {_FILE}", row.get(field), follows.get(field))
        wrong = [faults(each, plan, ranks) for each in measured]
        ledger.same(9, f"wrong of {_FILE}", reported["wrong"], [sentence for own in wrong for sentence in own])
        _check_right(ledger, document, wrong, samples)


def _check_segments(
    ledger: Ledger, stored: Mapping[str, Any], plan: CollectivePlan, ranks: int, machine: Mapping[str, float]
) -> None:
    ledger.same(9, f"the sizes of optimal_segment_bytes in {_FILE}", sorted(stored), sorted(map(str, plan.sizes_bytes)))
    for size in plan.sizes_bytes:
        best, there = segment_sizes(machine, ranks, size), stored.get(str(size))
        where = f"optimal_segment_bytes of {size} bytes in {_FILE}"
        ledger.same(9, where, there, there if there in best else best[0])


def _measured(
    ledger: Ledger, plan: CollectivePlan, ranks: int, looked_at: Sequence[Mapping[str, Any]], samples: Samples
) -> list[Calls] | None:
    """The calls, with the times of the samples; None if times or result checks are incomplete."""
    planned = [(name, size) for size in plan.sizes_bytes for name in plan.algorithms]
    series = {label: [row.value for row in rows] for label, rows in samples.items() if is_series(label)}
    known = {(entry["algorithm"], entry["size_bytes"]): entry for entry in looked_at}
    counts = [len(series.get(f"{name}/{size}", ())) for name, size in planned]
    whole = ledger.same(
        8,
        "how often each algorithm was called at each size, by the plan and by the samples",
        counts,
        [plan.rounds] * len(planned),
    )
    whole &= ledger.same(8, f"what {_FILE} lists as measured, by the plan", list(known), planned)
    odd = series.keys() - {f"{name}/{size}" for name, size in planned}
    odd -= {f"{what}/{size}" for what in ("message", "addition") for size in _fitted(what, samples)}
    ledger.hold(8, not odd, f"there are samples of {', '.join(sorted(odd))[:100]}, which the plan does not have")
    if not whole:
        return None
    measured = []
    for name, size in planned:
        entry = known[name, size]
        own = Calls(
            algorithm=name,
            size_bytes=size,
            seconds=tuple(series[f"{name}/{size}"]),
            sent_bytes=tuple(entry["sent_bytes"]),
            messages=tuple(entry["messages"]),
            largest_error=float(entry["largest_error"]),
            checksums=tuple(tuple(sums) for sums in entry["checksums"]),
        )
        ledger.same(
            14,
            f"of how many ranks {_FILE} says what {name} at {size} bytes sent, and which bits it had",
            [len(own.sent_bytes), len(own.messages), len(own.checksums)],
            [ranks] * 3,
        )
        measured.append(own)
    return measured


def _fitted(what: str, samples: Samples) -> dict[int, list[float]]:
    """Times of messages or additions, by size."""
    parts = [(label.partition("/"), rows) for label, rows in samples.items() if is_series(label)]
    return {int(size): [row.value for row in rows] for (name, _, size), rows in parts if name == what}


def _check_sent(ledger: Ledger, root: Path, plan: CollectivePlan, measured: Sequence[Calls]) -> None:
    """Check that a rank sent, in total, at least what it sent in the calls."""
    calls = plan.warm_up + plan.rounds
    for entry in json_of(root, RANKS) or ():
        rank = entry["rank"]
        for what in ("sent_bytes", "messages"):
            least = calls * sum(getattr(each, what)[rank] for each in measured)
            ledger.hold(
                8,
                entry[what] >= least,
                f"rank {rank} has {entry[what]} {what} by {RANKS}, and {least} in its calls; allowed: at least those",
            )


def _check_bits(ledger: Ledger, each: Calls, entry: Mapping[str, Any], plan: CollectivePlan, ranks: int) -> None:
    """Check that a result declared correct has the correct bits, if they do not depend on the order of additions."""
    ledger.same(9, f"whether all ranks had the same bits of {each.where}", entry["same_bits"], each.same_bits)
    if not each.right(plan):
        return
    due = _right_sums(plan, ranks, each.size_bytes)
    if due is None:
        ledger.skip("the bits of results that are large, or depend on the order of additions")
        return
    ledger.same(9, f"the checksums of {each.where}, by the drawn numbers", each.checksums[0], (*due, *due))


def _right_sums(plan: CollectivePlan, ranks: int, size_bytes: int) -> tuple[int, int] | None:
    from deep5.bench.collective.data import drawn
    from deep5.distributed.agreement import checksum
    from deep5.distributed.collectives.messages import COMBINE

    # A sum of two values is rounded once in either order; float16 is excluded, because some of its zeros have a sign.
    exact = np.dtype(plan.dtype).kind == "i" or (plan.dtype != "float16" and (ranks == 2 or plan.op in ("max", "min")))
    if not exact or size_bytes * ranks > _MOST_BYTES:
        return None
    elements = size_bytes // plan.itemsize
    result = drawn(plan, 0, elements).copy()
    for rank in range(1, ranks):
        COMBINE[plan.op](result, drawn(plan, rank, elements), out=result)
    return checksum(result)


def _check_right(ledger: Ledger, document: Mapping[str, Any], wrong: Sequence[Sequence[str]], samples: Samples) -> None:
    """Check the share of correct results, and that the warnings report incorrect ones."""
    share = 100 * sum(not own for own in wrong) / len(wrong)
    for label, metric in zip(metric_labels(document["metrics"]), document["metrics"], strict=True):
        if metric["name"] == "right_results":
            own = [sample.value for sample in samples.get(label, ())]
            ledger.same(9, f"the samples of {label}, by {_FILE}", own, [share])
    for sentence in (sentence for own in wrong for sentence in own):
        ledger.hold(13, f"wrong: {sentence}" in document["warnings"], f"no warning states: {sentence}")
