"""How often the statistics are right, on simulated machines: every claim of `deep5.measuring.statistics`, counted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deep5.measuring.samples import median_interval
from deep5.measuring.scheme import CURRENT
from deep5.measuring.statistics import LOOKS, STATED, floor_of, judge, median_ratio, ratio_of_medians
from deep5.results.round_samples import order_of_round
from simulated import (
    NOISES,
    SINES,
    called_different,
    compared,
    found_of,
    most_of,
    quick_called_different,
    sequential,
)

_PROMISED = sum(CURRENT.shares)


@pytest.mark.parametrize("name", [*NOISES, *(name for name in SINES if name.endswith((" 2", " 3", " 4", " 7", " 8")))])
def test_identical_candidates_are_hardly_ever_called_different(name: str) -> None:
    """At most 1 %, including the stopping rule; the test itself keeps this bound, whatever the calibration saw."""
    tries = 1500
    wrong, _ = called_different({**NOISES, **SINES}[name], 1, tries)
    assert wrong <= most_of(tries, _PROMISED)


@pytest.mark.slow
@pytest.mark.parametrize("name", SINES)
def test_no_period_of_the_noise_makes_identical_candidates_different(name: str) -> None:
    tries = 3000
    wrong, _ = called_different(SINES[name], 2, tries)
    assert wrong <= most_of(tries, _PROMISED)


@pytest.mark.parametrize("name", NOISES)
def test_quick_comparisons_call_identical_candidates_different_hardly_ever(name: str) -> None:
    tries = 1500
    wrong = quick_called_different(NOISES[name], 3, tries)
    assert wrong <= most_of(tries, 0.01)


def test_a_difference_of_3_percent_is_found_at_2_percent_of_noise() -> None:
    tries = 1000
    right = found_of(0.03, tries)
    assert right >= 0.95 * tries, right / tries


# An interval is that of independent rounds: noise that depends on the place in a round is for the test.
_INDEPENDENT = ("white", "heavy-tailed (t, 3 degrees of freedom)", "skewed (exponential)", "bimodal", "random walk")


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        pytest.param(name, rounds, marks=() if rounds == LOOKS[0] or name == "bimodal" else pytest.mark.slow)
        for name in _INDEPENDENT
        for rounds in LOOKS
    ],
)
def test_the_interval_of_a_ratio_covers_as_often_as_it_says(name: str, rounds: int) -> None:
    rng, tries = np.random.default_rng(4), 1500
    missed = [0, 0]
    for number in range(tries):
        drawn = compared(rng, NOISES[name], number, 0.05)
        candidate, baseline = drawn.candidate[:rounds].tolist(), drawn.baseline[:rounds].tolist()
        paired = median_ratio(candidate, baseline)
        missed[0] += not paired.low <= 1.05 <= paired.high
        if name != "random walk" and rounds <= 16:  # only turns cancel the drift; larger counts are only slow here
            _, apart = ratio_of_medians(candidate, baseline)
            missed[1] += not apart.low <= 1.05 <= apart.high
    assert max(missed) <= most_of(tries, 1 - STATED), [count / tries for count in missed]


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03, 0.1])
def test_the_interval_covers_where_the_comparison_stopped_too(effect: float) -> None:
    rng, tries = np.random.default_rng(5), 1000
    missed = 0
    for number in range(tries):
        found = sequential(compared(rng, NOISES["white"], number, effect)).interval
        assert found is not None
        missed += not found.low <= 1 + effect <= found.high
    assert missed <= most_of(tries, 1 - STATED), missed / tries


def test_the_interval_of_a_median_covers_as_often_as_it_says() -> None:
    rng, tries = np.random.default_rng(6), 3000
    for rounds in (6, 8, 15, 30):
        missed = 0
        for _ in range(tries):
            found = median_interval(rng.exponential(1.0, rounds).tolist())
            missed += not found.low <= math.log(2) <= found.high
        assert missed <= most_of(tries, 0.05), (rounds, missed / tries)


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_the_smallest_difference_that_is_said_to_be_shown_is(noise: float) -> None:
    rng, tries = np.random.default_rng(7), 500

    def own(rng: np.random.Generator, count: int) -> np.ndarray:
        return noise * rng.standard_normal(count)

    def found_at(effect: float, start: int) -> int:
        drawn = (compared(rng, own, start + number, effect) for number in range(tries))
        return sum(sequential(each).word == "slower" for each in drawn)

    said = [compared(rng, own, number).verdict(LOOKS[-1]).smallest for number in range(tries)]
    assert None not in said
    smallest = float(np.median(said)) - 1  # type: ignore[arg-type]  # none is None
    found = found_at(smallest, tries)
    assert found >= 0.94 * tries, (smallest, found / tries)
    # Half of it is mostly not detected: the stated difference is not far too large.
    half = found_at(smallest / 2, 2 * tries)
    assert half <= 0.6 * tries, half / tries


def test_the_test_is_exact_without_the_order_too() -> None:
    """Noise with a period of four processes, in the driver's order; `judge` is not given which candidate came first."""
    rng, wrong, tries = np.random.default_rng(0), 0, 400
    for seed in range(tries):
        places = np.arange(32 + 2 * LOOKS[-1])
        noise = 0.05 * np.sin(2 * np.pi * places / 4 + 2 * np.pi * rng.random()) + 0.002 * rng.standard_normal(
            places.size
        )
        calibration, rest = np.exp(noise[:32]), np.exp(noise[32:]).reshape(-1, 2)
        orders = np.array([order_of_round(seed, number, 2) for number in range(LOOKS[-1])])
        times = np.empty_like(rest)
        np.put_along_axis(times, orders, rest, axis=1)
        verdicts = (judge(times[:look, 1], times[:look, 0], floor_of(calibration, look)) for look in LOOKS)
        wrong += any(verdict.word != "no difference shown" for verdict in verdicts)
    assert wrong <= most_of(tries, _PROMISED)
