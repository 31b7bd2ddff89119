"""`deep5.measuring.statistics` on cases worked by hand, compared with SciPy and with the bootstrap as defined."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from deep5.core.errors import TooFewSamples, UsageError
from deep5.measuring.bootstrap import median_distribution
from deep5.measuring.statistics import (
    LOOKS,
    STATED,
    drift,
    far_out,
    floor_of,
    judge,
    median_ratio,
    ratio_of_medians,
    signed_rank_p,
    smallest_shown,
    steady_part,
)
from deep5.results.comparison_summary import verdicts_of, warnings_of
from deep5.results.round_samples import RoundSample

RNG = np.random.default_rng(0)
QUIET = np.exp(1e-6 * np.arange(32)).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 30])
@pytest.mark.parametrize("draws", [None, 1, 2, 7, 8])
def test_the_bootstrap_in_closed_form_is_the_one_that_is_drawn(count: int, draws: int | None) -> None:
    values = np.sort(RNG.exponential(1.0, count))
    made, weights = median_distribution(values, draws)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (weights >= 0).all()
    drawn = np.median(values[RNG.integers(0, count, (200_000, draws or count))], axis=1)
    for place in np.quantile(drawn, [0.05, 0.3, 0.5, 0.8, 0.99]):
        expected = (drawn <= place + 1e-12).mean()
        # Four standard errors of 200,000 draws.
        assert weights[made <= place + 1e-12].sum() == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 200_000))


@pytest.mark.parametrize("count", [5, 8, 15, 30])
def test_the_signed_rank_test_is_scipys(count: int) -> None:
    for _ in range(20):
        values = RNG.normal(0.3, 1.0, count)
        assert signed_rank_p(values.tolist()) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue, rel=1e-9)


def test_ties_and_zeros_of_the_signed_rank_test() -> None:
    # Ranks 2, 2, 2 of the three ones and 4 of the two: of 16 ways to give signs, 1 is as one-sided on either side.
    assert signed_rank_p([1.0, 1.0, 1.0, 2.0]) == pytest.approx(2 / 16)
    assert signed_rank_p([0.0, 0.0, 1.0, 2.0]) == pytest.approx(2 / 4)
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([1.0, -1.0]) == 1.0


def test_a_verdict_of_eight_rounds_by_hand() -> None:
    baseline = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 0.8, 1.0]
    found = judge([1.5 * seconds for seconds in baseline], baseline, 1.2)
    assert (found.word, found.rounds, found.floor) == ("slower", 8, 1.2)
    assert found.ratio == pytest.approx(1.5)
    assert found.p == 2 / 2**8
    assert found.interval is not None
    assert found.interval.low == pytest.approx(1.5)
    assert found.interval.confidence == STATED
    assert judge(baseline, [1.5 * seconds for seconds in baseline], 1.2).word == "faster"
    # Within the machine's floor, and with one round in the other direction, there is no claim.
    assert judge([1.5 * seconds for seconds in baseline], baseline, 1.6).word == "no difference shown"
    mixed = [1.5 * seconds for seconds in baseline[:7]] + [0.1]
    assert judge(mixed, baseline, 1.01).word == "no difference shown"


@pytest.mark.parametrize(("rounds", "word"), [(1, "slower"), (2, "no difference shown"), (7, "no difference shown")])
def test_of_few_rounds_hardly_anything_can_be_said(rounds: int, word: str) -> None:
    found = judge([3.0] * rounds, [1.0] * rounds, 1.5)
    assert (found.word, found.interval, found.p, found.smallest) == (word, None, None, None)


def test_where_the_floor_is_not_known_nothing_is_claimed() -> None:
    found = judge([3.0] * 8, [1.0] * 8, math.inf)
    assert (found.word, found.floor) == ("no difference shown", math.inf)


@pytest.mark.parametrize(
    ("candidate", "baseline", "floor"),
    [([], [], 1.1), ([1.0], [1.0, 2.0], 1.1), ([0.0], [1.0], 1.1), ([math.nan], [1.0], 1.1), ([1.0], [1.0], 0.9)],
)
def test_what_is_no_comparison(candidate: list[float], baseline: list[float], floor: float) -> None:
    with pytest.raises(UsageError, match=r"allowed|paired"):
        judge(candidate, baseline, floor)


def test_ratios_of_runs_that_were_not_measured_in_turn() -> None:
    ratio, interval = ratio_of_medians([2.0] * 8, [1.0] * 13)
    assert (ratio, interval.low, interval.high) == (2.0, 2.0, 2.0)
    with pytest.raises(TooFewSamples, match="at least 8"):
        ratio_of_medians([2.0] * 7, [1.0] * 13)
    with pytest.raises(TooFewSamples, match="at least 8"):
        median_ratio([2.0] * 7, [1.0] * 7)
    with pytest.raises(UsageError, match="positive"):
        ratio_of_medians([2.0] * 8, [-1.0] * 8)


def test_drift_of_very_many_samples_needs_little_memory() -> None:
    """All pairs of a hundred thousand would take eighty gigabytes."""
    times = [1.0 + 1e-6 * number for number in range(100_000)]
    assert drift(times) == pytest.approx(0.1 / 1.05, rel=0.01)


def test_a_workload_that_is_left_out_of_the_last_rounds_has_no_verdict() -> None:
    samples = [
        RoundSample(candidate, workload, number, 0, "steady", place, 1.0 + (candidate == "b") + number / 100, 1, 0.0)
        for number in range(16) for candidate in "ab" for workload in ("v", "w") for place in range(5)
        if (candidate, workload, number) != ("b", "w", 15)
    ]  # fmt: skip
    assert [(row["workload"], row["word"]) for row in verdicts_of(samples, "a", {8: 1.01, 16: 1.01})] == [
        ("v", "slower")
    ]
    assert any(told.startswith("b, w: not measured in 1 of 16 rounds") for told in warnings_of(samples, {}))


def test_the_noise_floor_of_a_machine() -> None:
    times = [1.0] * 30 + [1.1, 0.9]
    assert floor_of(times, 1) == pytest.approx((1.1 / 0.9) ** 1.5)
    # A median of many rounds hides two outliers among thirty-two processes.
    assert floor_of(times, 30) == pytest.approx(1.0)
    noisy = np.exp(0.02 * RNG.standard_normal(32)).tolist()
    floors = [floor_of(noisy, rounds) for rounds in (1, *LOOKS)]
    assert floors == sorted(floors, reverse=True)
    with pytest.raises(TooFewSamples, match="at least 16"):
        floor_of(times[:15], 1)
    with pytest.raises(UsageError, match="allowed"):
        floor_of([*times, math.inf], 1)


def test_what_could_have_been_shown_grows_with_the_noise_and_the_floor() -> None:
    ratios = (0.02 * RNG.standard_normal(30)).tolist()
    some = smallest_shown(ratios, 1.0)
    assert 1.01 < some < 1.05
    assert smallest_shown([2 * ratio for ratio in ratios], 1.0) > some
    assert smallest_shown(ratios, 1.2) > 1.2


def test_where_warming_up_ends() -> None:
    steady = 1 + 0.01 * RNG.standard_normal(100)
    warming = np.concatenate([[5.0, 3.0, 2.0, 1.5, 1.3, 1.2], steady])
    found = steady_part(warming.tolist())
    assert found.reached
    # A block of five counts by its median: it may contain two of the last slow ones.
    assert 4 <= found.begin <= 8
    assert steady_part(steady.tolist()).begin == 0


@pytest.mark.parametrize(
    "times",
    [
        np.linspace(2.0, 1.0, 60),  # it never settles
        np.concatenate([np.full(45, 1.0), np.full(15, 1.5)]),  # it changes in its second half
        np.ones(19),  # too few to decide
    ],
)
def test_a_steady_state_that_was_never_reached_is_none(times: np.ndarray) -> None:
    found = steady_part(times.tolist())
    assert not found.reached
    assert found.begin == len(times) // 2


def test_drift_is_a_trend_and_no_noise() -> None:
    noise = 0.01 * RNG.standard_normal(100)
    assert drift((1 + noise).tolist()) == 0.0
    assert drift((np.linspace(1.0, 1.2, 100) + noise).tolist()) == pytest.approx(0.18, abs=0.03)
    assert drift([1.0] * 50) == 0.0
    assert drift([1.0, 2.0]) == 0.0


def test_what_lies_far_out_is_counted() -> None:
    times = (1 + 0.01 * RNG.standard_normal(100)).tolist()
    assert far_out(times) == 0
    assert far_out([*times, 2.0, 0.1]) == 2
    assert far_out([1.0] * 50) == 0
    assert far_out([1.0, 9.0]) == 0
