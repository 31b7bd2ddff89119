"""What the audit derives with its own code, compared with SciPy and with the code that writes results."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from deep5.audit.drawn_order import order_in_round, seed_for
from deep5.audit.hashes import hash_of_environment, hash_of_values
from deep5.audit.median_bootstrap import floor_of_rounds, ratio_ends
from deep5.audit.order_statistics import excess_over_noise, median_ends
from deep5.audit.rank_test import allowed_p, order_test, rules_of, signed_rank
from deep5.audit.steady_state import drift_of, far_out_of, steady_from
from deep5.core.canonical import canonical_hash
from deep5.core.seeds import derive_seed
from deep5.measuring import samples, statistics
from deep5.measuring.environment import describe_software, describe_system, environment_hash
from deep5.measuring.scheme import SCHEMES
from deep5.results.round_samples import order_of_round

RNG = np.random.default_rng(0)
# Both compute in float64 from sums of up to a thousand terms.
CLOSE = 1e-9


def times(count: int, spread: float = 0.05) -> list[float]:
    return (0.01 * np.exp(spread * RNG.standard_normal(count))).tolist()


@pytest.mark.parametrize("count", [1, 5, 8, 13, 24, 30])
def test_the_signed_rank_test_is_scipys(count: int) -> None:
    values = RNG.standard_normal(count) + 0.3
    expected = scipy.stats.wilcoxon(values, mode="exact").pvalue
    assert signed_rank(values.tolist()) == pytest.approx(expected, rel=CLOSE)


def test_the_signed_rank_test_counts_ties_and_zeros_by_all_signs() -> None:
    """Compared with all 2^n sign assignments, for differences of which several are equal and one is zero."""
    values = [0.0, 0.1, -0.1, 0.2, 0.2, -0.3, 0.3, 0.3]
    ranks = scipy.stats.rankdata(np.abs(values))[1:]
    observed = sum(rank for rank, value in zip(ranks, values[1:], strict=True) if value > 0)
    every = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((False, True), repeat=len(ranks))
    ]
    extreme = min(observed, sum(ranks) - observed)
    expected = min(1.0, 2 * sum(total <= extreme for total in every) / len(every))
    assert signed_rank(values) == expected == statistics.signed_rank_p(values)


@pytest.mark.parametrize("version", SCHEMES)
def test_the_rules_are_those_of_comparisons(version: int) -> None:
    scheme, rules = SCHEMES[version], rules_of({"statistics": {} if version == 1 else {"scheme": version}})
    assert (rules.looks, rules.quick_rounds) == (scheme.looks, scheme.quick_rounds)
    assert [allowed_p(rules, rounds) for rounds in range(1, 40)] == [
        scheme.largest_p(rounds) for rounds in range(1, 40)
    ]
    for count in (1, 8, 10, 13, 30):
        logs, first = RNG.standard_normal(count).tolist(), (RNG.random(count) < 0.5).tolist()
        assert order_test(logs, first, rules) == pytest.approx(statistics.order_p(logs, first, scheme), rel=CLOSE)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 20, 101, 1000])
def test_the_interval_of_a_median(count: int) -> None:
    values = times(count)
    ends = median_ends(values)
    if count < 6:
        assert ends is None
        return
    expected = samples.median_interval(values)
    assert ends == (expected.low, expected.high)
    rank = sorted(values).index(expected.low) + 1
    assert 2 * scipy.stats.binom.cdf(rank - 1, count, 0.5) <= 0.05 < 2 * scipy.stats.binom.cdf(rank, count, 0.5)


def test_the_excess_over_the_noise() -> None:
    ours, theirs, again = times(20), times(20), times(20)
    expected = samples.non_inferiority(ours, theirs, again).excess
    assert excess_over_noise(ours, theirs, again) == pytest.approx(expected, rel=CLOSE)
    assert excess_over_noise(ours[:5], theirs[:5], again[:5]) is None


@pytest.mark.parametrize("count", [8, 9, 16, 30])
def test_the_bootstrap_interval(count: int) -> None:
    candidate, baseline = times(count), times(count)
    low, high = ratio_ends([math.log(a / b) for a, b in zip(candidate, baseline, strict=True)])
    expected = statistics.median_ratio(candidate, baseline)
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=CLOSE)


def test_the_bootstrap_is_that_of_draws() -> None:
    """Percentiles of 200,000 drawn medians; a percentile's standard error in rank is 0.0002."""
    logs = sorted(RNG.standard_normal(8).tolist())
    low, high = ratio_ends(logs)
    drawn = np.median(np.array(logs)[RNG.integers(0, 8, (200_000, 8))], axis=1)
    assert np.mean(drawn < math.log(low) - 1e-12) <= 0.0075 + 0.001 <= np.mean(drawn <= math.log(low) + 1e-12) + 0.002
    assert np.mean(drawn > math.log(high) + 1e-12) <= 0.0075 + 0.001


@pytest.mark.parametrize("rounds", [1, 2, 8, 10, 16, 24, 30])
@pytest.mark.parametrize("processes", [16, 17, 24])
def test_noise_floors(rounds: int, processes: int) -> None:
    seconds = times(processes)
    assert floor_of_rounds(seconds, rounds) == pytest.approx(statistics.floor_of(seconds, rounds), rel=CLOSE)


@pytest.mark.parametrize("count", [5, 20, 40, 200])
@pytest.mark.parametrize("trend", [0.0, 1.0])
def test_steady_states_drifts_and_outliers(count: int, trend: float) -> None:
    seconds = [value * (1 + trend * place / count) for place, value in enumerate(times(count))]
    seconds[:3] = [3 * value for value in seconds[:3]]
    steady = statistics.steady_part(seconds)
    assert steady_from(seconds) == (steady.begin, steady.reached)
    assert drift_of(seconds) == pytest.approx(statistics.drift(seconds), rel=CLOSE)
    assert far_out_of(seconds) == statistics.far_out(seconds)


def test_orders_and_seeds() -> None:
    for seed, number, count, both in itertools.product((0, 7), range(4), (2, 3, 5), (False, True)):
        assert order_in_round(seed, number, count, mirrored=both) == order_of_round(seed, number, count, reverses=both)
    assert seed_for(3, "weights", 2) == derive_seed(3, "weights", 2)


def test_hashes() -> None:
    value = {"b": [1, 2.5, None], "a": {"é": True}}
    assert hash_of_values(value) == canonical_hash(value)
    system, software = describe_system(), describe_software()
    assert hash_of_environment(system, software) == environment_hash(system, software)
