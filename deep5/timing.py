"""Two pieces of code timed in turn in one process, with the baseline twice so that the noise is known."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from deep5.seeds import generator

__all__ = ["Rounds", "time_rounds"]

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
    """

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    baseline_again: tuple[float, ...]
    steps: int
    warmups: int
    first_call_s: float


def time_rounds(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    baseline_again: Callable[[], object],
    *,
    rounds: int,
    steps: int,
    seed: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> Rounds:
    """Time three callables in turn, in a new random order each round.

    Args:
        candidate: Does `steps` steps of the code in question and returns when they are finished.
        baseline: Likewise, the same work without what is in question.
        baseline_again: A second instance of the baseline.
        rounds: How many samples of each.
        steps: For the record.
        seed: Of the order.
        on_round: Called with the number of rounds done, outside the clock.
    """
    calls = (candidate, baseline, baseline_again)
    begin = perf_counter_ns()
    candidate()
    first = (perf_counter_ns() - begin) / 1e9
    for _ in range(_WARMUPS):
        for call in calls:
            call()
    times = np.empty((rounds, 3))
    rng = generator(seed, "timing order")
    with _settled():
        for number in range(rounds):
            gc.collect()  # so that nobody pays for another's garbage
            for which in rng.permutation(3):
                call = calls[which]
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
    )


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
