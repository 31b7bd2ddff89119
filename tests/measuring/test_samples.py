"""Intervals of medians and ratios: exact ranks, coverage by simulation, and the rule of non-inferiority."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from deep5.core.errors import TooFewSamples, UsageError
from deep5.measuring.samples import Interval, median_interval, non_inferiority, paired_ratios, ratio_interval

# Ranks of the lower end at 95 %, from tables of the sign test (Le Boudec, appendix A; Conover, table A3).
RANKS = {6: 1, 8: 1, 9: 2, 12: 3, 20: 6, 30: 10, 50: 18, 70: 27}


@pytest.mark.parametrize(("count", "rank"), RANKS.items())
def test_the_ends_are_the_tabulated_order_statistics(count: int, rank: int) -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, count + 1))
    assert median_interval(values) == Interval(low=rank, high=count + 1 - rank, confidence=0.95)


def test_six_samples_are_the_fewest() -> None:
    assert median_interval([1, 2, 3, 4, 5, 6]).half_width == 2.5
    with pytest.raises(TooFewSamples, match=r"^5 samples; .* needs at least 6; remedy: measure more rounds"):
        median_interval([1, 2, 3, 4, 5])
    # Five would suffice for 90 % (1 - 2 * 0.5**5 = 0.94), but below six there is no interval at any confidence.
    with pytest.raises(TooFewSamples, match="at least 6"):
        median_interval([1, 2, 3, 4, 5], confidence=0.9)
    # 2 * 0.5**7 = 0.0156 > 0.01 >= 2 * 0.5**8
    with pytest.raises(TooFewSamples, match="at least 8"):
        median_interval(range(7), confidence=0.99)
    assert median_interval(range(8), confidence=0.99) == Interval(low=0, high=7, confidence=0.99)


def test_a_run_that_never_reached_its_target_counts_as_infinite() -> None:
    interval = median_interval([1, 2, 3, 4, 5, 6, 7, math.inf])
    assert (interval.low, interval.high) == (1, math.inf)
    with pytest.raises(UsageError, match="1 of 7 samples are NaN"):
        median_interval([1, 2, 3, math.nan, 5, 6, 7])


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, math.nan])
def test_a_confidence_outside_0_and_1_is_refused(confidence: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        median_interval(range(10), confidence)


def test_a_matrix_is_refused() -> None:
    with pytest.raises(UsageError, match=r"shape \(2, 6\); allowed: a vector"):
        median_interval(np.ones((2, 6)))


@pytest.mark.parametrize("count", [6, 11, 25, 100])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_covers_the_median_of_a_skewed_distribution(count: int, confidence: float) -> None:
    trials = 2000
    draws = np.random.default_rng(count).exponential(size=(trials, count))
    intervals = [median_interval(row, confidence) for row in draws]
    covered = np.mean([i.low <= math.log(2) <= i.high for i in intervals])
    # Four standard errors of a proportion from 2000 trials: a correct method fails once in 30000 seeds.
    slack = 4 * math.sqrt(confidence * (1 - confidence) / trials)
    assert covered >= confidence - slack
    if count == 100:  # and is not just wide: at 100 the ranks come within 1.5 % of the requested confidence
        assert covered <= confidence + 0.015 + slack


def test_the_coverage_test_would_catch_a_narrower_interval() -> None:
    draws = np.random.default_rng(25).exponential(size=(2000, 25))
    half = [median_interval(row, 0.8) for row in draws]
    assert np.mean([i.low <= math.log(2) <= i.high for i in half]) < 0.95 - 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_pairing_cancels_what_both_sides_share() -> None:
    rng = np.random.default_rng(3)
    drift = np.exp(rng.normal(0, 0.5, 40).cumsum())  # the machine's speed drifts by orders of magnitude
    baseline = drift * np.exp(rng.normal(0, 0.01, 40))
    candidate = 1.2 * drift * np.exp(rng.normal(0, 0.01, 40))
    interval = ratio_interval(candidate, baseline)
    assert interval.low <= 1.2 <= interval.high
    # Noise of 1 % on both sides of 40 rounds: 1.25 * 0.014 / sqrt(40) is 0.3 %, the interval some four of that.
    assert interval.half_width < 0.02


def test_the_ratio_covers_and_rejects_as_often_as_it_says() -> None:
    trials, rounds = 1500, 21
    rng = np.random.default_rng(4)
    times = rng.lognormal(0, 0.02, (trials, 2, rounds)) + 0.05 * rng.standard_exponential((trials, 2, rounds))
    apart = [not (i.low <= 1 <= i.high) for i in (ratio_interval(c, b) for c, b in times)]
    # Identical code: at most 5 % of the intervals exclude 1, and four standard errors of a proportion.
    assert np.mean(apart) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)
    shifted = [ratio_interval(1.1 * c, b).low > 1 for c, b in times[:200]]
    assert np.mean(shifted) > 0.95  # 10 % slower is five times the noise of the median: detected nearly always


@pytest.mark.parametrize(
    ("candidate", "baseline", "message"),
    [
        ([1.0] * 7, [1.0] * 6, "got 7 and 6"),
        ([1.0, 0.0] * 4, [1.0] * 8, r"candidate time of round 1 .*positive"),
        ([1.0] * 8, [1.0] * 7 + [math.inf], "baseline time of round 7"),
        ([1.0] * 7 + [math.nan], [1.0] * 8, "candidate time of round 7"),
    ],
)
def test_times_that_cannot_be_paired_are_refused(candidate: list[float], baseline: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ratio_interval(candidate, baseline)


def test_arguments_are_left_as_they_were() -> None:
    values = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]
    median_interval(values)
    paired_ratios(values, values)
    assert values == [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        median_interval(values).low = 0.0  # type: ignore[misc]


def test_non_inferiority_by_hand() -> None:
    baseline = [1.0] * 6
    candidate = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05]
    again = [0.98, 0.99, 1.00, 1.00, 1.01, 1.02]
    answer = non_inferiority(candidate, baseline, again)
    # Sums and differences of numbers near 1 in double precision.
    assert answer.ratio == pytest.approx(1.025, abs=1e-12)
    assert (answer.interval.low, answer.interval.high) == (1.00, 1.05)
    assert answer.floor_half_width == pytest.approx(0.02, abs=1e-12)
    assert answer.excess == pytest.approx(1.03, abs=1e-12)


def test_a_biased_pair_of_baselines_forgives_nothing() -> None:
    baseline = [1.0] * 6
    assert non_inferiority([1.05] * 6, baseline, [1.2] * 6).excess == pytest.approx(1.05, abs=1e-12)


def test_identical_code_passes_the_yardstick_and_slower_code_fails_it() -> None:
    rng = np.random.default_rng(5)
    passes = {1.0: 0, 1.03: 0}
    trials, rounds = 200, 60
    for slowdown in passes:
        for _ in range(trials):
            candidate, baseline, again = 1 + 0.02 * rng.standard_exponential((3, rounds))
            passes[slowdown] += non_inferiority(slowdown * candidate, baseline, again).excess <= 1.01
    # Noise of 2 % a round leaves some 0.5 % in the median of 60: a margin of 1 % is two of these away, and a
    # slowdown of 3 % four. 10000 trials of each gave 99.1 % and 0.0 %.
    assert passes[1.0] >= 0.95 * trials
    assert passes[1.03] <= 0.02 * trials
