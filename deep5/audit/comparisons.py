"""Checks one comparison's proof, declarations, pinning and calibration against the rules of measurement."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.audit.comparison_fields import check_comparison_fields
from deep5.audit.comparison_rows import valid
from deep5.audit.comparison_samples import check_samples
from deep5.audit.data import check_data, check_weights
from deep5.audit.declared import check_declared, check_stated_parts
from deep5.audit.duration import check_duration
from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.audit.identity import check_environment, check_recipe
from deep5.audit.machine_load import check_machines
from deep5.audit.newer import read_newer
from deep5.audit.numerics import check_numerics, check_threads, parts_of
from deep5.audit.observed import check_reported
from deep5.audit.plausible import check_dates, check_hashes, check_versions
from deep5.audit.proof_numbers import check_proof_numbers
from deep5.audit.proof_rows import check_proof
from deep5.audit.rank_test import rules_of
from deep5.audit.raw_files import check_raw_files
from deep5.audit.settings import check_candidate_recipes
from deep5.audit.summaries import check_summaries
from deep5.audit.timed_samples import timed_samples
from deep5.audit.turns import check_turns
from deep5.audit.verdict_rows import calibrated_floor, disturbed
from deep5.audit.work import check_work
from deep5.core.errors import Deep5Error
from deep5.results.comparison import ComparisonResult, comparison_schema, load_comparison
from deep5.results.kind import COMPARISON

__all__ = ["audit_comparison"]

_CLOCK = "time.perf_counter_ns"
# A setting in a label, up to the next comma.
_SETTING = re.compile(r"(?:^|, )([A-Za-z_][\w.]*)=([^,]*)")
_SAMPLES = "samples.csv"


def audit_comparison(root: Path, ledger: Ledger) -> None:
    """Check a comparison's folder.

    Args:
        root: The resolved folder.
        ledger: Receives the findings.
    """
    try:
        newer = read_newer(ledger, root, COMPARISON, comparison_schema())
        result = load_comparison(root) if newer is None else ComparisonResult(folder=root, document=newer)
    except Deep5Error as error:
        ledger.hold(8, False, f"{COMPARISON} cannot be read: {error}")
        return
    document = result.document
    check_recipe(ledger, root, document)
    check_environment(ledger, root, document)
    check_hashes(ledger, document)
    check_raw_files(ledger, root, document)
    with ledger.part(8, "the dates"):
        check_dates(ledger, root, document)
    for rule, what, check in (
        (1, "the proof", check_proof),
        (1, "the provenance of the candidates", _check_provenance),
        (2, "the settings as read back", _check_observed),
        (4, "the measurement", _check_measurement),
        (1, "the numbers of the proof", check_proof_numbers),
        (3, "the settings of the candidates", check_reported),
        (8, "the duration", _check_duration),
        (10, "the calibration", _check_calibration),
        (11, "the status of the candidates", _check_candidates),
        (11, "the labels of the candidates", _check_labels),
        (13, "the load of the machine", check_machines),
        (14, "the recipes of the candidates", check_candidate_recipes),
    ):
        with ledger.part(rule, what):
            check(ledger, document)
    check_comparison_fields(ledger, document)
    with ledger.part(14, "the recipe's source"):
        check_declared(ledger, root, document)
        check_stated_parts(ledger, root, document)
    ledger.skip("the errors of the proof: checking them requires repeating it")
    ledger.skip("what processes report about themselves: settings, versions, set-up, memory, load, and dates")
    ledger.skip("the calibration: its machine, date and times, and the load of other programs")
    _check_times(ledger, root, result)


def _check_times(ledger: Ledger, root: Path, result: ComparisonResult) -> None:
    document = result.document
    with ledger.part(8, _SAMPLES):
        there = plain(root, _SAMPLES) is not None
        ledger.hold(8, there or not document["results"], f"there is no {_SAMPLES}: the raw values are missing")
        samples = timed_samples(root / _SAMPLES, len(document["processes"]))
        whole = check_samples(ledger, document, samples)
        if not whole:
            ledger.skip("medians, verdicts and order: the samples are incomplete")
            return
        with ledger.part(9, "the medians and verdicts"):
            check_summaries(ledger, document, samples)
        with ledger.part(7, "the order of the processes"):
            check_turns(ledger, document, samples)
        with ledger.part(8, "the times against the arithmetic"):
            check_work(ledger, document, valid(document, samples))


def _check_provenance(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rules 1 and 12: candidates of one group had the same data, split, weights and network."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for candidate in document["candidates"]:
        if candidate["status"] == "timed" and ledger.hold(
            1, candidate["provenance"] is not None, f"{candidate['label']} does not state its inputs"
        ):
            proved, given = candidate["proved_on"] or {}, candidate["provenance"]
            odd = sorted(key for key in proved.keys() & given.keys() if proved[key] != given[key])
            ledger.hold(
                1, not odd, f"{candidate['label']} was proved on other {', '.join(odd)} than those of the timing"
            )
            groups.setdefault(json.dumps(candidate["settings"], sort_keys=True), []).append(candidate)
    for members in groups.values():
        first = members[0]
        for other in members[1:]:
            for key in sorted({*first["provenance"], *other["provenance"]}):
                ledger.hold(
                    12 if key == "split" else 1,
                    first["provenance"].get(key) == other["provenance"].get(key),
                    f"{first['label']} and {other['label']} have different {key.replace('_', ' ')}: "
                    f"{str(first['provenance'].get(key))[:12]} and {str(other['provenance'].get(key))[:12]}",
                )
            _check_proved_alike(ledger, first, other)
    if document["kind"] != "operators":
        for member in (member for own in groups.values() for member in own):
            settings, label = member["settings"], member["label"]
            parts = {**parts_of(document), **settings}
            check_data(ledger, label, parts, member["provenance"])
            if not settings.keys() - {"framework", "batch_size"}:
                check_weights(ledger, label, document, member["provenance"], parts.get("seed", 0))
    splits = {member["provenance"].get("split") for own in groups.values() for member in own}
    fixed = document["recipe"]["fixed"]
    if "dataset" in fixed:
        ledger.hold(12, len(splits) <= 1, f"candidates of one fixed data set had {len(splits)} different splits")


def _check_proved_alike(ledger: Ledger, first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """The proofs of two candidates had the same inputs, also those that the timed processes do not state."""
    one, two = first["proved_on"] or {}, other["proved_on"] or {}
    odd = sorted(key for key in {*one, *two} if one.get(key) != two.get(key)) if one and two else []
    ledger.hold(
        1,
        not odd,
        f"{first['label']} and {other['label']} were proved on different {', '.join(odd).replace('_', ' ')}; allowed: "
        "the same inputs",
    )


def _check_observed(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rules 2 and 3, by the settings read back in the timed processes."""
    dtypes: dict[str, dict[str, Any]] = {}
    pinned = document["measurement"]["processors"]
    ledger.hold(
        3, len(pinned) == min(document["threads"], len(pinned)) and pinned == sorted(set(pinned)), f"pinned to {pinned}"
    )
    for candidate in document["candidates"]:
        found, label = candidate["observed"], candidate["label"]
        if candidate["status"] != "timed":
            continue
        declared = {**parts_of(document), **candidate["settings"]}
        operators, peaks = document["kind"] == "operators", candidate["peaks"]
        if ledger.hold(
            8, peaks is not None, f"{label} was timed, and its peaks are missing; allowed: the peaks of its processes"
        ):
            known = peaks["product_flop_s"] is None or peaks["product_error"] is not None
            ledger.hold(2, known, f"{label}: the error of its matrix product is missing, and its rate is there")
        error = (peaks or {}).get("product_error")
        check_numerics(ledger, label, found, declared, product_error=error, operators=operators)
        if not found:
            continue
        if not operators:
            dtypes.setdefault(str(declared.get("precision")), {})[label] = (
                found.get("dtype"),
                found.get("compute_dtype"),
            )
        own = str(found.get("framework"))
        ledger.hold(
            3,
            ".py:" in candidate["framework"]  # the class in the file gives it another name
            or own.partition(":")[0] == candidate["framework"].partition(":")[0],
            f"{label} should run on {candidate['framework']}, and ran on {own}",
        )
        check_versions(ledger, document, label, own, found.get("version"))
        check_threads(ledger, label, document["threads"], found.get("threads"), ())
        if "affinity" in found and found["affinity"] is not None:
            ledger.same(3, f"{label}: the processors that it ran on", sorted(found["affinity"]), pinned)
        else:
            ledger.skip("processors of a candidate: it does not state them")
    for precision, pairs in dtypes.items():
        ledger.hold(
            2,
            len(set(pairs.values())) == 1,
            f"candidates of the precision {precision} have different element types: {pairs!r:.150}",
        )


def _check_measurement(ledger: Ledger, document: Mapping[str, Any]) -> None:
    reported, quick = document["measurement"], rules_of(document).quick_rounds
    looks, stated = list(rules_of(document).looks), document["statistics"]
    ledger.same(7, "the rounds after which verdicts are computed", stated["looks"], looks)
    ledger.same(4, "the clock", reported["clock"], _CLOCK)
    steps = document["proof"]["steps"]
    if steps is not None:
        # For inference, fewer batches are permitted.
        right = steps == reported["proof_steps"] or (
            document["kind"] == "inference" and steps < reported["proof_steps"]
        )
        ledger.hold(1, right, f"the stored proof has {steps} steps; requested: {reported['proof_steps']}")
    ledger.hold(5, bool(reported["scope"].strip()), "no scope states what the clock covers; allowed: a scope")
    ledger.hold(
        7,
        document["mode"] == "rigorous" or reported["most_processes"] == quick,
        f"the mode is {document['mode']} with up to {reported['most_processes']} processes per candidate; allowed: "
        f"{quick}",
    )


def _check_duration(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """The dates of a comparison that ended agree with its duration."""
    if document["finished"] is None or document["resources"] is None:
        return
    # Comparisons of the first scheme began their clock before their first date.
    first = document["processes"][0]["begin_s"] if document["processes"] and not rules_of(document).tossed else 0.0
    check_duration(ledger, document, document["resources"]["wall_s"], before_s=first)


def _check_calibration(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rule 10: there is a calibration with the same number of threads, and every noise floor follows from it."""
    reported = document["calibration"]
    if (
        not ledger.hold(
            10,
            reported is not None or not document["verdicts"],
            "there are verdicts, and no calibration of the machine",
        )
        or reported is None
    ):
        return
    enough = bool(reported["processes"]) and all(len(own) >= 16 for own in reported["processes"].values())
    ledger.hold(10, enough, "the calibration has too few processes")
    ledger.same(10, "the calibration's threads", reported["threads"], document["threads"])
    floors: dict[int, float] = {}
    rules = rules_of(document)
    looks = (rules.quick_rounds,) if document["mode"] == "quick" else rules.looks
    crowded = disturbed(document)
    for row in document["verdicts"]:
        count = row["rounds"]
        if count not in looks:
            ledger.same(10, f"{row['candidate']}: the floor of {count} rounds", row["floor"], None)
            continue
        name = f"{row['candidate']}, {row['workload']}"
        if {row["candidate"], row["baseline"]} & crowded:
            ledger.same(10, f"{name}: the floor under the load of other programs", row["floor"], None)
            continue
        if count not in floors:
            floors[count] = calibrated_floor(document, count) or 1.0
        follows = floors[count]
        ledger.same(10, f"{name}: the noise floor of {count} rounds", row["floor"], follows)
        claimed, beyond = row["word"] != "no difference shown", abs(math.log(row["ratio"])) > math.log(follows)
        ledger.hold(
            10, beyond or not claimed, f"{name} is called {row['word']} within the noise floor of {follows:.3g}"
        )


def _check_candidates(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rule 11: every candidate's status is reported, and a failed one has no verdict."""
    labels = [candidate["label"] for candidate in document["candidates"]]
    ledger.hold(11, len(set(labels)) == len(labels), f"candidates are listed twice: {labels!r:.80}")
    ledger.hold(11, document["baseline"] in labels, f"the baseline {document['baseline']!r:.60} is not a candidate")
    ended = document["status"] == "success"
    with_verdict = {row["candidate"] for row in document["verdicts"]}
    timed = {row["candidate"] for row in document["results"]}
    ledger.hold(
        11, with_verdict | timed <= set(labels), f"there are results of {sorted((with_verdict | timed) - set(labels))}"
    )
    for candidate in document["candidates"]:
        label, status = candidate["label"], candidate["status"]
        if status in ("failed", "different"):
            ledger.hold(
                11, bool(candidate["reason"]), f"{label} is {status}, without a reason; allowed: with its reason"
            )
            ledger.hold(11, label not in with_verdict, f"{label} is {status}, and has a verdict; allowed: none")
        ledger.hold(
            11, not candidate["failed_rounds"] or status == "failed", f"{label} failed in a round and is {status}"
        )
        ledger.hold(
            11,
            not ended or status not in ("waiting", "proved"),
            f"{label} is {status} at the end; allowed: timed, different or failed",
        )
        if status == "timed":
            ledger.hold(11, not ended or label in timed, f"{label} was timed, and has no result")
            base = document["baseline"]
            ledger.hold(
                11, not ended or label == base or label in with_verdict, f"{label} was timed, and has no verdict"
            )
        bad = [
            p["round"] for p in document["processes"] if p["candidate"] == label and p["job"] == "time" and p["reason"]
        ]
        ledger.hold(
            11,
            set(bad) <= set(candidate["failed_rounds"]),
            f"{label}: processes failed in the rounds {bad}; stored as failed {candidate['failed_rounds']}",
        )
    if not ended:
        ledger.hold(11, bool(document["reasons"]), f"the comparison is {document['status']}, without a reason")
        ledger.skip(f"an unfinished comparison (status {document['status']}): the existing parts were checked")


def _check_labels(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rule 11: a candidate's label names its own framework and settings."""
    rows = document["candidates"]
    frameworks = {row["framework"] for row in rows}
    for row in rows:
        # A value may contain a comma, so the label is not split.
        label, settings = str(row["label"]), row["settings"]
        others = frameworks - {row["framework"]}
        named = label.partition(", ")[0]
        ledger.hold(
            11,
            named not in others,
            f"the candidate {label!r:.60} has the framework {row['framework']!r:.40}; allowed: the label's",
        )
        for found in _SETTING.finditer(label):
            key, value = found.groups()
            ledger.hold(
                11,
                key in settings and str(settings[key]).startswith(value),
                f"the candidate {label!r:.60} has {key}={settings.get(key)!r:.40} as a setting; allowed: the label's",
            )
