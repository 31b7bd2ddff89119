"""Fields of a run of operators that follow from its plan and its samples, are stored twice, or have a range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from deep5.audit.due_warnings import is_said
from deep5.audit.finding import Ledger
from deep5.audit.host import check_device
from deep5.audit.numerics import parts_of
from deep5.audit.plausible import check_versions
from deep5.core.quantities import percent
from deep5.results.samples_file import SampleRow

__all__ = ["check_operator_fields"]

# Keys of a plan that a recipe has by the same name; names may be one string.
_SAME = (
    "operator", "problems", "shapes", "attributes", "dtype", "backward", "cold", "processes", "rounds", "threads",
    "device", "seed", "limit_gflop", "take",
)  # fmt: skip
_NAMES = ("frameworks", "uses")
# What a recipe has where it states none of them.
_DEFAULTS: Mapping[str, Any] = {
    "dtype": "float32", "backward": False, "cold": False, "processes": 8, "rounds": 30, "device": "cpu", "seed": 0,
}  # fmt: skip
# Half the width of an interval, a drift, and the loop's own time, each relative to the median, that are reported.
_WIDE, _DRIFT, _OVERHEAD = 0.05, 0.05, 0.01
# The coarsest clock and the slowest loop in which a call of microseconds can be timed.
_COARSE_S = 1e-3
# Process times and the clock are read one after the other.
_ROOM_S, _ROOM = 1.0, 1.5

Samples = Mapping[str, Sequence[SampleRow]]


def check_operator_fields(
    ledger: Ledger, document: Mapping[str, Any], reported: Mapping[str, Any], samples: Samples
) -> None:
    """Check the fields of operators.json and of the plan.

    Args:
        ledger: Receives the findings.
        document: result.json.
        reported: operators.json.
        samples: Rows of samples.csv, by series.
    """
    with ledger.part(14, "the plan"):
        _check_plan(ledger, document, reported)
    with ledger.part(3, "the settings of the frameworks"):
        _check_settings(ledger, document, reported)
    with ledger.part(8, "the times beside the samples"):
        _check_times(ledger, document, reported, samples)
    with ledger.part(13, "the warnings of the rows"):
        for row in reported["rows"]:
            _check_warnings(ledger, reported, row, samples)


def _listed(value: Any) -> list[str]:
    return value.split(",") if isinstance(value, str) else list(value or ())


def _check_plan(ledger: Ledger, document: Mapping[str, Any], reported: Mapping[str, Any]) -> None:
    """The plan is the recipe's, and the rows are of the plan."""
    plan, parts = document["components"]["plan"], parts_of(document)
    for key in _SAME:
        due = parts.get(key, _DEFAULTS.get(key))
        if key in plan and due is not None and not (key == "operator" and ":" in due):
            ledger.same(14, f"{key} of the plan, by the recipe", plan[key], due)
    if (found := document["framework"]) is not None:
        names = _listed(plan["frameworks"])
        ledger.hold(3, found["name"] in names, f"the run is of {found['name']!r:.40}; its plan of {names!r:.80}")
    for key in _NAMES:
        if key in parts:
            ledger.same(14, f"{key} of the plan, by the recipe", _listed(plan[key]), _listed(parts[key]))
    mode = "rigorous" if parts.get("rigorous") else "quick"
    ledger.same(7, "the mode of the plan, by the recipe", plan["mode"], mode)
    ledger.same(7, "the mode of the measurement, by the plan", document["measurement"]["mode"], mode)
    title = ", ".join("x".join(map(str, shape)) or "scalar" for shape in plan["shapes"])
    frameworks = _listed(plan["frameworks"])
    for row in reported["rows"]:
        if plan["shapes"] and plan["problems"] is None:
            ledger.same(14, f"the sizes of {row['problem']}, by the plan", row["title"], title)
        name = f"{row['problem']}, {row['direction']}, {row['candidate']}"
        ledger.hold(
            14,
            row["framework"] in frameworks and (not row["bare"] or plan["bare"] is not None),
            f"{name} is not of the plan, which names {', '.join(frameworks)[:80]}",
        )
    ledger.same(3, "the threads of the peaks, by the plan", reported["roofline"]["threads"], plan["threads"])
    ledger.same(3, "the threads of the run, by the plan", document["threads"]["asked"], plan["threads"])


def _check_settings(ledger: Ledger, document: Mapping[str, Any], reported: Mapping[str, Any]) -> None:
    """Frameworks have the plan's threads and device, and their packages' versions, or a warning says otherwise."""
    plan, said = document["components"]["plan"], reported["warnings"]
    numbers = [process["process"] for process in reported["processes"]]
    ledger.same(8, "the numbers of the processes", numbers, list(range(len(numbers))))
    for process in reported["processes"]:
        for name, found in process["settings"].items():
            if ".py:" not in name:  # a framework of a file states the name that its class gives it
                ledger.same(3, f"{name}: the framework that it states", found.get("framework"), name)
            check_versions(ledger, document, name, name, found.get("version"))
            check_device(ledger, name, document, name, found.get("device"), plan["device"])
            provider = found.get("provider")
            ledger.hold(
                3,
                provider is None or (provider == "CPUExecutionProvider") == (found.get("device") == "cpu"),
                f"{name} ran on {provider!r:.60} and the device {found.get('device')}; allowed: those of one device",
            )
            threads = found.get("threads")
            ledger.hold(
                3,
                threads in (None, plan["threads"])
                or any(
                    f"{name} has {threads}" in warning or f"{name} does not run with" in warning for warning in said
                ),
                f"{name} has {threads} threads; allowed: the plan's {plan['threads']}, or a warning",
            )
            ledger.hold(
                2,
                found.get("deterministic") is not False or any(name in warning for warning in said),
                f"{name} was not deterministic; allowed: with a warning",
            )


def _check_times(ledger: Ledger, document: Mapping[str, Any], reported: Mapping[str, Any], samples: Samples) -> None:
    """A row's parts are no longer than the row, and all rows no longer than the run."""
    used, before = document["resources"], document["system"]["before"]
    lived = float(used["wall_time_s"]) + float(used["set_up_s"]) + _ROOM_S
    cores = math.inf if before is None else before["cpu"]["logical_cores"] or math.inf
    total = math.inf if before is None else before["memory_bytes"]["total"]
    for process in reported["processes"]:
        clock, loop = process["resolution_s"], process["overhead_s"]
        ledger.hold(
            4,
            0 < clock <= _COARSE_S and 0 <= loop <= _COARSE_S,
            f"the clock resolves {clock:.3g} s, and an empty loop takes {loop:.3g} s; allowed: up to {_COARSE_S:g} s",
        )
    for row in reported["rows"]:
        name = f"{row['problem']}, {row['direction']}, {row['candidate']}"
        series = [[sample.value for sample in samples.get(own, ())] for own in row["series"]]
        taken = sum(map(sum, series)) * row["calls"]
        ledger.hold(
            8,
            row["calls"] >= 1 and taken <= row["spent_s"] <= lived,
            f"{name}: its samples took {taken:.4g} s, its part of the run {row['spent_s']:.4g} s, and the run "
            f"{lived:.4g} s; allowed: no part longer than the whole",
        )
        ledger.hold(
            6,
            0 < row["first_call_s"] <= lived,
            f"{name}: its first call took {row['first_call_s']:.4g} s",
        )
        busy, memory = row["processors"], row["memory_bytes"]
        ledger.hold(
            8,
            (busy is None or 0 <= busy <= cores * _ROOM + _ROOM_S) and (memory is None or 0 <= memory <= total),
            f"{name}: {busy} processors busy and {memory} bytes more; allowed: at least 0, and no more than there are",
        )
    spent = sum(row["spent_s"] for row in reported["rows"])
    ledger.hold(8, spent <= lived, f"all rows took {spent:.4g} s, and the run {lived:.4g} s")


def _check_warnings(ledger: Ledger, reported: Mapping[str, Any], row: Mapping[str, Any], samples: Samples) -> None:
    """Each reason for an unstable number that the samples show is reported."""
    series = [[sample.value for sample in samples.get(own, ())] for own in row["series"]]
    for parts in _due(reported, row, series):
        ledger.hold(
            13,
            is_said(parts, row["warnings"]),
            f"{row['problem']}, {row['direction']}, {row['candidate']}: a warning is missing: {' … '.join(parts)}",
        )


def _due(
    reported: Mapping[str, Any], row: Mapping[str, Any], series: Sequence[Sequence[float]]
) -> Iterator[tuple[str, ...]]:
    middle, low, high = row["median_s"], row["low_s"], row["high_s"]
    if low is None:
        yield "allow no interval", f"{row['samples']} samples"
    elif (high - low) / 2 > _WIDE * middle:
        yield "interval", f"{low / middle:.2f} to {high / middle:.2f}"
    half = len(series[0]) // 2
    if len(series) == 1 and half >= 3:
        drift = median(series[0][-half:]) / median(series[0][:half]) - 1
        if abs(drift) > _DRIFT:
            yield "second half", percent(drift, signed=True)
    places = [int(own.rpartition(" process ")[2].removesuffix("]")) - 1 for own in row["series"]]
    overhead = reported["processes"][min(places)]["overhead_s"]
    if overhead > _OVERHEAD * middle:
        yield "loop itself", percent(overhead / middle)
    if len(series) < len(reported["processes"]):
        yield "measured in", f"{len(series)} of {len(reported['processes'])} processes"
