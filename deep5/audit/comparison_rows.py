"""Results of a comparison, derived again from its samples: which samples count, medians, intervals.

Independent of `deep5.results.comparison_summary`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from deep5.audit.order_statistics import CONFIDENCE, median_ends
from deep5.audit.timed_samples import TimedSample

__all__ = ["Key", "failed_turns_of", "last_processes", "result_rows", "round_medians", "rounds_with_results", "valid"]

Key = tuple[str, str]
"""Workload and candidate."""


def last_processes(document: Mapping[str, Any]) -> set[int]:
    """Numbers of the timed processes that count: if a candidate ran twice in a round, the later one."""
    last: dict[tuple[str, int], int] = {}
    for number, process in enumerate(document["processes"]):
        if process["job"] == "time":
            last[process["candidate"], process["round"]] = number
    return set(last.values())


def failed_turns_of(document: Mapping[str, Any]) -> set[tuple[int, str]]:
    """Round and candidate of each process that crashed, was killed, or reported an error."""
    turns = set()
    for candidate in document["candidates"]:
        turns |= {(number, candidate["label"]) for number in candidate["failed_rounds"]}
    return turns


def rounds_with_results(document: Mapping[str, Any]) -> float:
    """Number of rounds that the results cover; infinite for a finished comparison."""
    if document["status"] == "success":
        return math.inf
    return max([0.0, *(float(row["processes"]) for row in document["results"])])


def valid(document: Mapping[str, Any], samples: Iterable[TimedSample]) -> list[TimedSample]:
    """Samples of candidates that passed their proof, in processes that count and did not fail."""
    passed: dict[Key, bool] = {}
    for row in document["equivalence"]:
        key = row["workload"], row["candidate"]
        passed[key] = passed.get(key, True) and bool(row["passed"])
    differs = {candidate["label"] for candidate in document["candidates"] if candidate["status"] == "different"}
    processes, failed = last_processes(document), failed_turns_of(document)
    # Each operator has its own proof; a network has one for the whole.
    without_proof = document["kind"] != "operators"
    return [
        sample
        for sample in samples
        if passed.get((sample.workload, sample.candidate), without_proof)
        and sample.process in processes
        and sample.candidate not in differs
        and (sample.round, sample.candidate) not in failed
    ]


def round_medians(samples: Iterable[TimedSample]) -> dict[Key, dict[int, float]]:
    """Median of the steady samples of each round, in seconds, by workload and candidate; rounds in order."""
    times: defaultdict[Key, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.phase == "steady":
            times[sample.workload, sample.candidate][sample.round].append(sample.seconds)
    return {key: {number: median(own[number]) for number in sorted(own)} for key, own in times.items()}


def result_rows(samples: Sequence[TimedSample], batch_sizes: Mapping[Key, int | None]) -> list[dict[str, Any]]:
    """The rows of `results` derived from the samples.

    Args:
        samples: The samples that count.
        batch_sizes: Samples per call; None: a call is not a batch.
    """
    return [
        _result(key, rounds, [s for s in samples if (s.workload, s.candidate) == key], batch_sizes.get(key))
        for key, rounds in round_medians(samples).items()
    ]


def _result(key: Key, rounds: Mapping[int, float], own: Sequence[TimedSample], size: int | None) -> dict[str, Any]:
    steady = [sample.seconds for sample in own if sample.phase == "steady"]
    first = [sample.seconds for sample in own if sample.phase == "first"]
    warm: defaultdict[int, float] = defaultdict(float)
    for sample in own:
        if sample.phase == "warm-up":
            warm[sample.round] += sample.seconds * sample.calls
    several = len(rounds) > 1
    times = list(rounds.values()) if several else steady
    ends, middle = median_ends(times), median(times)
    return {
        "workload": key[0],
        "candidate": key[1],
        "median_s": middle,
        "low_s": ends and ends[0],
        "high_s": ends and ends[1],
        "confidence": ends and CONFIDENCE,
        "interval_of": "processes" if several else "samples of one process",
        "batch_size": size,
        "samples_per_s": size and size / middle,
        "first_call_s": median(first) if first else None,
        "warm_up_s": median(warm.values()) if warm else 0.0,
        "processes": len(rounds),
        "samples": len(steady),
    }
