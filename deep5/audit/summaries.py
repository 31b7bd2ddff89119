"""Rules 9 and 13 for a comparison: medians, verdicts and warnings, derived again from the raw times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.comparison_rows import result_rows, rounds_with_results, valid
from deep5.audit.due_warnings import due_warnings, is_said
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.rank_test import rules_of
from deep5.audit.steady_state import steady_from
from deep5.audit.timed_samples import TimedSample
from deep5.audit.verdict_rows import calibrated_floor, verdict_rows

__all__ = ["check_summaries", "verdicts_again"]

# The counts in a row: a wrong count means that raw values are missing.
_COUNTS = ("processes", "samples")
# Maximum number of rounds.
_MOST = 1000


def verdicts_again(
    document: Mapping[str, Any],
    samples: Sequence[TimedSample],
    failed: set[str] | None = None,
    rounds: int | None = None,
) -> list[dict[str, Any]]:
    """Verdicts derived from the samples.

    Args:
        document: comparison.json.
        samples: All rows of samples.csv.
        failed: Labels of candidates that no longer take part; None: those at the end.
        rounds: Use only this many rounds; None: all.
    """
    # The number of rounds that exist, whatever the document states.
    most = min(
        document["measurement"]["most_processes"], 1 + max((sample.round for sample in samples), default=0), _MOST
    )
    rules = rules_of(document)
    counts = (
        (rules.quick_rounds,) if document["mode"] == "quick" else tuple(look for look in rules.looks if look <= most)
    )
    found = {count: calibrated_floor(document, count) for count in counts}
    floors = {count: floor for count, floor in found.items() if floor is not None}
    sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
    seen = samples if rounds is None else [sample for sample in samples if sample.round < rounds]
    return verdict_rows(document, seen, sizes, floors, failed)


def check_summaries(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[TimedSample]) -> None:
    """Derive results, verdicts and warnings again, and compare them with the stored ones.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
        samples: All rows of samples.csv.
    """
    if document["status"] != "success":
        rounds = rounds_with_results(document)
        samples = [sample for sample in samples if sample.round < rounds]
    sizes = _batch_sizes(ledger, document)
    _compare(ledger, "result", document["results"], result_rows(valid(document, samples), sizes))
    _check_settled(ledger, document, samples)
    _compare(ledger, "verdict", document["verdicts"], verdicts_again(document, samples))
    if document["status"] == "success":
        for parts in due_warnings(document, samples):
            ledger.hold(13, is_said(parts, document["warnings"]), f"a warning is missing: {' … '.join(parts)}")


def _compare(
    ledger: Ledger, what: str, stored: Sequence[Mapping[str, Any]], follows: Sequence[Mapping[str, Any]]
) -> None:
    known = {(row["workload"], row["candidate"]): row for row in stored}
    there = {(row["workload"], row["candidate"]): row for row in follows}
    ledger.hold(9, len(known) == len(stored), f"a {what} is stored twice")
    for key in [*there, *(key for key in known if key not in there)]:
        name = f"the {what} of {key[1]}, {key[0]}"
        if not ledger.hold(9, key in known, f"{name} can be computed from the samples, and is not stored"):
            continue
        if not ledger.hold(9, key in there, f"{name} is stored, and no samples support it"):
            continue
        for field, value in there[key].items():
            ledger.same(8 if field in _COUNTS else 9, f"{name}: {field}", known[key][field], value)


def _batch_sizes(ledger: Ledger, document: Mapping[str, Any]) -> dict[tuple[str, str], int | None]:
    """Samples per call: from the recipe, or from the row if the recipe computes it; equal in all candidates."""
    found: dict[tuple[str, str], int | None] = {}
    declared = {row["label"]: {**parts_of(document), **row["settings"]} for row in document["candidates"]}
    for row in document["results"]:
        key = row["workload"], row["candidate"]
        if document["kind"] == "operators":
            found[key] = None
            continue
        parts = declared.get(row["candidate"], {})
        given, accumulate = parts.get("batch_size"), parts.get("accumulate", 1)
        reported = int(row["batch_size"] or 0)
        # A data set may be smaller than a batch, and inference is then timed on the whole data set.
        smaller = document["kind"] == "inference" and isinstance(given, int) and 0 < reported < given
        if document["kind"] == "inference":
            accumulate = 1
        found[key] = given * accumulate if isinstance(given, int) and not smaller else reported
    if document["kind"] == "inference":
        ledger.hold(9, len(set(found.values())) <= 1 or _varied(document), "calls hold different batches")
    return found


def _varied(document: Mapping[str, Any]) -> bool:
    return any("batch_size" in row["settings"] for row in document["candidates"])


def _check_settled(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[TimedSample]) -> None:
    """Whether a process settled follows from its samples; operators have their own calibration instead."""
    if document["kind"] != "training":
        return
    series: dict[tuple[int, str], list[float]] = {}
    for sample in samples:
        if sample.phase != "first":
            series.setdefault((sample.process, sample.workload), []).append(sample.seconds)
    for (number, workload), times in series.items():
        said = workload not in document["processes"][number]["unsettled"]
        ledger.same(6, f"process {number}, {workload}: whether it became steady", said, steady_from(times)[1])
