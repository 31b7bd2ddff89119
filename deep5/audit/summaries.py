"""Rules 9 and 13 for a comparison: medians, verdicts and warnings, derived again from the raw times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.measuring.calibration import Calibration
from deep5.measuring.statistics import LOOKS, steady_part
from deep5.results.comparison_summary import counted, results_of, verdicts_in, warnings_in, whole_rounds
from deep5.results.round_samples import RoundSample

__all__ = ["check_summaries", "verdicts_again"]

# How many there are: where that is wrong, raw values are missing.
_COUNTS = ("processes", "samples")
# Rounds that anybody measures.
_MOST = 1000


def verdicts_again(
    document: Mapping[str, Any],
    samples: Sequence[RoundSample],
    failed: set[str] | None = None,
    rounds: int | None = None,
) -> list[dict[str, Any]]:
    """Verdicts as they follow from the samples.

    Args:
        document: comparison.json.
        samples: As samples.csv has them.
        failed: Labels that take part no more; None: as at the end.
        rounds: Those of so many rounds alone; None: of all.
    """
    made = None if document["calibration"] is None else Calibration.of_document(document["calibration"])
    # As many as there are, whatever is said of them.
    most = min(
        document["measurement"]["most_processes"], 1 + max((sample.round for sample in samples), default=0), _MOST
    )
    counts = (1,) if document["mode"] == "quick" else tuple(look for look in LOOKS if look <= most)
    floors = {} if made is None else {count: made.floor(count) for count in counts}
    sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
    seen = samples if rounds is None else [sample for sample in samples if sample.round < rounds]
    return verdicts_in(document, seen, floors, sizes, failed)


def check_summaries(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[RoundSample]) -> None:
    """Derive results, verdicts and warnings again, and hold them against those stored.

    Args:
        ledger: Takes the findings.
        document: comparison.json.
        samples: As samples.csv has them.
    """
    if document["status"] != "success":
        rounds = whole_rounds(document)
        samples = [sample for sample in samples if sample.round < rounds]
    sizes = _batch_sizes(ledger, document)
    _compare(ledger, "result", document["results"], results_of(counted(document, samples), sizes))
    _check_settled(ledger, document, samples)
    _compare(ledger, "verdict", document["verdicts"], verdicts_again(document, samples))
    if document["status"] == "success":
        for told in warnings_in(document, samples):
            ledger.hold(13, told in document["warnings"], f"a warning is missing: {told}")


def _compare(
    ledger: Ledger, what: str, stored: Sequence[Mapping[str, Any]], follows: Sequence[Mapping[str, Any]]
) -> None:
    known = {(row["workload"], row["candidate"]): row for row in stored}
    there = {(row["workload"], row["candidate"]): row for row in follows}
    ledger.hold(9, len(known) == len(stored), f"a {what} is stored twice")
    for key in [*there, *(key for key in known if key not in there)]:
        name = f"the {what} of {key[1]}, {key[0]}"
        if not ledger.hold(9, key in known, f"{name} follows from the samples, and is not stored"):
            continue
        if not ledger.hold(9, key in there, f"{name} is stored, and follows from no sample"):
            continue
        for field, value in there[key].items():
            ledger.same(8 if field in _COUNTS else 9, f"{name}: {field}", known[key][field], value)


def _batch_sizes(ledger: Ledger, document: Mapping[str, Any]) -> dict[tuple[str, str], int | None]:
    """Samples a call: by the recipe, or, where that says it by a function, as its row says, alike in all candidates."""
    found: dict[tuple[str, str], int | None] = {}
    declared = {row["label"]: {**parts_of(document), **row["settings"]} for row in document["candidates"]}
    for row in document["results"]:
        key = row["workload"], row["candidate"]
        if document["kind"] == "operators":
            found[key] = None
            continue
        parts = declared.get(row["candidate"], {})
        given, accumulate = parts.get("batch_size"), parts.get("accumulate", 1)
        told = int(row["batch_size"] or 0)
        # A data set may be smaller than a batch, and inference is timed on what there is.
        smaller = document["kind"] == "inference" and isinstance(given, int) and 0 < told < given
        if document["kind"] == "inference":
            accumulate = 1
        found[key] = given * accumulate if isinstance(given, int) and not smaller else told
    if document["kind"] == "inference":
        ledger.hold(9, len(set(found.values())) <= 1 or _varied(document), "calls hold different batches")
    return found


def _varied(document: Mapping[str, Any]) -> bool:
    return any("batch_size" in row["settings"] for row in document["candidates"])


def _check_settled(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[RoundSample]) -> None:
    """Whether a process settled follows from its samples; of operators their own calibration says it."""
    if document["kind"] != "training":
        return
    series: dict[tuple[int, str], list[float]] = {}
    for sample in samples:
        if sample.phase != "first":
            series.setdefault((sample.process, sample.workload), []).append(sample.seconds)
    for (number, workload), times in series.items():
        said = workload not in document["processes"][number]["unsettled"]
        ledger.same(6, f"process {number}, {workload}: whether it became steady", said, steady_part(times).reached)
