"""How often the statistics are right, on simulated machines: every claim of `deep5.measuring.statistics`, counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import pytest

from deep5.measuring.samples import median_interval
from deep5.measuring.statistics import LOOKS, STATED, Verdict, floor_of, judge, median_ratio, ratio_of_medians

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 0.02 * rng.standard_normal(shape)


def _heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 0.02 * rng.standard_t(3, shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 0.05 * rng.exponential(1.0, shape)


def _two_speeds(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One process in four runs on a processor at two thirds of its speed."""
    return np.log(1.5) * (rng.random(shape) < 0.25) + 0.01 * rng.standard_normal(shape)


def _wandering(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Common drift: the machine's speed wanders from one process to the next."""
    return 0.02 * np.cumsum(rng.standard_normal(shape), axis=-1) + 0.01 * rng.standard_normal(shape)


NOISES: dict[str, Noise] = {
    "normal": _normal, "heavy": _heavy, "skewed": _skewed, "two speeds": _two_speeds, "wandering": _wandering,
}  # fmt: skip


def _machine(rng: np.random.Generator, noise: Noise) -> np.ndarray:
    """The data of a calibration: 32 processes of the same code."""
    return np.exp(noise(rng, (1, 32))[0])


def _compared(rng: np.random.Generator, noise: Noise, effect: float) -> tuple[np.ndarray, np.ndarray]:
    """Thirty rounds of a candidate and a baseline, in random order within each."""
    times = noise(rng, (1, 2 * LOOKS[-1]))[0].reshape(LOOKS[-1], 2)
    order = rng.permuted(np.tile([0, 1], (LOOKS[-1], 1)), axis=1)
    times = np.take_along_axis(times, order, axis=1)
    return (1 + effect) * np.exp(times[:, 0]), np.exp(times[:, 1])


def _sequential(candidate: Sequence[float], baseline: Sequence[float], calibration: np.ndarray) -> Verdict:
    """Like a comparison: a verdict at every look, until there is an answer."""
    for rounds in LOOKS:
        verdict = judge(candidate[:rounds], baseline[:rounds], floor_of(calibration, rounds))
        if verdict.word != "no difference shown":
            break
    return verdict


def _most(count: int, rate: float) -> int:
    """The most hits that `count` tries at a rate yield in 999 of 1000 cases."""
    return math.floor(count * rate + NormalDist().inv_cdf(0.999) * math.sqrt(count * rate * (1 - rate)))


@pytest.mark.parametrize("name", NOISES)
def test_identical_candidates_are_hardly_ever_called_different(name: str) -> None:
    """At most 1 %, including the stopping rule; the test itself keeps this bound, whatever the calibration saw."""
    rng, tries = np.random.default_rng(1), 3000
    quiet = np.exp(1e-6 * np.arange(16))
    wrong = sum(
        _sequential(*_compared(rng, NOISES[name], 0.0), quiet).word != "no difference shown" for _ in range(tries)
    )
    assert wrong <= _most(tries, 0.0099)


@pytest.mark.parametrize("name", NOISES)
def test_one_process_each_is_called_different_hardly_ever(name: str) -> None:
    rng, tries = np.random.default_rng(2), 3000
    wrong = 0
    for _ in range(tries):
        floor = floor_of(_machine(rng, NOISES[name]), 1)
        candidate, baseline = _compared(rng, NOISES[name], 0.0)
        wrong += judge(candidate[:1], baseline[:1], floor).word != "no difference shown"
    assert wrong <= _most(tries, 0.01), wrong / tries


def test_a_difference_of_3_percent_is_found_at_2_percent_of_noise() -> None:
    rng, tries = np.random.default_rng(3), 2000
    found = [_sequential(*_compared(rng, _normal, 0.03), _machine(rng, _normal)) for _ in range(tries)]
    right = sum(verdict.word == "slower" for verdict in found)
    assert right >= 0.95 * tries, right / tries
    assert not any(verdict.word == "faster" for verdict in found)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        pytest.param(name, rounds, marks=() if rounds == LOOKS[0] or name == "two speeds" else pytest.mark.slow)
        for name in NOISES
        for rounds in LOOKS
    ],
)
def test_the_interval_of_a_ratio_covers_as_often_as_it_says(name: str, rounds: int) -> None:
    rng, tries = np.random.default_rng(4), 1500
    missed = [0, 0]
    for _ in range(tries):
        candidate, baseline = (times[:rounds] for times in _compared(rng, NOISES[name], 0.05))
        paired = median_ratio(candidate, baseline)
        missed[0] += not paired.low <= 1.05 <= paired.high
        if name != "wandering" and rounds <= 16:  # only turns cancel the drift; larger counts are only slow here
            _, apart = ratio_of_medians(candidate, baseline)
            missed[1] += not apart.low <= 1.05 <= apart.high
    assert max(missed) <= _most(tries, 1 - STATED), [count / tries for count in missed]


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03, 0.1])
def test_the_interval_covers_where_the_comparison_stopped_too(effect: float) -> None:
    rng, tries = np.random.default_rng(5), 1500
    missed = 0
    for _ in range(tries):
        found = _sequential(*_compared(rng, _normal, effect), _machine(rng, _normal)).interval
        assert found is not None
        missed += not found.low <= 1 + effect <= found.high
    assert missed <= _most(tries, 1 - STATED), missed / tries


def test_the_interval_of_a_median_covers_as_often_as_it_says() -> None:
    rng, tries = np.random.default_rng(6), 3000
    for rounds in (6, 8, 15, 30):
        missed = 0
        for _ in range(tries):
            found = median_interval(rng.exponential(1.0, rounds).tolist())
            missed += not found.low <= math.log(2) <= found.high
        assert missed <= _most(tries, 0.05), (rounds, missed / tries)


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_the_smallest_difference_that_is_said_to_be_shown_is(noise: float) -> None:
    rng, tries = np.random.default_rng(7), 800

    def own(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return noise * rng.standard_normal(shape)

    said, found = [], 0
    for _ in range(tries):
        calibration = _machine(rng, own)
        last = judge(*_compared(rng, own, 0.0), floor_of(calibration, LOOKS[-1]))
        assert last.smallest is not None
        said.append(last.smallest)
    smallest = float(np.median(said)) - 1
    for _ in range(tries):
        found += _sequential(*_compared(rng, own, smallest), _machine(rng, own)).word == "slower"
    assert found >= 0.94 * tries, (smallest, found / tries)
    # Half of it is mostly not detected: the stated difference is not far too large.
    half = sum(
        _sequential(*_compared(rng, own, smallest / 2), _machine(rng, own)).word == "slower" for _ in range(tries)
    )
    assert half <= 0.6 * tries, half / tries
