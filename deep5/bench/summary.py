"""Summary of the raw times of operators: medians with intervals, rates, shares of the machine's peak, and omissions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import median
from typing import Any

from deep5.core.errors import TooFewSamples
from deep5.core.metric import Sample
from deep5.core.quantities import percent, rate, seconds
from deep5.measuring.samples import median_interval
from deep5.operators.roofline import Roofline

__all__ = ["OperatorTimes", "middle_of", "rates_of", "roofline_of", "series_name", "summarise"]

_KEY = ("problem", "direction", "candidate")
# Thresholds beyond which a number is reported as uncertain.
_WIDE, _DRIFT, _OVERHEAD, _STEADY = 0.05, 0.05, 0.01, 0.2
# Ratio of time through deep5 to bare time below which the two do not run the same thing, by the median's interval.
_ALIKE = 0.9


@dataclass(frozen=True, kw_only=True)
class OperatorTimes:
    """All measurements of operators, in JSON types.

    Attributes:
        rows: One per problem, direction, and candidate; times in seconds per call.
        left_out: Each with `problem`, `title`, `use`, `direction`, `candidate` and `reason`.
        coverage: By candidate, `measured` and `of`: the number of measured and of all problems and directions.
        roofline: The peaks.
        raw: Result of `deep5.bench.measure`.
        warnings: Causes of uncertainty in the numbers.
    """

    rows: tuple[dict[str, Any], ...]
    left_out: tuple[dict[str, Any], ...]
    coverage: Mapping[str, Mapping[str, int]]
    roofline: Roofline
    raw: Sequence[Mapping[str, Any]]
    warnings: tuple[str, ...]

    def samples(self) -> Iterable[tuple[str, list[Sample]]]:
        """All raw times by the name of their series, including warm-up, in chronological order."""
        for raw in self.raw:
            for series in raw["series"]:
                for cache in ("warm_ups", "samples", "cold"):
                    if series[cache]:
                        name = series_name(series, cache, raw["process"])
                        yield name, [Sample(value, time_s=at) for at, value in series[cache]]

    def pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Rows of one workload and framework: through deep5, and bare."""
        known = {(row["problem"], row["direction"], row["framework"], row["bare"]): row for row in self.rows}
        return [(row, known[*key[:3], True]) for key, row in known.items() if not key[3] and (*key[:3], True) in known]


def series_name(series: Mapping[str, Any], cache: str, process: int) -> str:
    """Name of a series in samples.csv: `time[conv-24 | forward | pytorch (bare) | warm | process 1]`."""
    state = {"samples": "warm", "cold": "cold", "warm_ups": "warm-up"}[cache]
    return (
        f"time[{series['problem']} | {series['direction']} | {series['candidate']} | {state} | process {process + 1}]"
    )


def summarise(found: Sequence[Mapping[str, Any]]) -> OperatorTimes:
    """Compute rows of medians from the raw times of one process or several.

    For one process, the interval is that of the median of its samples. For several, each process contributes its
    median, and the interval is that of the median of these, because samples of one process are not independent.

    Args:
        found: Result of `deep5.bench.measure`.
    """
    peak = reduce(Roofline.merged, (roofline_of(raw["roofline"]) for raw in found))
    grouped: dict[tuple[str, ...], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for raw in found:
        for series in raw["series"]:
            grouped.setdefault(tuple(series[name] for name in _KEY), []).append((raw, series))
    rows = tuple(_row(group, peak, len(found)) for group in grouped.values())
    seen: dict[tuple[str, ...], dict[str, Any]] = {}
    for raw in found:
        for entry in raw["left_out"]:
            seen.setdefault(tuple(entry[name] for name in _KEY), entry)
    left_out = tuple(entry for key, entry in seen.items() if key not in grouped)
    coverage: dict[str, dict[str, int]] = {}
    for label, measured in [(row["candidate"], 1) for row in rows] + [(entry["candidate"], 0) for entry in left_out]:
        counts = coverage.setdefault(label, {"measured": 0, "of": 0})
        counts["measured"] += measured
        counts["of"] += 1
    said = [text for raw in found for text in raw["warnings"]] + _unsteady(found) + _beyond_peak(rows)
    times = OperatorTimes(
        rows=rows,
        left_out=left_out,
        coverage=coverage,
        roofline=peak,
        raw=found,
        warnings=tuple(dict.fromkeys(said)),
    )
    return replace(times, warnings=(*times.warnings, *_not_alike(times)))


def _not_alike(times: OperatorTimes) -> list[str]:
    """Frameworks on which deep5 is faster than hand-written code, which is impossible if both run the same thing."""
    ratios: dict[str, list[float]] = {}
    for ours, bare in times.pairs():
        ratios.setdefault(ours["framework"], []).append(ours["median_s"] / bare["median_s"])
    return [
        f"{name} takes {median(found):.2f} times as long through deep5 as in hand-written code (median of "
        f"{len(found)}): the implementations differ, and the ratio is not the overhead of deep5"
        for name, found in ratios.items()
        if _surely_below(found, _ALIKE)
    ]


def _surely_below(values: Sequence[float], limit: float) -> bool:
    """Whether the whole interval of a median is below the limit; false if there are too few values for an interval."""
    try:
        return median_interval(values).high < limit
    except TooFewSamples:
        return False


def _unsteady(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning if the machine's peak changed during the measurement, over all processes."""
    seen = [flop_s for raw in found for flop_s in raw["peaks_flop_s"] if flop_s is not None]
    if not seen or max(seen) <= (1 + _STEADY) * min(seen):
        return []
    return [
        f"the measured peak varies from {rate(min(seen), 'FLOP/s')} to {rate(max(seen), 'FLOP/s')}: the machine has "
        "other work, or is throttled; shares are of the best; remedy: a quiet machine"
    ]


def _beyond_peak(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning if a rate is above the measured peak: then the machine was slower when the peak was measured."""
    most = max((row["share_of_peak"] for row in rows if row["share_of_peak"] is not None), default=0.0)
    if most <= 1 + _STEADY:
        return []
    return [
        f"the highest rate is {most:.3g} times the measured peak: other work slowed the machine while the peak was "
        "measured; shares of it are too high; remedy: a quiet machine"
    ]


def roofline_of(reported: Mapping[str, Any]) -> Roofline:
    """The peaks as read from the document."""
    seen = {name: (rates[0], rates[1]) for name, rates in reported["seen"].items()}
    return Roofline(**{**reported, "seen": seen})


def _row(
    group: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], peak: Roofline, processes: int
) -> dict[str, Any]:
    raw, first = group[0]
    warm = middle_of([[value for _, value in series["samples"]] for _, series in group])
    row = {
        **{name: first[name] for name in (*_KEY, "title", "use", "framework", "bare", "flops", "bytes", "calls")},
        **warm,
        "first_call_s": median(series["first_call_s"] for _, series in group),
        "warm_ups": sum(len(series["warm_ups"]) for _, series in group),
        "cold": middle_of([[value for _, value in series["cold"]] for _, series in group]) if first["cold"] else None,
        **rates_of(warm["median_s"], first["flops"], first["bytes"], peak),
        "processors": max((s["processors"] for _, s in group if s["processors"] is not None), default=None),
        "memory_bytes": max((s["memory_bytes"] for _, s in group if s["memory_bytes"] is not None), default=None),
        "processes": len(group),
        "spent_s": sum(series["spent_s"] for _, series in group),
    }
    return {**row, "warnings": _warnings(row, group, raw["overhead_s"], processes)}


def rates_of(seconds: float, flops: int | None, moved: int | None, peak: Roofline) -> dict[str, float | None]:
    """Rates of a call, and their shares of the machine's peaks; None if work or traffic is unknown.

    Args:
        seconds: Seconds of a call.
        flops: Operations of a call.
        moved: Bytes moved by a call.
        peak: Peaks of the machine.
    """
    computed = None if flops is None else flops / seconds
    attainable = None if flops is None or not moved else peak.attainable(flops, moved)
    return {
        "gflop_s": None if computed is None else computed / 1e9,
        "gbyte_s": None if not moved else moved / seconds / 1e9,
        "share_of_peak": None if computed is None or peak.flop_s is None else computed / peak.flop_s,
        "share_of_roofline": None if computed is None or attainable is None else computed / attainable,
    }


def middle_of(processes: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Median, interval, and number of samples.

    Args:
        processes: The times of each, in seconds per call.
    """
    values = [median(times) for times in processes if times] if len(processes) > 1 else list(processes[0])
    count = sum(map(len, processes))
    try:
        interval = median_interval(values)
    except TooFewSamples:
        return {"median_s": median(values), "low_s": None, "high_s": None, "confidence": None, "samples": count}
    return {
        "median_s": median(values),
        "low_s": interval.low,
        "high_s": interval.high,
        "confidence": interval.confidence,
        "samples": count,
    }


def _warnings(
    row: Mapping[str, Any],
    group: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    overhead_s: float,
    processes: int,
) -> list[str]:
    """Why a number may be unstable, and the remedy."""
    said, middle = [], row["median_s"]
    remedy = "remedy: a quiet machine" if processes > 1 else "remedy: --rigorous, a quiet machine"
    if row["low_s"] is None:
        said.append(f"{row['samples']} samples allow no interval; remedy: --rigorous, or a smaller size")
    elif (row["high_s"] - row["low_s"]) / 2 > _WIDE * middle:
        said.append(
            f"the interval is {row['low_s'] / middle:.2f} to {row['high_s'] / middle:.2f} of the median; {remedy}"
        )
    if not all(series["settled"] for _, series in group):
        said.append(f"the times had not settled when the warm-up ended; {remedy}")
    drifts = [_drift([value for _, value in series["samples"]]) for _, series in group]
    if len(group) == 1 and abs(drifts[0]) > _DRIFT:
        said.append(
            f"the times drift: the second half takes {percent(drifts[0], signed=True)} relative to the first; {remedy}"
        )
    if overhead_s > _OVERHEAD * middle:
        said.append(f"the loop itself takes {percent(overhead_s / middle)} of a call ({seconds(overhead_s)})")
    if len(group) < processes:
        said.append(f"measured in {len(group)} of {processes} processes")
    return said


def _drift(times: Sequence[float]) -> float:
    half = len(times) // 2
    return median(times[-half:]) / median(times[:half]) - 1 if half >= 3 else 0.0
