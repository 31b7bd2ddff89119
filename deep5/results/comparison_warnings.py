"""The warnings of a comparison: what makes its numbers less certain, derived from its raw samples and its machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from deep5.core.quantities import percent
from deep5.measuring.machine_load import CROWDED
from deep5.measuring.statistics import drift, far_out, floor_of
from deep5.results.comparison_summary import crowded_in, process_medians, shares_of_others, standing
from deep5.results.ran_optimizers import optimizers_in, unequal_arguments
from deep5.results.round_samples import RoundSample

__all__ = ["warnings_in", "warnings_of", "warnings_of_machine"]

_WIDE, _DRIFT, _OUTLIERS = 0.05, 0.05, 0.05
# Noise floors above which a warning says that the machine is unsuitable for the mode.
_NOISY = {"quick": 1.25, "rigorous": 1.05}

Samples = Sequence[RoundSample]


def warnings_in(document: Mapping[str, Any], samples: Samples) -> list[str]:
    """Everything that makes a comparison's numbers less certain, one sentence each.

    Args:
        document: comparison.json.
        samples: All samples.
    """
    stands = standing(document)
    rows = (document["processes"][number] for number in sorted(stands))
    unsettled = Counter((name, row["candidate"]) for row in rows for name in row["unsettled"])
    kept = [sample for sample in samples if sample.process in stands]
    of_noise = [*warnings_of(kept, unsettled), *warnings_of_machine(document), *_noisier(document, kept)]
    return [*of_noise, *unequal_arguments(optimizers_in(document))]


def _noisier(document: Mapping[str, Any], samples: Samples) -> list[str]:
    """A warning if all candidates' processes differ more than those of the calibration, squared."""
    if document["calibration"] is None:
        return []
    calibrated = max(max(times) / min(times) for times in document["calibration"]["processes"].values())
    middles = (list(rounds.values()) for rounds in process_medians(samples).values())
    least = min((max(times) / min(times) for times in middles if len(times) > 1), default=1.0)
    if least <= calibrated**2:
        return []
    return [
        f"the processes of each candidate differ by {percent(least - 1)} or more, and those of the calibration by "
        f"{percent(calibrated - 1, 1)} at most: the noise floor is too narrow; remedy: deep5 calibrate, and again"
    ]


def warnings_of(samples: Samples, unsettled: Mapping[tuple[str, str], int]) -> list[str]:
    """Reasons why a number may be unstable, and remedies.

    Args:
        samples: All samples.
        unsettled: Number of processes that reached no steady state, by workload and candidate.
    """
    said = []
    series: dict[tuple[str, str], dict[int, list[float]]] = {}
    for sample in samples:
        if sample.phase == "steady":
            rounds = series.setdefault((sample.workload, sample.candidate), {})
            rounds.setdefault(sample.round, []).append(sample.seconds)
    ran: dict[str, set[int]] = {}
    for (_, candidate), rounds in series.items():
        ran.setdefault(candidate, set()).update(rounds)
    for (workload, candidate), rounds in series.items():
        name = f"{candidate}, {workload}"
        middles = [median(times) for times in rounds.values()]
        missing = sorted(ran.get(candidate, set()) - rounds.keys())
        if missing:
            said.append(
                f"{name}: not measured in {len(missing)} of {len(ran[candidate])} rounds, so there is no verdict; "
                "remedy: a smaller size"
            )
        if count := unsettled.get((workload, candidate)):
            said.append(
                f"{name}: {count} of {len(rounds)} processes reached no steady state; only the second half of their "
                "samples counts; remedy: a quiet machine, or a larger batch"
            )
        drifts = [drift(times) for times in rounds.values()]
        if len([value for value in drifts if abs(value) > _DRIFT]) > len(drifts) / 2:
            said.append(
                f"{name}: the times drift by {percent(median(drifts), signed=True)} within a process; remedy: a "
                "quiet machine, or check for throttling"
            )
        count = sum(far_out(times) for times in rounds.values())
        total = sum(map(len, rounds.values()))
        if count > _OUTLIERS * total:
            said.append(f"{name}: {count} of {total} samples lie far out and are included; remedy: a quiet machine")
        if len(middles) > 1 and max(middles) > (1 + 2 * _WIDE) * min(middles):
            spread = max(middles) / min(middles)
            said.append(f"{name}: processes differ by up to {percent(spread - 1)}; remedy: a quiet machine")
    return said


def warnings_of_machine(document: Mapping[str, Any]) -> list[str]:
    """Warnings about the machine: its noise floor, and other programs' use of its processors.

    Args:
        document: comparison.json.
    """
    said = []
    quick = document["mode"] == "quick"
    rounds = document["measurement"]["most_processes"]
    if document["calibration"] is not None:
        floor = max(floor_of(times, rounds) for times in document["calibration"]["processes"].values())
        if floor > _NOISY[document["mode"]]:
            far = f"by up to {percent(floor - 1)}" if floor < 2 else f"by up to {floor:.3g} times"
            each = "one process" if rounds == 1 else f"{rounds} processes"
            remedy = "--rigorous, a quiet machine" if quick else "a quiet machine"
            if document["threads"] > 1:
                remedy += ", or --threads 1"
            said.append(
                f"this machine is noisy: identical code may differ {far} with {each} per candidate, and no smaller "
                f"difference gets a verdict; remedy: {remedy}"
            )
        if (document["calibration"].get("others_share") or 0.0) >= CROWDED:
            said.append(
                f"other programs took {percent(document['calibration']['others_share'], 1)} of the processors "
                "while this machine was calibrated: its noise floor is too wide; remedy: deep5 calibrate, "
                "on a quiet machine"
            )
    unjudged = crowded_in(document)
    for label, found in shares_of_others(document).items():
        if beyond := [share for share in found if share >= CROWDED]:
            so = ", more than while the machine was calibrated, so there is no verdict" if label in unjudged else ""
            said.append(
                f"{label}: other programs took up to {percent(max(beyond))} of its processors' time in "
                f"{len(beyond)} of {len(found)} processes{so}; remedy: a quiet machine{', --rigorous' if so else ''}"
            )
    return said
