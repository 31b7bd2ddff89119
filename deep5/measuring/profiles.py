"""Performance profiles: from the times of several submissions on several workloads to shares and one score each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from deep5.core.errors import UsageError, brief

__all__ = ["LIMIT", "Profile", "performance_profiles"]

LIMIT = 4.0
"""Largest ratio that still contributes to the score, as in AlgoPerf."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One submission compared with the best on each workload.

    Attributes:
        ratios: By workload, its time / the best time; infinite if it, or every submission, missed the target.
        solved: Share of all workloads on which its time is finite, in [0, 1].
        score: Mean of `share` over the ratios from 1 to the limit, in [0, 1]; 1: the fastest on every workload.
    """

    ratios: Mapping[str, float]
    solved: float
    score: float

    def share(self, ratio: float) -> float:
        """Share of all workloads on which its time is at most `ratio` times the best time: rho(tau)."""
        return sum(own <= ratio for own in self.ratios.values() if math.isfinite(own)) / len(self.ratios)


def performance_profiles(times: Mapping[str, Mapping[str, float]], limit: float = LIMIT) -> dict[str, Profile]:
    """Profile and score of every submission.

        r[s, w] = t[s, w] / min over s of t[s, w]
        rho_s(tau) = share of all workloads with r[s, w] <= tau
        score_s = 1 / (limit - 1) * integral of rho_s(tau) over tau from 1 to limit

    The integral is over tau itself and not over its logarithm, as in AlgoPerf's rules. rho is a step function, so the
    integral is exact: each workload contributes (limit - r) / (limit - 1), or nothing if r is above the limit. A
    workload that no submission solved still counts in the denominator. Submissions with the same time have the same
    ratio. Ratios refer to the best of the given submissions: omitting one may change the order of two others (Gould
    and Scott, 2016).

    Args:
        times: By workload, by submission, time to target in any unit; infinite if it was not reached.
        limit: Upper end of the integral, above 1.

    Raises:
        UsageError: No workload or no submission; a submission missing on a workload; a time that is NaN or at most 0.

    References:
        Dolan and Moré, Benchmarking optimization software with performance profiles, 2002, section 2.
        Dahl et al., Benchmarking Neural Network Training Algorithms, arXiv:2306.07179, 2023, on scoring; the rules of
        AlgoPerf, "Integrating performance profiles for the benchmark score", with a limit of 4.

    >>> found = performance_profiles({"w": {"a": 2.0, "b": 5.0}, "v": {"a": 3.0, "b": 3.0}})
    >>> found["b"].ratios, found["b"].share(1.0), found["b"].score
    ({'w': 2.5, 'v': 1.0}, 0.5, 0.75)
    """
    if not 1 < limit < math.inf:
        raise UsageError(f"the limit of a profile is {brief(limit)}; allowed: a number above 1, such as {LIMIT:g}")
    names = list(next(iter(times.values()), {}))
    if not names:
        raise UsageError("a profile without times; allowed: at least one workload with at least one submission")
    ratios: dict[str, dict[str, float]] = {name: {} for name in names}
    for workload, own in times.items():
        if set(own) != set(names):
            odd = sorted(set(own) ^ set(names))
            raise UsageError(f"{odd[0]!r} has a time for some workloads only; allowed: each submission on every one")
        for name, time in own.items():
            if not time > 0:  # NaN, too
                raise UsageError(f"{name!r} took {time!r} on {workload!r}; allowed: a number above zero, or infinity")
        best = min(own.values())
        for name, time in own.items():
            ratios[name][workload] = time / best if math.isfinite(time) else math.inf
    count = len(times)
    return {
        name: Profile(
            ratios=own,
            solved=sum(math.isfinite(times[workload][name]) for workload in own) / count,
            score=math.fsum(max(0.0, limit - ratio) for ratio in own.values()) / (limit - 1) / count,
        )
        for name, own in ratios.items()
    }
