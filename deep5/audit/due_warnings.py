"""The warnings that a comparison must contain, derived from its samples, its calibration and its machine's load.

Independent of `deep5.results.comparison_summary`. A warning is identified by parts of its sentence, because results of
other versions word it differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from deep5.audit.comparison_rows import Key, last_processes, round_medians
from deep5.audit.rank_test import rules_of
from deep5.audit.steady_state import drift_of, far_out_of
from deep5.audit.timed_samples import TimedSample
from deep5.audit.verdict_rows import BUSY, calibrated_floor, disturbed, others_shares
from deep5.core.quantities import percent

__all__ = ["due_warnings", "is_said"]

Parts = tuple[str, ...]

_SPREAD, _DRIFT, _OUTLIERS = 1.1, 0.05, 0.05
# Maximum number of rounds that a comparison measures.
_MOST_ROUNDS = 1000
# Noise floors above which the machine is called noisy.
_NOISY = {"quick": 1.25, "rigorous": 1.05}


def is_said(parts: Parts, warnings: Iterable[str]) -> bool:
    """Whether one of the warnings has all parts; results of earlier versions have no space before %."""
    own = [part.replace(" %", "%") for part in parts]
    return any(all(part in warning.replace(" %", "%") for part in own) for warning in warnings)


def due_warnings(document: Mapping[str, Any], samples: Sequence[TimedSample]) -> list[Parts]:
    """The identifying parts of each required warning.

    Args:
        document: comparison.json.
        samples: All samples.
    """
    processes = last_processes(document)
    unsettled: Counter[Key] = Counter()
    for number in processes:
        row = document["processes"][number]
        unsettled.update((workload, row["candidate"]) for workload in row["unsettled"])
    steady: dict[Key, dict[int, list[float]]] = {}
    for sample in samples:
        if sample.process in processes and sample.phase == "steady":
            own = steady.setdefault((sample.workload, sample.candidate), {})
            own.setdefault(sample.round, []).append(sample.seconds)
    medians = round_medians(sample for sample in samples if sample.process in processes)
    due = []
    for key, rounds in steady.items():
        ran = {number for other, own in steady.items() if other[1] == key[1] for number in own}
        due += [(f"{key[1]}, {key[0]}: ", *parts) for parts in _of_series(rounds, ran, medians[key], unsettled[key])]
    return [*due, *_of_machine(document), *_of_noise(document, medians.values())]


def _of_series(
    rounds: Mapping[int, Sequence[float]], ran: set[int], medians: Mapping[int, float], unsettled: int
) -> list[Parts]:
    due: list[Parts] = []
    if missing := len(ran - rounds.keys()):
        due.append(("not measured", f"{missing} of {len(ran)} rounds"))
    if unsettled:
        due.append((f"{unsettled} of {len(rounds)} processes", "steady state"))
    drifts = [drift_of(times) for times in rounds.values()]
    if 2 * sum(abs(value) > _DRIFT for value in drifts) > len(drifts):
        due.append(("drift", percent(median(drifts), signed=True)))
    far, total = sum(map(far_out_of, rounds.values())), sum(map(len, rounds.values()))
    if far > _OUTLIERS * total:
        due.append((f"{far} of {total} samples", "far out"))
    slowest, fastest = max(medians.values()), min(medians.values())
    if len(medians) > 1 and slowest > _SPREAD * fastest:
        due.append(("processes differ", percent(slowest / fastest - 1)))
    return due


def _of_noise(document: Mapping[str, Any], medians: Iterable[Mapping[int, float]]) -> list[Parts]:
    """Processes that all differ more than the calibration's, squared; results of the first scheme do not warn of it."""
    if document["calibration"] is None or not rules_of(document).tossed:
        return []
    series = document["calibration"]["processes"].values()
    calibrated = max(max(times) / min(times) for times in series)
    spreads = [max(own.values()) / min(own.values()) for own in medians if len(own) > 1]
    if not spreads or min(spreads) <= calibrated**2:
        return []
    return [(f"{percent(min(spreads) - 1)} or more", "noise floor is too narrow")]


def _of_machine(document: Mapping[str, Any]) -> list[Parts]:
    due: list[Parts] = []
    rounds = min(document["measurement"]["most_processes"], _MOST_ROUNDS)
    floor = calibrated_floor(document, rounds)
    if floor is not None and floor > _NOISY[document["mode"]]:
        due.append(("noisy", percent(floor - 1) if floor < 2 else f"{floor:.3g} times"))
    taken = (document["calibration"] or {}).get("others_share") or 0.0
    if taken >= BUSY:
        due.append(("other programs", percent(taken, 1), "calibrated"))
    without_verdict = disturbed(document)
    for label, shares in others_shares(document).items():
        if busy := [share for share in shares if share >= BUSY]:
            verdict = ("no verdict",) if label in without_verdict else ()
            due.append(
                (
                    f"{label}: ",
                    "other programs",
                    percent(max(busy)),
                    f"{len(busy)} of {len(shares)} processes",
                    *verdict,
                )
            )
    return due
