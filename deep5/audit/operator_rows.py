"""Rules 8 and 9 for a run of level 0: operators.json follows from the samples, and no rate is beyond the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.errors import TooFewSamples
from deep5.results.samples_file import SampleRow

__all__ = ["check_operator_rows"]

_FILE = "operators.json"
# A peak is measured for a tenth of a second, and clocks rise and fall: a rate may be a little higher, never twice.
_ROOM = 1.5


def check_operator_rows(
    ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]
) -> None:
    """Check the rows of operators.json.

    Args:
        ledger: Takes the findings.
        root: The folder, resolved.
        document: result.json.
        samples: As samples.csv has them, by series.
    """
    with ledger.part(9, _FILE):
        told = json_of(root, _FILE)
        if not ledger.hold(9, isinstance(told, dict), f"there is no {_FILE}"):
            return
        used: set[str] = set()
        for row in told["rows"]:
            used |= set(row["series"])
            _check_row(ledger, row, samples, told["roofline"])
        warm = {name for name in samples if name.startswith("time[") and " | warm | " in name}
        ledger.hold(8, warm == used, f"series without a row, or rows without a series: {sorted(warm ^ used)[:3]}")
        _check_coverage(ledger, told)
        unsure = sum(bool(row["warnings"]) for row in told["rows"])
        line = f"{unsure} of {len(told['rows'])} numbers may be unstable"
        ledger.hold(
            13,
            not unsure or any(said.startswith(line) for said in document["warnings"]),
            f"the warnings do not say that {line}",
        )
        for said in told["warnings"]:
            ledger.hold(13, said in document["warnings"], f"a warning of {_FILE} is not in the result: {said[:100]}")
        peak_dtype, dtypes = told["roofline"]["dtype"], (document["numerics"] or {}).get("dtype")
        listed = [dtypes] if isinstance(dtypes, str) else list(dtypes or ())
        ledger.hold(2, peak_dtype in listed, f"the peak is of {peak_dtype}, and the run of {listed}")
        for process in told["processes"]:
            for name, settings in process["settings"].items():
                ledger.hold(
                    2, settings.get("tf32") is not True, f"{name} rounds products to TF32, which nobody declared"
                )


def _check_row(
    ledger: Ledger, row: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]], roofline: Mapping[str, Any]
) -> None:
    from deep5.samples import median_interval

    name = f"{row['problem']}, {row['direction']}, {row['candidate']}"
    series = [[sample.value for sample in samples.get(own, ())] for own in row["series"]]
    if not ledger.hold(8, bool(series) and all(series), f"{name}: its samples are missing"):
        return
    values = [median(times) for times in series] if len(series) > 1 else series[0]
    ledger.same(9, f"the median of {name}", row["median_s"], median(values))
    ledger.same(8, f"the number of samples of {name}", row["samples"], sum(map(len, series)))
    try:
        found = median_interval(values)
        ledger.same(9, f"the interval of {name}", [row["low_s"], row["high_s"]], [found.low, found.high])
    except TooFewSamples:
        ledger.same(9, f"the interval of {name}", row["low_s"], None)
    least = min(value for times in series for value in times) * row["calls"]
    ledger.hold(6, least >= 1e-6, f"{name}: a sample took {least:.2g} s, which no clock can tell")
    peak = max([roofline["flop_s"] or 0.0, *(rates[0] or 0.0 for rates in roofline["seen"].values())])
    if row["flops"] is None or not peak:
        ledger.skip("times against the arithmetic: how many operations there are, or the peak, is not known")
        return
    rate = row["flops"] / median(values)
    ledger.hold(
        8,
        rate <= _ROOM * peak,
        f"{name}: {row['flops']} operations in {median(values):.3g} s are {rate:.3g} a second, and the machine's "
        f"measured peak is {peak:.3g}",
    )
    ledger.same(9, f"the rate of {name}", row["gflop_s"], rate / 1e9)


def _check_coverage(ledger: Ledger, told: Mapping[str, Any]) -> None:
    """Nothing is dropped unsaid: what was measured and what was left out, with its reason, are all there is."""
    found: dict[str, dict[str, int]] = {}
    for entry, measured in [(row, 1) for row in told["rows"]] + [(entry, 0) for entry in told["left_out"]]:
        counts = found.setdefault(entry["candidate"], {"measured": 0, "of": 0})
        counts["measured"] += measured
        counts["of"] += 1
    ledger.same(3, "the coverage", told["coverage"], found)
    ledger.hold(11, all(entry["reason"] for entry in told["left_out"]), "something is left out without a reason")
