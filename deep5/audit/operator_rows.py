"""Rules 8 and 9 for a run of level 0: operators.json follows from the samples, and no rate exceeds the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.audit.identity import own_recipe
from deep5.audit.operator_fields import check_operator_fields
from deep5.audit.operator_summary import middle, rates
from deep5.core.errors import Deep5Error
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

__all__ = ["check_operator_rows"]

_FILE = "operators.json"
# A peak is measured for a tenth of a second, and clocks vary: a rate may be slightly higher, but never twice as high.
_ROOM = 1.5
# So many other processes may have shared a processor while the peak was measured, where the result reports it.
_SHARED, _REPORTED = 20.0, "times the measured peak: other work"


def check_operator_rows(
    ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]
) -> None:
    """Check the rows of operators.json.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json.
        samples: Rows of samples.csv, by series.
    """
    with ledger.part(9, _FILE):
        reported = json_of(root, _FILE)
        if not ledger.hold(9, isinstance(reported, dict), f"there is no {_FILE}"):
            return
        used: set[str] = set()
        for row in reported["rows"]:
            used |= set(row["series"])
            room = _SHARED if any(_REPORTED in said for said in reported["warnings"]) else _ROOM
            _check_row(ledger, row, samples, reported["roofline"], room)
        warm = {name for name in samples if name.startswith("time[") and " | warm | " in name}
        ledger.hold(8, warm == used, f"series without a row, or rows without a series: {sorted(warm ^ used)[:3]}")
        _check_coverage(ledger, reported)
        _check_peak(ledger, reported["roofline"])
        _check_work(ledger, reported["rows"], document)
        _check_metrics(ledger, reported, document, samples)
        check_operator_fields(ledger, document, reported, samples)
        ledger.skip("first calls, memory and processors of operators: no samples of them are stored")
        unsure = sum(bool(row["warnings"]) for row in reported["rows"])
        line = f"{unsure} of {len(reported['rows'])} numbers may be unstable"
        ledger.hold(
            13,
            not unsure or any(said.startswith(line) for said in document["warnings"]),
            f"no warning states: {line}",
        )
        for said in reported["warnings"]:
            ledger.hold(13, said in document["warnings"], f"a warning of {_FILE} is not in the result: {said[:100]}")
        peak_dtype, dtypes = reported["roofline"]["dtype"], (document["numerics"] or {}).get("dtype")
        listed = [dtypes] if isinstance(dtypes, str) else list(dtypes or ())
        ledger.hold(2, peak_dtype in listed, f"the peak is of {peak_dtype}, and the run of {listed}")
        for process in reported["processes"]:
            for name, settings in process["settings"].items():
                ledger.hold(
                    2, settings.get("tf32") is not True, f"{name} rounds products to TF32, which is not declared"
                )


def _check_row(
    ledger: Ledger,
    row: Mapping[str, Any],
    samples: Mapping[str, Sequence[SampleRow]],
    roofline: Mapping[str, Any],
    room: float,
) -> None:
    name = f"{row['problem']}, {row['direction']}, {row['candidate']}"
    _check_names(ledger, name, row)
    series = [[sample.value for sample in samples.get(own, ())] for own in row["series"]]
    if not ledger.hold(8, bool(series) and all(series), f"{name}: its samples are missing"):
        return
    warm = middle(series)
    for field, value in warm.items():
        ledger.same(8 if field == "samples" else 9, f"{field} of {name}", row[field], value)
    cold, tried = (_beside(row, samples, state) for state in ("cold", "warm-up"))
    found = middle(cold) if cold and cold[0] else None
    ledger.same(9, f"the cold times of {name}", row["cold"], found)
    if found is not None:
        _check_moved(ledger, name, row["bytes"], found["median_s"], room, roofline)
    ledger.same(8, f"the warm-ups of {name}", row["warm_ups"], sum(map(len, tried)))
    for field, value in rates(warm["median_s"], row["flops"], row["bytes"], roofline).items():
        ledger.same(9, f"{field} of {name}", row[field], value)
    least = min(value for times in series for value in times) * row["calls"]
    ledger.hold(6, least >= 1e-6, f"{name}: a sample took {least:.2g} s, which no clock can resolve")
    peak = max([roofline["flop_s"] or 0.0, *(seen[0] or 0.0 for seen in roofline["seen"].values())])
    if row["flops"] is None or not peak:
        ledger.skip("times compared with the arithmetic: the number of operations, or the peak, is not known")
        return
    rate = row["flops"] / warm["median_s"]
    ledger.hold(
        8,
        rate <= room * peak,
        f"{name}: {row['flops']} operations in {warm['median_s']:.3g} s are {rate:.3g} a second, and the machine's "
        f"measured peak is {peak:.3g}",
    )


def _check_names(ledger: Ledger, name: str, row: Mapping[str, Any]) -> None:
    """A row's own series, and its candidate, name its problem, direction and framework."""
    label = f"{row['framework']} (bare)" if row["bare"] else row["framework"]
    ledger.same(3, f"{name}: the candidate, by its framework", row["candidate"], label)
    begin = f"time[{row['problem']} | {row['direction']} | {row['candidate']} | warm | process "
    odd = [own for own in row["series"] if not (own.startswith(begin) and own.endswith("]"))]
    ledger.hold(8, not odd, f"{name}: its samples are those of {', '.join(odd)[:100]}; allowed: its own")
    ledger.same(8, f"{name}: the number of processes, by its series", row["processes"], len(set(row["series"])))


def _beside(row: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]], state: str) -> list[list[float]]:
    """The times of the row's other series, by process."""
    parts = [own.rpartition(" | warm | ") for own in row["series"]]
    return [[sample.value for sample in samples.get(f"{head} | {state} | {tail}", ())] for head, _, tail in parts]


def _check_moved(
    ledger: Ledger, name: str, size: int | None, median_s: float, room: float, roofline: Mapping[str, Any]
) -> None:
    """A call after an eviction of the caches moves its inputs and outputs through the memory."""
    peak = max([roofline["byte_s"] or 0.0, *(seen[1] or 0.0 for seen in roofline["seen"].values())])
    if not size or not peak:
        ledger.skip("cold times compared with the memory: the number of bytes, or the peak, is not known")
        return
    rate = size / median_s
    ledger.hold(
        8,
        rate <= room * peak,
        f"{name}: {size} bytes in {median_s:.3g} s, after an eviction of the caches, are {rate:.3g} a second, and the "
        f"machine's measured peak is {peak:.3g}",
    )


def _check_peak(ledger: Ledger, roofline: Mapping[str, Any]) -> None:
    """Check that the peaks are the highest rates observed of any library."""
    for place, field in enumerate(("flop_s", "byte_s")):
        best = max((seen[place] for seen in roofline["seen"].values() if seen[place]), default=None)
        ledger.same(9, f"the peak {field}", roofline[field], best)


def _check_work(ledger: Ledger, rows: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> None:
    """Check the operation count of each problem, for deep5's own recipes."""
    from deep5.bench.plan import workloads
    from deep5.bench.recipe import plan_of
    from deep5.recipe.experiment import recipe_parts

    reported = document["recipe"]
    try:
        recipe = own_recipe(str(reported["name"]), str(reported["size"]), str(reported["hash"]))
        works, _ = workloads(replace(plan_of(recipe_parts(recipe)), take=None))
    except Deep5Error as error:
        ledger.skip(f"the number of operations of an operator: {str(error).splitlines()[0][:100]}")
        return
    known = {(work.problem.name, work.direction.name): work.flops for work in works}
    for row in rows:
        key = row["problem"], row["direction"]
        if key in known:
            ledger.same(8, f"the operations of {key[0]}, {key[1]}", row["flops"], known[key])


def _check_metrics(
    ledger: Ledger, reported: Mapping[str, Any], document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]
) -> None:
    """Check that the metrics are the medians of the values in the rows."""
    pairs = _pairs(reported["rows"], samples)
    through = [counts for label, counts in reported["coverage"].items() if not label.endswith("(bare)")]
    follows: dict[str, list[float]] = {
        "bare_ratio": [median(ours / bare for ours, bare in pair) for pair in pairs],
        "operator_cost": [median((ours - bare) * 1e6 for ours, bare in pair) for pair in pairs],
        "operator_coverage": [100 * sum(c["measured"] for c in through) / sum(c["of"] for c in through)],
    }
    for label, metric in zip(metric_labels(document["metrics"]), document["metrics"], strict=True):
        if metric["name"] == "operator_time":
            wanted = metric["parameters"]["framework"]
            own = [row for row in reported["rows"] if not row["bare"] and wanted in (None, row["framework"])]
            due = [row["median_s"] * 1e3 for row in own]
        elif metric["name"] in follows:
            due = follows[metric["name"]]
        else:
            continue
        found = [sample.value for sample in samples.get(label, ())]
        ledger.same(9, f"the samples of {label}, by the rows of {_FILE}", sorted(found), sorted(due))


def _pairs(
    rows: Sequence[Mapping[str, Any]], samples: Mapping[str, Sequence[SampleRow]]
) -> list[list[tuple[float, float]]]:
    """For each process and each row with direct calls: seconds through deep5 and of direct calls, round by round."""
    known = {(row["problem"], row["direction"], row["framework"]): row for row in rows if row["bare"]}
    found = []
    for row in rows:
        bare = known.get((row["problem"], row["direction"], row["framework"]))
        if row["bare"] or bare is None:
            continue
        # One of them may have run only in some processes.
        others = {name.rpartition(" | ")[2]: name for name in bare["series"]}
        for name in row["series"]:
            if (other := others.get(name.rpartition(" | ")[2])) is not None:
                both = zip(samples.get(name, ()), samples.get(other, ()), strict=False)
                found.append([(ours.value, bare.value) for ours, bare in both])
    return found


def _check_coverage(ledger: Ledger, reported: Mapping[str, Any]) -> None:
    """Check that nothing is dropped silently: measured and omitted problems, with reasons, are all problems."""
    found: dict[str, dict[str, int]] = {}
    for entry, measured in [(row, 1) for row in reported["rows"]] + [(entry, 0) for entry in reported["left_out"]]:
        counts = found.setdefault(entry["candidate"], {"measured": 0, "of": 0})
        counts["measured"] += measured
        counts["of"] += 1
    ledger.same(3, "the coverage", reported["coverage"], found)
    ledger.hold(11, all(entry["reason"] for entry in reported["left_out"]), "an entry is left out without a reason")
