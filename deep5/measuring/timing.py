"""Two pieces of code timed in alternation, with the baseline twice to measure the noise; in one process or by ranks."""

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

__all__ = ["WARMUPS", "Rounds", "of_slowest", "time_rounds"]

WARMUPS = 3
"""Calls of each side before the first timed one; the candidate has one more, its very first."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Raw times, one entry per round, in seconds per call.

    Attributes:
        candidate: Times of the code under test.
        baseline: Times of the code that it is compared with.
        baseline_again: Times of a second, separately made instance of the baseline: the A/A pair.
        steps: Steps per call.
        warmups: Calls of each before the first timed one.
        first_call_s: Seconds of the candidate's very first call.
        reported: Further values of the candidate and the baseline, from the attribute `reported` of each callable, for
            a recipe's metrics that measure more than time.
    """

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    baseline_again: tuple[float, ...]
    steps: int
    warmups: int
    first_call_s: float
    reported: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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

    With several ranks, all call this together and time in lockstep: the order is the same on all ranks, and a barrier
    precedes each call.

    Args:
        candidate: Runs `steps` steps of the code under test and returns when they are finished.
        baseline: Likewise, the same work without the code under test.
        baseline_again: A second instance of the baseline.
        rounds: Number of samples of each.
        steps: For the record.
        seed: Seed of the order.
        on_round: Called with the number of finished rounds, outside the timed code.
        communicator: Communicator of the ranks; None for a single process.

    Returns:
        This rank's own times; `of_slowest` gives those of all.
    """
    meet = (SingleRank() if communicator is None else communicator).barrier
    calls = (candidate, baseline, baseline_again)
    meet()
    begin = perf_counter_ns()
    candidate()
    first = (perf_counter_ns() - begin) / 1e9
    for _ in range(WARMUPS):
        for call in calls:
            meet()
            call()
    times = np.empty((rounds, 3))
    rng = generator(seed, "timing order")
    with _settled():
        for number in range(rounds):
            gc.collect()  # so that no call is timed with the collection of other garbage
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
        warmups=WARMUPS,
        first_call_s=first,
        reported={"candidate": getattr(candidate, "reported", {}), "baseline": getattr(baseline, "reported", {})},
    )


def of_slowest(rounds: Rounds, communicator: Communicator) -> Rounds:
    """The rounds of all ranks combined: each time is that of the slowest rank; same result on every rank.

    Args:
        rounds: This rank's own; the same number on every rank.
        communicator: Communicator of the ranks.

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
    """Restrict garbage collection to new objects in this context.

    Scanning the objects of the frameworks takes half a second.
    """
    gc.collect()
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:  # objects frozen elsewhere stay frozen
            gc.unfreeze()
