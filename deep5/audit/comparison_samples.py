"""Rules 6 and 8: the raw times of a comparison are complete, in order, plausible, and not copied."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from deep5.audit.comparison_rows import failed_turns_of
from deep5.audit.finding import Ledger
from deep5.audit.sample_clock import Key, check_on_clock
from deep5.audit.steady_state import steady_from
from deep5.audit.timed_samples import TimedSample

__all__ = ["check_samples"]

# Shorter samples are below the resolution of a clock; the median sample must be far above.
_LEAST_S, _MIDDLE_S = 1e-6, 2e-4
# Shorter series may agree by chance if the clock is coarse.
_SERIES = 5
# Maximum rounds, and samples of one process: an evaluation of more takes hours, or all memory.
_MOST_ROUNDS, _MOST_SAMPLES = 1000, 50_000


def check_samples(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[TimedSample]) -> bool:
    """Check the raw times.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
        samples: All rows of samples.csv.

    Returns:
        Whether the samples are valid numbers, so that medians can be derived.
    """
    right = all(
        math.isfinite(s.seconds) and s.seconds > 0 and s.calls >= 1 and math.isfinite(s.time_s) for s in samples
    )
    if not ledger.hold(8, right, "a time in samples.csv is not positive and finite, or covers no call"):
        return False
    rounds, most = ({sample.round for sample in samples}, Counter(s[:4] for s in samples).most_common(1))
    if not ledger.hold(
        8,
        len(rounds) <= _MOST_ROUNDS and all(count <= _MOST_SAMPLES for _, count in most),
        f"samples.csv has {len(rounds)} rounds and up to {most[0][1] if most else 0} samples of one process; allowed: "
        f"{_MOST_ROUNDS} and {_MOST_SAMPLES} at most",
    ):
        return False
    processes = document["processes"]
    series: dict[Key, list[TimedSample]] = {}
    for sample in samples:
        series.setdefault((sample.candidate, sample.workload, sample.process), []).append(sample)
    labels = {row["label"] for row in document["candidates"]}
    failed = failed_turns_of(document)
    for (candidate, workload, number), own in series.items():
        name = f"{candidate}, {workload}, process {number}"
        known = 0 <= number < len(processes)
        reported = processes[number] if known else {}
        ledger.hold(
            8,
            known
            and candidate in labels
            and (reported["candidate"], reported["job"], reported["round"]) == (candidate, "time", own[0].round)
            and len({sample.round for sample in own}) == 1
            # Samples of a process in which a fault was found are kept, but do not count.
            and (reported["reason"] is None or (reported["round"], candidate) in failed),
            f"{name}: no such process of this candidate finished in round {own[0].round}",
        )
        _check_series(ledger, name, own, document["kind"])
        if known:
            lived = sum(s.seconds * s.calls for s in own)
            last_s = max(sample.time_s for sample in own) + own[0].seconds
            _check_lived(ledger, name, lived, last_s, reported["wall_s"], document["kind"])
    _check_all_there(ledger, document, series)
    _check_shared(ledger, series)
    check_on_clock(ledger, document, series)
    return True


def _check_series(ledger: Ledger, name: str, own: Sequence[TimedSample], kind: str) -> None:
    phases = [sample.phase for sample in own]
    first, warm = phases.count("first"), phases.count("warm-up")
    ledger.hold(
        6, first == 1 and phases[0] == "first", f"{name}: {first} samples are marked as the first call; allowed: one"
    )
    order = ["first"] * first + ["warm-up"] * warm + ["steady"] * (len(own) - first - warm)
    ledger.hold(6, phases == order, f"{name}: warm-up and steady samples are mixed")
    rest = own[first:]
    ledger.hold(
        8,
        [sample.place for sample in rest] == list(range(len(rest))),
        f"{name}: samples are missing, duplicated, or out of order: their indices are not 0 to {len(rest) - 1}",
    )
    ledger.hold(
        8, all(a.time_s <= b.time_s for a, b in pairwise(own)), f"{name}: samples are out of order: time decreases"
    )
    ledger.hold(8, "steady" in phases, f"{name}: there are no steady samples")
    shortest = min(sample.seconds * sample.calls for sample in own)
    ledger.hold(6, shortest >= _LEAST_S, f"{name}: a sample took {shortest:.2g} s, which no clock can resolve")
    steady = [sample.seconds * sample.calls for sample in own if sample.phase == "steady"]
    if len(steady) >= _SERIES:
        middle = median(steady)
        ledger.hold(
            6,
            middle >= _MIDDLE_S,
            f"{name}: half of the samples took less than {middle:.2g} s; allowed: far above the clock's resolution, "
            f"{_MIDDLE_S:g} s",
        )
    if kind == "operators":
        ledger.skip("the end of the warm-up of operators: their own calibration determines it")
        return
    times = [sample.seconds for sample in rest]
    allowed = {steady_from(times)[0]}
    if kind == "inference":
        # The process checks before each sample: its patience may end before the next check.
        allowed |= {steady_from(times[:-1])[0]} if len(times) > 1 else set()
    ledger.hold(6, warm in allowed, f"{name}: the stored warm-up has {warm} samples; recomputed: {sorted(allowed)}")


def _check_lived(ledger: Ledger, name: str, busy_s: float, last_s: float, wall_s: float, kind: str) -> None:
    """Check that nothing took longer than the process lived; a partial batch counts more than it took."""
    if kind != "training":
        ledger.hold(8, busy_s <= wall_s, f"{name}: its samples took {busy_s:.4g} s, and the process {wall_s:.4g} s")
    ledger.hold(
        8, last_s <= wall_s, f"{name}: its last sample was at {last_s:.4g} s, and the process took {wall_s:.4g} s"
    )


def _check_all_there(ledger: Ledger, document: Mapping[str, Any], series: Mapping[Key, Sequence[TimedSample]]) -> None:
    """Check that a finished process has samples and a failed one has none."""
    failed = failed_turns_of(document)
    there = {(candidate, number) for candidate, _, number in series}
    for number, process in enumerate(document["processes"]):
        if process["job"] != "time" or process["reason"] is not None:
            continue
        if (process["round"], process["candidate"]) not in failed:
            ledger.hold(
                8,
                (process["candidate"], number) in there,
                f"{process['candidate']}: process {number} of round {process['round']} finished, and its "
                "samples are missing",
            )


def _check_shared(ledger: Ledger, series: Mapping[Key, Sequence[TimedSample]]) -> None:
    """Check that no two processes measured bit-identical times."""
    seen: dict[float, list[tuple[Key, list[float]]]] = {}
    for key, own in series.items():
        times = [sample.seconds for sample in own if sample.phase != "first"]
        if len(times) < _SERIES:
            continue
        largest = max(times)
        for other, others in seen.get(largest, ())[:_SERIES]:
            common = sum((Counter(times) & Counter(others)).values())
            ledger.hold(
                8,
                common < max(_SERIES, 0.5 * min(len(times), len(others))),
                f"{common} samples of {key[0]}, {key[1]}, process {key[2]} are bit-identical to those of "
                f"{other[0]}, {other[1]}, process {other[2]}",
            )
        seen.setdefault(largest, []).append((key, times))
    ledger.checks += len(series)
