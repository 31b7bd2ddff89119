"""Rule 8 for the ranks' communication: samples that a scheme cannot produce, and their histogram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deep5.audit.batches import Batches
from deep5.audit.files import bytes_of
from deep5.audit.finding import Ledger
from deep5.results.samples_file import SampleRow

__all__ = ["ages_of", "check_ages", "check_series"]

# Schemes that wait within a step for every operation started in it, so that pending operations belong to the step.
_WITHIN = ("AllReduce", "ParameterServer")
_FILE = "staleness.csv"
# A share, an overlap and a latency are each rounded.
_ROUNDING = 1e-6
# Maximum size of the file: no update is so stale that it would be larger.
_MOST_BYTES = 16 << 20

All = Mapping[str, Sequence[SampleRow]]


def check_series(ledger: Ledger, document: Mapping[str, Any], own: All, rank: int, batches: Batches) -> None:
    """Check a rank's communication samples against the limits of its scheme.

    Args:
        ledger: Receives the findings.
        document: result.json.
        own: The rank's samples, by metric.
        rank: Its number.
        batches: Batch sizes of the run.
    """
    scheme = (document["components"] or {}).get("optimizer")
    scheme = scheme if isinstance(scheme, Mapping) else {}
    ages = [sample.value for sample in own.get("staleness", ())]
    ledger.hold(
        8,
        all(age >= 0 and age == age // 1 for age in ages),
        f"rank {rank}: an update has a staleness that is not a number of updates",
    )
    bound = scheme.get("bound") if scheme.get("scheme") == "StaleSynchronous" else None
    if ages and isinstance(bound, int) and not batches.mixed:
        # While a rank computes, each other one moves from a lag of at most `bound` steps to a lead of `bound` + 1.
        most = (batches.ranks - 1) * (2 * bound + 1)
        ledger.hold(
            8,
            max(ages) <= most,
            f"rank {rank}: an update has a staleness of {max(ages):g}; allowed: at most {most}, by a bound of {bound}",
        )
    overlaps = own.get("communication_overlap", ())
    ledger.hold(
        8,
        all(0 <= sample.value <= 100 for sample in overlaps),
        f"rank {rank}: an overlap is not a share of the communication time; allowed: 0 to 100 %",
    )
    if scheme.get("scheme") in _WITHIN:
        shares = {sample.step: sample.value for sample in own.get("communication_share", ())}
        # The waited time is (1 - overlap) of the communication time, which is at most the step.
        longer = [
            sample.step
            for sample in overlaps
            if shares.get(sample.step, 0.0) > (100 - sample.value) * (1 + _ROUNDING) + _ROUNDING
        ]
        ledger.hold(
            8,
            not longer,
            f"rank {rank}: by its share and its overlap, communication took longer than its step "
            f"{longer[0] if longer else None}",
        )


def ages_of(own: All) -> Counter[int]:
    """Number of a rank's updates by staleness."""
    return Counter(int(sample.value) for sample in own.get("staleness", ()))


def check_ages(ledger: Ledger, root: Path, document: Mapping[str, Any], ages: Counter[int]) -> None:
    """Compare the histogram of the staleness of all updates with the samples of all ranks.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json.
        ages: Number of updates of all ranks by staleness.
    """
    named = [row for row in document["metrics"] if row["name"] == "staleness" and row["value"] is not None]
    if not named:
        return
    with ledger.part(8, _FILE):
        content = bytes_of(root, _FILE, most_bytes=_MOST_BYTES)
        if not ledger.hold(8, content is not None, f"there is no {_FILE} with the staleness of the run"):
            return
        lines = (content or b"").decode().splitlines()
        reported = [[int(number) for number in line.split(",")] for line in lines[1:]]
        whole = lines[:1] == ["staleness,updates"] and [age for age, _ in reported] == list(
            range(max(len(reported), 1))
        )
        ledger.hold(8, whole, f"{_FILE} is not as deep5 writes it; allowed: a line for each staleness from 0")
        # Not by a list up to the maximum: a sample may have any value.
        found = {age: updates for age, updates in reported if updates or age == len(reported) - 1}
        ledger.same(8, f"the updates of {_FILE}, by their staleness", found, {age: ages[age] for age in sorted(ages)})
