"""Verdicts of a comparison, derived again from its samples and its calibration.

Independent of `deep5.results.comparison_summary` and `deep5.measuring.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from statistics import NormalDist, median, stdev
from typing import Any

from deep5.audit.comparison_rows import Key, failed_turns_of, last_processes, round_medians, valid
from deep5.audit.median_bootstrap import floor_of_rounds, ratio_ends
from deep5.audit.order_statistics import CONFIDENCE
from deep5.audit.rank_test import Rules, allowed_p, order_test, rules_of
from deep5.audit.timed_samples import TimedSample

__all__ = ["BUSY", "calibrated_floor", "disturbed", "others_shares", "verdict_rows"]

BUSY = 0.05
"""Minimum share of the processors' time used by other programs that is reported."""
_NONE = "no difference shown"
# Standard deviations below which 98 of 100 cases lie; the percentile of the ratio's interval.
_POWER, _PERCENTILE = 2.0, 0.985
# Share of tables with a wrong claim among those that hold for the whole table.
_TABLE = 0.05


def calibrated_floor(document: Mapping[str, Any], rounds: int) -> float | None:
    """The noise floor for this many rounds, of the noisiest workload; None without a calibration."""
    calibration = document["calibration"]
    if calibration is None:
        return None
    return max(floor_of_rounds([float(s) for s in times], rounds) for times in calibration["processes"].values())


def others_shares(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """By candidate, the share of the processors that other programs used during each finished timed process."""
    shares: dict[str, list[float]] = {}
    for number in sorted(last_processes(document)):
        process = document["processes"][number]
        share = (process["machine"] or {}).get("others_share")
        if process["reason"] is None and share is not None:
            shares.setdefault(process["candidate"], []).append(share)
    return shares


def disturbed(document: Mapping[str, Any]) -> set[str]:
    """Candidates of a quick comparison during which others used more of the processors than during calibration."""
    if document["mode"] != "quick" or document["calibration"] is None:
        return set()
    most = BUSY + (document["calibration"].get("others_share") or 0.0)
    return {label for label, shares in others_shares(document).items() if max(shares) > most}


def verdict_rows(
    document: Mapping[str, Any],
    samples: Sequence[TimedSample],
    batch_sizes: Mapping[Key, int | None],
    floors: Mapping[int, float],
    failed: Set[str] | None = None,
) -> list[dict[str, Any]]:
    """The rows of `verdicts` derived from the samples.

    Args:
        document: comparison.json.
        samples: All samples.
        batch_sizes: Samples per call; None: a call is not a batch.
        floors: Noise floor by number of rounds; without one nothing is claimed.
        failed: Labels of the candidates that had failed; None: those at the end.
    """
    baseline = document["baseline"]
    out = {c["label"] for c in document["candidates"] if c["status"] != "timed"} if failed is None else set(failed)
    # Measurements of a baseline before its failure still count.
    until = min([math.inf, *(number for number, label in failed_turns_of(document) if label == baseline)])
    usable = [s for s in valid(document, samples) if s.round < until and s.candidate not in out - {baseline}]
    medians, unknown, rules = round_medians(usable), disturbed(document), rules_of(document)
    turn = {(s.candidate, s.round): s.process for s in usable}
    rows = []
    for (workload, candidate), rounds in medians.items():
        against = medians.get((workload, baseline), {})
        ran = {number for key, own in medians.items() if key[1] == candidate for number in own}
        if candidate == baseline or list(rounds) != list(range(len(ran))) or not rounds.keys() <= against.keys():
            continue
        sizes = batch_sizes.get((workload, candidate)), batch_sizes.get((workload, baseline))
        # Batches of different sizes are compared by time per sample.
        by_sample = None not in sizes and sizes[0] != sizes[1]
        scale = sizes[1] / sizes[0] if by_sample and sizes[0] and sizes[1] else 1.0
        logs = [math.log(own / against[number] * scale) for number, own in rounds.items()]
        known = {} if {candidate, baseline} & unknown else floors
        earlier = [turn[candidate, number] < turn[baseline, number] for number in rounds]
        verdict = _first_claim(logs, earlier, known, rules)
        rows.append(
            {
                "workload": workload,
                "candidate": candidate,
                "baseline": baseline,
                **verdict,
                "per": "sample" if by_sample else "call",
            }
        )
    if rules.tossed:
        _mark_whole_table(rows)
    return rows


def _mark_whole_table(rows: Sequence[dict[str, Any]]) -> None:
    """Holm's procedure at 5 %: the smallest p-value times the number of rows, the next times one less, and so on."""
    tested = sorted((row for row in rows if row["sequential_p"] is not None), key=lambda row: row["sequential_p"])
    holds = True
    for left, row in zip(range(len(tested), 0, -1), tested, strict=True):
        holds = holds and row["sequential_p"] * left <= _TABLE
        row["whole_table"] = holds and row["word"] != _NONE
    for row in rows:
        row.setdefault("whole_table", False)


def _first_claim(
    logs: Sequence[float], earlier: Sequence[bool], floors: Mapping[int, float], rules: Rules
) -> dict[str, Any]:
    """The verdict of the first look that claims a difference, otherwise of the last one."""
    looks = [look for look in rules.looks if look < len(logs)]
    verdict: dict[str, Any] = {}
    overall: list[float] = []
    for count in [*looks, len(logs)]:
        verdict = _verdict(logs[:count], earlier[:count], floors.get(count, math.inf), rules)
        if verdict["p"] is not None:
            # The share of all looks' error that this one has.
            overall.append(verdict["p"] / (allowed_p(rules, count) / sum(rules.allowed.values())))
        if verdict["word"] != _NONE:
            break
    if rules.tossed:
        verdict["sequential_p"] = min(1.0, *overall) if overall else None
    return verdict


def _verdict(logs: Sequence[float], earlier: Sequence[bool], floor: float, rules: Rules) -> dict[str, Any]:
    rounds, middle = len(logs), median(logs)
    ends: tuple[float, float] | None = None
    p: float | None = None
    smallest: float | None = None
    if rounds >= rules.looks[0]:
        ends, p, smallest = ratio_ends(logs), order_test(logs, earlier, rules), _smallest(logs, floor, rules)
        claims = abs(middle) > math.log(floor) and p <= allowed_p(rules, rounds) and not ends[0] <= 1 <= ends[1]
    else:
        # Every round of a quick comparison is beyond the floor, on the same side.
        beyond = (all(log > math.log(floor) for log in logs), all(-log > math.log(floor) for log in logs))
        claims = rounds == rules.quick_rounds and any(beyond)
    word = _NONE if not claims else "slower" if middle > 0 else "faster"
    return {
        "word": word,
        "ratio": math.exp(middle),
        "low": ends and ends[0],
        "high": ends and ends[1],
        "confidence": ends and CONFIDENCE,
        "p": p,
        "floor": None if math.isinf(floor) else floor,
        "smallest": None if smallest is None or math.isinf(smallest) else smallest,
        "rounds": rounds,
    }


def _smallest(logs: Sequence[float], floor: float, rules: Rules) -> float:
    """The ratio above 1 that rounds with this noise would have shown in 95 of 100 cases, for normal noise."""
    rounds, allowed = len(logs), allowed_p(rules, len(logs))
    quantile = NormalDist().inv_cdf
    if 0.5 ** (rounds - 1) > allowed:
        return math.inf
    spread = stdev(logs)
    of_mean = spread / math.sqrt(rounds)
    of_median = of_mean * math.sqrt(math.pi / 2)
    shown = [
        # The signed-rank test is as efficient as a test of the mean with 0.955 times the rounds.
        (quantile(1 - allowed / 2) + _POWER) * of_mean / math.sqrt(0.955),
        (quantile((1 + _PERCENTILE) / 2) + _POWER) * of_median,
        math.log(floor) + _POWER * of_median,
    ]
    if 0.5 ** (rounds - 2) > allowed:
        # With so few rounds, a claim requires that all of them have one sign.
        shown.append(quantile(0.95 ** (1 / rounds)) * spread)
    return math.exp(max(shown))
