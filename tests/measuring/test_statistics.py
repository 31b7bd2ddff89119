"""`deep5.measuring.statistics` on cases worked by hand, compared with SciPy and with the bootstrap as defined."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from deep5.core.errors import TooFewSamples, UsageError
from deep5.measuring.bootstrap import median_distribution
from deep5.measuring.order_test import holm, order_p, signed_rank_p
from deep5.measuring.scheme import CURRENT, SCHEMES, Scheme, scheme_of
from deep5.measuring.statistics import (
    STATED,
    drift,
    far_out,
    floor_of,
    judge,
    median_ratio,
    ratio_of_medians,
    smallest_shown,
    steady_part,
)
from deep5.results.comparison_summary import verdicts_of
from deep5.results.comparison_warnings import warnings_of
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


# The candidate ran first in five of ten rounds.
TURNS = [True, False] * 5


def test_a_verdict_of_ten_rounds_by_hand() -> None:
    baseline = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 0.8, 1.0, 1.1, 0.95]
    candidate = [1.5 * seconds for seconds in baseline]
    found = judge(candidate, baseline, 1.2, TURNS)
    assert (found.word, found.rounds, found.floor) == ("slower", 10, 1.2)
    assert found.ratio == pytest.approx(1.5)
    assert found.p == 2 / 2**10
    assert found.interval is not None
    assert found.interval.low == pytest.approx(1.5)
    assert found.interval.confidence == STATED
    assert judge(baseline, candidate, 1.2, TURNS).word == "faster"
    # Within the machine's floor, and with one round in the other direction, there is no claim.
    assert judge(candidate, baseline, 1.6, TURNS).word == "no difference shown"
    assert judge([*candidate[:9], 0.1], baseline, 1.01, TURNS).word == "no difference shown"


def test_the_test_is_that_of_all_tosses() -> None:
    """The p-value is the share of the 2^n orders for which the same differences are at least as one-sided."""
    for count in (4, 7, 10):
        differences = RNG.standard_normal(count) + 0.5
        centered = differences - math.fsum(differences) / count
        tosses = np.array(list(itertools.product((1, -1), repeat=count)))
        ranks = stats.rankdata(np.abs(centered))
        sums = np.where(tosses * centered > 0, ranks, 0).sum(axis=1)
        extremes = np.minimum(sums, ranks.sum() - sums)
        for place in RNG.integers(0, len(tosses), 10):
            expected = (extremes <= extremes[place]).mean()
            ratios = (tosses[place] * differences).tolist()
            first = (tosses[place] > 0).tolist()
            assert order_p(ratios, first) == pytest.approx(min(1.0, expected), rel=1e-9)


def test_what_the_place_in_a_round_does_is_no_difference() -> None:
    """The second process of each round takes 20 % longer, and the candidate was second in seven of ten rounds."""
    first = [True] * 3 + [False] * 7
    noise = np.exp(1e-4 * RNG.standard_normal((2, 10)))
    candidate = noise[0] * [1.0 if value else 1.2 for value in first]
    baseline = noise[1] * [1.2 if value else 1.0 for value in first]
    found = judge(candidate.tolist(), baseline.tolist(), 1.01, first)
    assert found.p is not None
    assert found.p > 0.1
    assert found.word == "no difference shown"


def test_an_order_that_was_not_mixed_shows_nothing() -> None:
    found = judge([3.0] * 10, [1.0] * 10, 1.1, [True] * 10)
    assert (found.p, found.word) == (1.0, "no difference shown")


@pytest.mark.parametrize(
    ("rounds", "word"),
    [(1, "no difference shown"), (2, "slower"), (3, "no difference shown"), (9, "no difference shown")],
)
def test_of_few_rounds_hardly_anything_can_be_said(rounds: int, word: str) -> None:
    found = judge([3.0] * rounds, [1.0] * rounds, 1.5, TURNS[:rounds])
    assert (found.word, found.interval, found.p, found.smallest) == (word, None, None, None)


@pytest.mark.parametrize(
    ("candidate", "word"),
    [
        ([3.0, 1.6], "slower"),
        ([3.0, 1.4], "no difference shown"),
        ([0.3, 0.6], "faster"),
        ([0.3, 0.9], "no difference shown"),
        ([3.0, 0.3], "no difference shown"),
    ],
)
def test_both_rounds_of_a_quick_comparison_have_to_agree(candidate: list[float], word: str) -> None:
    assert judge(candidate, [1.0, 1.0], 1.5, [True, False]).word == word


def test_where_the_floor_is_not_known_nothing_is_claimed() -> None:
    found = judge([3.0] * 10, [1.0] * 10, math.inf, TURNS)
    assert (found.word, found.floor) == ("no difference shown", math.inf)


def test_old_results_keep_their_rules() -> None:
    old = scheme_of({"looks": [8, 16, 24, 30], "confidence": 0.95})
    assert old is SCHEMES[1]
    assert judge([3.0], [1.0], 1.5, [True], old).word == "slower"
    assert judge([3.0] * 2, [1.0] * 2, 1.5, [True, False], old).word == "no difference shown"
    eight = judge([3.0] * 8, [1.0] * 8, 1.5, [True] * 8, old)
    assert (eight.word, eight.p) == ("slower", 2 / 2**8)
    with pytest.raises(UsageError, match="allowed: 1, 2"):
        scheme_of({"scheme": 3})


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: f"scheme {scheme.version}")
def test_the_looks_share_one_error(scheme: Scheme) -> None:
    assert sum(scheme.shares) < 0.01
    assert len(scheme.looks) == len(scheme.shares)
    # The first look claims only where every round agrees.
    assert scheme.shares[0] == 2 / 2 ** scheme.looks[0]
    for look, share in zip(scheme.looks, scheme.shares, strict=True):
        assert scheme.largest_p(look) == share
        assert scheme.sequential_p(share, look) == pytest.approx(sum(scheme.shares), rel=1e-12)
    assert scheme.largest_p(scheme.looks[0] + 1) == min(scheme.shares)


def test_what_holds_for_a_whole_table() -> None:
    assert holm([]) == []
    assert holm([None, 0.05]) == [False, True]
    # A value that fails ends the procedure, also for later ones that are below their own limits.
    assert holm([0.026, 0.027]) == [False, False]
    assert holm([0.024, 0.049]) == [True, True]
    values = RNG.uniform(0, 0.06, 12).tolist()
    order = np.argsort(values)
    steps = np.maximum.accumulate(np.array(values)[order] * np.arange(12, 0, -1))
    assert holm(values) == [bool(steps[order.tolist().index(place)] <= 0.05) for place in range(12)]


@pytest.mark.parametrize(
    ("candidate", "baseline", "floor"),
    [([], [], 1.1), ([1.0], [1.0, 2.0], 1.1), ([0.0], [1.0], 1.1), ([math.nan], [1.0], 1.1), ([1.0], [1.0], 0.9)],
)
def test_what_is_no_comparison(candidate: list[float], baseline: list[float], floor: float) -> None:
    with pytest.raises(UsageError, match=r"allowed|paired"):
        judge(candidate, baseline, floor, [True] * len(baseline))


def test_an_order_of_other_rounds_is_refused() -> None:
    with pytest.raises(UsageError, match="the order of 2 rounds; allowed: that of 3"):
        judge([1.0] * 3, [1.0] * 3, 1.1, [True] * 2)


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
        RoundSample(
            candidate, workload, number, 2 * number + (candidate == "ab"[number % 2]), "steady", place,
            1.0 + (candidate == "b") + number / 100, 1, 0.0,
        )
        for number in range(16) for candidate in "ab" for workload in ("v", "w") for place in range(5)
        if (candidate, workload, number) != ("b", "w", 15)
    ]  # fmt: skip
    assert [(row["workload"], row["word"]) for row in verdicts_of(samples, "a", {10: 1.01, 16: 1.01})] == [
        ("v", "slower")
    ]
    assert any(told.startswith("b, w: not measured in 1 of 16 rounds") for told in warnings_of(samples, {}))


def test_the_noise_floor_of_a_machine() -> None:
    times = [1.0] * 30 + [1.1, 0.9]
    assert floor_of(times, 1) == pytest.approx((1.1 / 0.9) ** 1.5)
    assert floor_of(times, 2) == pytest.approx(1.1 / 0.9)
    # A median of many rounds hides two outliers among thirty-two processes.
    assert floor_of(times, 30) == pytest.approx(1.0)
    noisy = np.exp(0.02 * RNG.standard_normal(32)).tolist()
    floors = [floor_of(noisy, rounds) for rounds in (1, 2, *CURRENT.looks)]
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
