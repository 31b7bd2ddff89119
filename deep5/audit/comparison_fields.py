"""Fields of a comparison that follow from others of its document, are stored twice, or have a range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.hashes import hash_of_values
from deep5.audit.host import check_host, check_name
from deep5.audit.newer import is_newer
from deep5.audit.order_statistics import CONFIDENCE

__all__ = ["check_comparison_fields"]

_REFERENCE = re.compile(r"reference in float64, \d+")
_ORDERS = ("two rounds: ", "round by round: ", "round after round, ")
_CALIBRATION = 2
# A process is observed now and then, and killed beyond its limits.
_ROOM, _ROOM_S = 1.25, 10.0
# No process of Python with deep5 takes less memory.
_LEAST = 1 << 26
# Operations and bytes of a processor's cycle that no processor reaches, and its highest clock.
_FLOP, _BYTES, _CLOCK = 512, 512, 6e9
_NAMES = {"training": {"training step"}, "inference": {"inference"}}


def check_comparison_fields(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Check the fields of a comparison.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    for rule, what, check in (
        (8, "the machine", check_host),
        (14, "the name of the comparison", _check_own_name),
        (5, "the scope and the order", _check_stated),
        (8, "the limits of the processes", _check_processes),
        (8, "the peaks", _check_peaks),
        (10, "the calibration's machine", _check_calibration),
        (14, "the candidates' recipes", _check_candidates),
        (8, "the workloads", _check_workloads),
    ):
        with ledger.part(rule, what):
            check(ledger, document)


def _check_own_name(ledger: Ledger, document: Mapping[str, Any]) -> None:
    check_name(ledger, document, "-compare")


def _check_stated(ledger: Ledger, document: Mapping[str, Any]) -> None:
    reported = document["measurement"]
    ledger.hold(
        5,
        len(reported["scope"].split()) >= 3,
        f"the scope is {reported['scope']!r:.60}; allowed: a sentence on what the clock covers",
    )
    if not is_newer(document):
        ledger.hold(
            7, reported["order"].startswith(_ORDERS), f"the order is {reported['order']!r:.60}; allowed: round by round"
        )
    ledger.same(9, "the confidence of the intervals", document["statistics"]["confidence"], CONFIDENCE)


def _check_processes(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """No process that finished is beyond a limit; a candidate's memory is the largest of its timed processes."""
    reported = document["measurement"]
    most_s = float(reported["time_limit_s"]) * _ROOM + _ROOM_S
    # No upper limit of memory: in earlier results it includes what the parent had when the process began.
    limits = reported["time_limit_s"], reported["memory_limit_bytes"]
    ledger.hold(8, limits[0] > 0 and limits[1] >= _LEAST, f"processes may take {limits[0]} s and {limits[1]} bytes")
    labels = [row["label"] for row in document["candidates"]]
    for number, row in enumerate(document["processes"]):
        name = f"process {number}, {row['candidate']}"
        known = _REFERENCE.fullmatch(row["candidate"]) if row["job"] == "reference" else row["candidate"] in labels
        ledger.hold(11, bool(known), f"{name}: there is no such candidate; allowed: {', '.join(labels)[:100]}")
        if row["reason"] is not None:
            continue
        ledger.hold(
            8,
            0 < row["wall_s"] <= most_s and row["memory_bytes"] > 0,
            f"{name}: it took {row['wall_s']:.4g} s and {row['memory_bytes']} bytes; its limits are "
            f"{reported['time_limit_s']:g} s and more than 0 bytes",
        )
        set_up = row["set_up_s"]
        ledger.hold(
            8,
            set_up is None or 0 <= set_up <= row["wall_s"],
            f"{name}: its set-up took {set_up} s, and all of it {row['wall_s']:.4g} s",
        )
    for candidate in document["candidates"]:
        own = [row for row in document["processes"] if (row["candidate"], row["job"]) == (candidate["label"], "time")]
        allowed = {max(row["memory_bytes"] for row in rows) for rows in (own, [r for r in own if r["reason"] is None])
                   if rows}  # fmt: skip
        if candidate["memory_bytes"] is not None:
            ledger.hold(
                8,
                candidate["memory_bytes"] in allowed,
                f"{candidate['label']} took {candidate['memory_bytes']} bytes; by its processes: {sorted(allowed)}",
            )


def _check_peaks(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """No rate is beyond what processors can do; no product in float32 has the digits of float64."""
    before = document["system"]["before"]
    cores = None if before is None else before["cpu"]["logical_cores"]
    for candidate in document["candidates"]:
        peaks, device = candidate["peaks"], (candidate["observed"] or {}).get("device")
        if peaks is None or cores is None or device != "cpu":
            continue
        for key, each in (("product_flop_s", _FLOP), ("copy_byte_s", _BYTES)):
            rate, most = peaks[key], cores * each * _CLOCK
            ledger.hold(
                8,
                rate is None or 0 < rate <= most,
                f"{candidate['label']}: {key} is {rate:.3g}; allowed: up to {most:.3g} on {cores} processors"
                if rate is not None
                else "",
            )
        error = peaks["product_error"]
        ledger.hold(
            2, error is None or error > 0, f"{candidate['label']}: its product in float32 is exact, which none is"
        )


def _check_calibration(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """The calibration is of this machine."""
    reported, before = document["calibration"], document["system"]["before"]
    if reported is None:
        return
    share = reported.get("others_share")
    times = [float(value) for own in reported["processes"].values() for value in own]
    ledger.hold(
        10,
        (share is None or 0 <= share <= 1) and all(0 < value < math.inf for value in times),
        f"other programs took {share} during the calibration, whose times are from {min(times, default=0.0):.3g} s; "
        "allowed: 0 to 1, and times above 0",
    )
    if document["resumed"] or before is None or is_newer(document):
        ledger.skip("the calibration's machine: a resumption may have another")
        return
    ledger.same(10, "the version of the calibration", reported["version"], _CALIBRATION)
    cpu = {name: value for name, value in before["cpu"].items() if name != "clock_mhz"}
    machine = hash_of_values([before["host"], cpu, before["affinity"], before["memory_bytes"]["total"]])[:16]
    ledger.same(10, "the calibration's machine, by the stored one", reported["machine"], machine)


def _check_candidates(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """The comparison's recipe is the baseline's; each candidate's names its framework."""
    for candidate in document["candidates"]:
        label, named = candidate["label"], candidate["recipe"].get("framework")
        if label == document["baseline"]:
            ledger.same(14, "the comparison's recipe, by the baseline's", document["recipe"]["mutable"],
                        candidate["recipe"])  # fmt: skip
        if isinstance(named, str):
            ledger.same(3, f"{label}: the framework of its recipe", named, candidate["framework"])
        odd = candidate["status"] in ("waiting", "proved", "timed") and candidate["reason"] is not None
        ledger.hold(11, not odd, f"{label} is {candidate['status']}, with a reason against it; allowed: none")


def _check_workloads(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Workloads, results and proofs are of the same names."""
    listed = [row["workload"] for row in document["workloads"]]
    used = {row["workload"] for row in document["results"]}
    known = _NAMES.get(document["kind"], set(listed))
    ledger.hold(
        8,
        used <= set(listed) <= known,
        f"the workloads are {', '.join(listed)[:80]}, and the results of {', '.join(sorted(used))[:80]}; allowed: the "
        "same",
    )
    labels = {row["label"] for row in document["candidates"]}
    whole = document["kind"] != "operators"
    for row in document["equivalence"]:
        ledger.hold(
            1,
            row["candidate"] in labels and (row["workload"] is None) == whole,
            f"a proof of {row['candidate']!r:.40}, {row['workload']!r:.40}; allowed: of a candidate"
            + (", and the whole" if whole else ", and a workload"),
        )
