"""Derives medians, ratios and verdicts from a comparison's raw samples; can be repeated at any time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from statistics import median
from typing import Any

from deep5.core.errors import TooFewSamples
from deep5.measuring.machine_load import CROWDED
from deep5.measuring.order_test import holm
from deep5.measuring.samples import median_interval
from deep5.measuring.scheme import CURRENT, Scheme, scheme_of
from deep5.measuring.statistics import judge
from deep5.results.round_samples import RoundSample

__all__ = [
    "counted",
    "crowded_in",
    "failed_turns",
    "judged",
    "process_medians",
    "results_of",
    "shares_of_others",
    "standing",
    "verdicts_in",
    "verdicts_of",
    "whole_rounds",
]

Samples = Sequence[RoundSample]


def standing(document: Mapping[str, Any]) -> set[int]:
    """Numbers of the timed processes that count, whatever their status.

    An interrupted round runs again as a whole: only processes that ran in turn are compared, so if a candidate ran
    twice in a round, the later process counts.

    Args:
        document: comparison.json.
    """
    last = {
        (row["candidate"], row["round"]): number
        for number, row in enumerate(document["processes"])
        if row["job"] == "time"
    }
    return set(last.values())


def failed_turns(document: Mapping[str, Any]) -> set[tuple[int, str]]:
    """Rounds and candidates whose process crashed, was killed, or reported an error.

    Args:
        document: comparison.json.
    """
    return {(number, row["label"]) for row in document["candidates"] for number in row["failed_rounds"]}


def whole_rounds(document: Mapping[str, Any]) -> float:
    """Number of rounds that results cover: an interrupted comparison also has samples of an incomplete round.

    Args:
        document: comparison.json.
    """
    if document["status"] == "success":
        return math.inf
    return max((row["processes"] for row in document["results"]), default=0)


def counted(document: Mapping[str, Any], samples: Iterable[RoundSample]) -> list[RoundSample]:
    """Samples of proven-equal candidates, from processes that count and had no fault: only these yield results.

    Args:
        samples: All samples.
        samples: All of them.
    """
    different = {(row["workload"], row["candidate"]) for row in document["equivalence"] if not row["passed"]}
    # Each operator has its own proof; one that was left out when the proof was repeated has no times either.
    proved = {(row["workload"], row["candidate"]) for row in document["equivalence"]}
    operators = document["kind"] == "operators"
    # A candidate that passed the proof before an interruption but not afterwards has no times either.
    unlike = {row["label"] for row in document["candidates"] if row["status"] == "different"}
    faulty = failed_turns(document)
    stands = standing(document)
    return [
        sample
        for sample in samples
        if sample.process in stands
        and (sample.round, sample.candidate) not in faulty
        and (sample.workload, sample.candidate) not in different
        and (not operators or (sample.workload, sample.candidate) in proved)
        and sample.candidate not in unlike
    ]


def judged(
    document: Mapping[str, Any], samples: Iterable[RoundSample], failed: Set[str] | None = None
) -> list[RoundSample]:
    """The samples from which verdicts follow: a candidate that failed in a round has none.

    Args:
        document: comparison.json.
        samples: All samples.
        failed: Labels of the candidates that had failed; None: those at the end.
    """
    if failed is None:
        failed = {row["label"] for row in document["candidates"] if row["status"] != "timed"}
    # A baseline that failed late is the reference of the other candidates until then.
    baseline = document["baseline"]
    failed = failed - {baseline}
    end = min((number for number, label in failed_turns(document) if label == baseline), default=math.inf)
    return [sample for sample in counted(document, samples) if sample.candidate not in failed and sample.round < end]


def process_medians(samples: Iterable[RoundSample]) -> dict[tuple[str, str], dict[int, float]]:
    """Median of the steady samples of each round, in seconds, by workload and candidate."""
    grouped: dict[tuple[str, str], dict[int, list[float]]] = {}
    for sample in samples:
        if sample.phase == "steady":
            rounds = grouped.setdefault((sample.workload, sample.candidate), {})
            rounds.setdefault(sample.round, []).append(sample.seconds)
    return {key: {number: median(rounds[number]) for number in sorted(rounds)} for key, rounds in grouped.items()}


def results_of(samples: Samples, batch_sizes: Mapping[tuple[str, str], int | None]) -> list[dict[str, Any]]:
    """A row per workload and candidate: median, interval, first call, warm-up.

    With several processes each contributes its median, and the interval is that of the median of these; with one
    process it is that of the median of its samples.

    Args:
        samples: All samples.
        batch_sizes: Samples per call, by workload and candidate; None: a call is not a batch.
    """
    first: dict[tuple[str, str], list[float]] = {}
    warm: dict[tuple[str, str], dict[int, float]] = {}
    steady: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        key = sample.workload, sample.candidate
        if sample.phase == "first":
            first.setdefault(key, []).append(sample.seconds)
        elif sample.phase == "warm-up":
            rounds = warm.setdefault(key, {})
            rounds[sample.round] = rounds.get(sample.round, 0.0) + sample.seconds * sample.calls
        else:
            steady.setdefault(key, []).append(sample.seconds)
    rows = []
    for key, rounds in process_medians(samples).items():
        times = list(rounds.values()) if len(rounds) > 1 else steady[key]
        try:
            interval = median_interval(times)
            ends: dict[str, Any] = {"low_s": interval.low, "high_s": interval.high, "confidence": interval.confidence}
        except TooFewSamples:
            ends = {"low_s": None, "high_s": None, "confidence": None}
        size = batch_sizes.get(key)
        rows.append(
            {
                "workload": key[0],
                "candidate": key[1],
                "median_s": median(times),
                **ends,
                "interval_of": "processes" if len(rounds) > 1 else "samples of one process",
                "batch_size": size,
                "samples_per_s": None if size is None else size / median(times),
                "first_call_s": median(first[key]) if key in first else None,
                "warm_up_s": median(warm[key].values()) if key in warm else 0.0,
                "processes": len(rounds),
                "samples": len(steady[key]),
            }
        )
    return rows


def verdicts_of(
    samples: Samples,
    baseline: str,
    floors: Mapping[int, float],
    batch_sizes: Mapping[tuple[str, str], int | None] | None = None,
    crowded: Set[str] = frozenset(),
    scheme: Scheme = CURRENT,
) -> list[dict[str, Any]]:
    """The verdict on each candidate against the baseline, by workload.

    A workload is evaluated at each of the scheme's looks, and the first one that claims a difference is final; rounds
    that run later for other workloads do not change it. If batch sizes differ, the time per sample is compared. A
    candidate gets no verdict on a workload that it did not finish in each of its rounds: only its fast rounds would be
    left.

    Args:
        samples: All samples.
        baseline: Label of the baseline.
        floors: The machine's noise floor by number of rounds; missing: nothing is claimed.
        batch_sizes: Samples per call, by workload and candidate; None: a call is not a batch.
        crowded: Candidates for which no noise floor holds.
        scheme: Rules of the comparison.
    """
    samples = list(samples)
    medians, sizes, started = process_medians(samples), batch_sizes or {}, _processes(samples)
    ran: dict[str, set[int]] = {}
    for (_, candidate), rounds in medians.items():
        ran.setdefault(candidate, set()).update(rounds)
    rows, sequential = [], list[float | None]()
    for (workload, candidate), rounds in medians.items():
        against = medians.get((workload, baseline), {})
        whole = sorted(rounds) == list(range(len(ran[candidate]))) and rounds.keys() <= against.keys()
        if candidate == baseline or not whole:
            continue
        mine, others = list(rounds.values()), [against[number] for number in rounds]
        own, base = sizes.get((workload, candidate)), sizes.get((workload, baseline))
        known = {} if {candidate, baseline} & crowded else floors
        a_sample = False
        if own is not None and base is not None and own != base:
            a_sample = True
            mine, others = [value / own for value in mine], [value / base for value in others]
        first = [started[candidate, number] < started[baseline, number] for number in rounds]
        smallest_p = 1.0
        for count in (*(look for look in scheme.looks if look < len(mine)), len(mine)):
            # Without a floor, noise and difference cannot be distinguished: the ratio is reported and nothing is
            # claimed.
            found = judge(mine[:count], others[:count], known.get(count, float("inf")), first[:count], scheme)
            if found.p is not None:
                smallest_p = min(smallest_p, scheme.sequential_p(found.p, count))
            if found.word != "no difference shown":
                break
        rows.append(
            {
                "workload": workload,
                "candidate": candidate,
                "baseline": baseline,
                "word": found.word,
                "ratio": found.ratio,
                "low": None if found.interval is None else found.interval.low,
                "high": None if found.interval is None else found.interval.high,
                "confidence": None if found.interval is None else found.interval.confidence,
                "p": found.p,
                "floor": None if found.floor == float("inf") else found.floor,
                "smallest": None if found.smallest in (None, float("inf")) else found.smallest,
                "rounds": found.rounds,
                "per": "sample" if a_sample else "call",
            }
        )
        if scheme.whole_table:
            sequential.append(None if found.p is None else smallest_p)
            rows[-1]["sequential_p"] = sequential[-1]
    if scheme.whole_table:
        held = holm(sequential)
        for row, holds in zip(rows, held, strict=True):
            row["whole_table"] = holds and row["word"] != "no difference shown"
    return rows


def _processes(samples: Iterable[RoundSample]) -> dict[tuple[str, int], int]:
    """By candidate and round, the number of the process: of two, the lower ran first."""
    return {(sample.candidate, sample.round): sample.process for sample in samples}


def crowded_in(document: Mapping[str, Any]) -> dict[str, float]:
    """Candidates of a quick comparison during which other programs used more of the processors than during calibration.

    A difference above the noise of a calibration proves nothing under another load. Several processes are also
    evaluated by their order, which a varying load does not favor.

    Args:
        document: comparison.json.

    Returns:
        By label, the share of the processors that others used, in [0, 1].
    """
    if document["mode"] != "quick" or document["calibration"] is None:
        return {}
    most = (document["calibration"].get("others_share") or 0.0) + CROWDED
    return {label: max(found) for label, found in shares_of_others(document).items() if max(found) > most}


def shares_of_others(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """By label, the share that others used during each timed process that finished."""
    shares: dict[str, list[float]] = {}
    for number in sorted(standing(document)):
        row = document["processes"][number]
        if row["reason"] is None and (row["machine"] or {}).get("others_share") is not None:
            shares.setdefault(row["candidate"], []).append(row["machine"]["others_share"])
    return shares


def verdicts_in(
    document: Mapping[str, Any],
    samples: Iterable[RoundSample],
    floors: Mapping[int, float],
    batch_sizes: Mapping[tuple[str, str], int | None],
    failed: Set[str] | None = None,
) -> list[dict[str, Any]]:
    """`verdicts_of` a comparison, for the candidates that have any; none where no noise floor holds.

    Args:
        document: comparison.json.
        samples: All samples.
        floors: The machine's noise floor by number of rounds.
        batch_sizes: Samples per call, by workload and candidate.
        failed: Labels of the candidates that had failed; None: those at the end.
    """
    kept = judged(document, samples, failed)
    scheme = scheme_of(document["statistics"])
    return verdicts_of(kept, document["baseline"], floors, batch_sizes, crowded_in(document).keys(), scheme)
