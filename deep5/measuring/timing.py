"""Two pieces of code timed in turn, with the baseline twice so that the noise is known; by one process, or by ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import numpy as np

from deep5.core.communicator import Communicator, SingleRank
from deep5.core.seeds import generator

__all__ = ["Rounds", "of_slowest", "time_rounds"]

_WARMUPS = 3


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Raw times, one entry a round, in seconds a call.

    Attributes:
        candidate: Of the code in question.
        baseline: Of what it is held against.
        baseline_again: Of a second, separately made instance of the baseline: the A/A pair.
        steps: Steps in a call.
        warmups: Calls of each before the first that counts.
        first_call_s: Seconds of the candidate's very first call.
        told: What the candidate and the baseline say of themselves beside their time, in attributes `told` of what is
            called: for metrics of a recipe that has measured more.
    """

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    baseline_again: tuple[float, ...]
    steps: int
    warmups: int
    first_call_s: float
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def time_rounds(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    baseline_again: Callable[[], object],
    *,
    rounds: int,
    steps: int,
    seed: int = 0,
    on_round: Callable[[int], None] | None = None,
    communicator: Communicator | None = None,
) -> Rounds:
    """Time three callables in turn, in a new random order each round.

    Several ranks call this together and time in lockstep: the order is the same on all, and none begins a call before
    all have come to it.

    Args:
        candidate: Does `steps` steps of the code in question and returns when they are finished.
        baseline: Likewise, the same work without what is in question.
        baseline_again: A second instance of the baseline.
        rounds: How many samples of each.
        steps: For the record.
        seed: Of the order.
        on_round: Called with the number of rounds done, outside the clock.
        communicator: Of the ranks; None: there is one.

    Returns:
        This rank's own times; `of_slowest` gives those of all.
    """
    meet = (SingleRank() if communicator is None else communicator).barrier
    calls = (candidate, baseline, baseline_again)
    meet()
    begin = perf_counter_ns()
    candidate()
    first = (perf_counter_ns() - begin) / 1e9
    for _ in range(_WARMUPS):
        for call in calls:
            meet()
            call()
    times = np.empty((rounds, 3))
    rng = generator(seed, "timing order")
    with _settled():
        for number in range(rounds):
            gc.collect()  # so that nobody pays for another's garbage
            for which in rng.permutation(3):
                call = calls[which]
                meet()
                begin = perf_counter_ns()
                call()
                times[number, which] = perf_counter_ns() - begin
            if on_round is not None:
                on_round(number + 1)
    columns = [tuple((times[:, which] / 1e9).tolist()) for which in range(3)]
    return Rounds(
        candidate=columns[0],
        baseline=columns[1],
        baseline_again=columns[2],
        steps=steps,
        warmups=_WARMUPS,
        first_call_s=first,
        told={"candidate": getattr(candidate, "told", {}), "baseline": getattr(baseline, "told", {})},
    )


def of_slowest(rounds: Rounds, communicator: Communicator) -> Rounds:
    """The rounds of all ranks as one: each time is that of the rank that took longest, the same on every rank.

    Args:
        rounds: This rank's own; every rank has as many.
        communicator: Of the ranks.

    Raises:
        CommunicationError: A rank is lost.
    """
    times = np.array([rounds.candidate, rounds.baseline, rounds.baseline_again])
    first = np.array([rounds.first_call_s])
    for mine in (times, first):
        communicator.all_reduce(mine, op="max")
    candidate, baseline, again = (tuple(row) for row in times.tolist())
    return replace(rounds, candidate=candidate, baseline=baseline, baseline_again=again, first_call_s=float(first[0]))


@contextmanager
def _settled() -> Iterator[None]:
    """While inside, the collector looks at new objects alone: those of the frameworks would take it half a second."""
    gc.collect()
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:  # what somebody else has frozen stays so
            gc.unfreeze()
