"""Statistics of the raw times of interleaved rounds: ratio, verdict, steady state, and warnings.

No function here draws random numbers. The bootstrap of a median has a closed form, and the test that supports a claim
is valid for every noise distribution. tests/measuring/test_statistics_simulated.py measures how often each is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deep5.core.errors import TooFewSamples, UsageError
from deep5.measuring.bootstrap import median_distribution, place_of_share
from deep5.measuring.order_test import order_p, signed_rank_p
from deep5.measuring.samples import Interval, paired_ratios
from deep5.measuring.scheme import CURRENT, Scheme

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "LOOKS",
    "STATED",
    "Steady",
    "Verdict",
    "drift",
    "far_out",
    "floor_of",
    "judge",
    "median_ratio",
    "ratio_of_medians",
    "signed_rank_p",
    "smallest_shown",
    "steady_part",
]

LOOKS = CURRENT.looks
"""Numbers of rounds at which a comparison is evaluated."""

STATED = 0.95
"""Stated confidence of a ratio's interval."""
# The percentiles are wider: a bootstrap of eight values, combined with early stopping, covers less often than its
# percentiles state. Simulated: at least 95 % from eight rounds on, early stopping included.
_PERCENTILES = 0.985
# Fewest runs that have an interval.
_FEWEST = 8
# Quantile of normal noise with a probability of 98 %, so that three conditions hold together in 95 %; and the ratio of
# a median's standard error to that of a mean.
_POWER, _MEDIAN = 2.0, math.sqrt(math.pi / 2)

# The difference of two further values exceeds the range of 32 in 0.7 % (normal noise) to 2.6 % (exponential) of cases;
# it exceeds the range stretched by this power in at most 0.8 % (simulated).
_TAIL = 1.5

Word = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of comparing two candidates.

    Attributes:
        word: "faster" or "slower" (the candidate than the baseline), or "no difference shown".
        ratio: Median over the rounds of candidate time / baseline time.
        interval: Interval of the ratio, at `STATED`; None with fewer than eight rounds.
        p: Probability that identical candidates differ at least as much; None with fewer than eight rounds.
        floor: Ratio above 1 that this machine shows between identical candidates at this number of rounds.
        smallest: Ratio above 1 that these rounds would have detected in 95 % of cases; None with fewer than eight
            rounds.
        rounds: Number of rounds.
    """

    word: Word
    ratio: float
    interval: Interval | None
    p: float | None
    floor: float
    smallest: float | None
    rounds: int


def judge(
    candidate: Sequence[float],
    baseline: Sequence[float],
    floor: float,
    first: Sequence[bool] | None = None,
    scheme: Scheme = CURRENT,
) -> Verdict:
    """Determine whether a candidate is faster or slower than a baseline.

    From the scheme's first look on, a difference is claimed if three conditions hold. First, the exact test over the
    rounds is significant: see `order_p`. Second, the bootstrap interval of the ratio excludes 1. Third, the ratio
    exceeds the machine's noise floor. The rounds of a quick comparison claim a difference if each of them is beyond the
    floor in the same direction; other numbers of rounds claim none.

    Args:
        candidate: Seconds, shape (rounds,), one fresh process per round.
        baseline: Seconds of the same rounds.
        floor: Result of `floor_of` for this number of rounds.
        first: Whether the candidate's process ran before the baseline's, by round; None: unknown, as for `order_p`.
        scheme: Rules of the comparison.

    Raises:
        UsageError: The lengths differ, there is no round, or a time is not positive and finite.

    References:
        Wilcoxon, Individual Comparisons by Ranking Methods, 1945; Pocock, Group Sequential Methods, 1977 (several looks
        share one error); Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    import numpy as np

    ratios = np.log(paired_ratios(candidate, baseline))
    if not ratios.size:
        raise UsageError("a verdict without rounds; allowed: at least one")
    if first is not None and len(first) != ratios.size:
        raise UsageError(f"the order of {len(first)} rounds; allowed: that of {ratios.size}")
    if not floor >= 1:
        raise UsageError(f"noise floor {floor!r}; allowed: a ratio of at least 1")
    middle, rounds = float(np.median(ratios)), int(ratios.size)
    if rounds < scheme.looks[0]:
        interval, p, smallest = None, None, None
        # No test reaches 1 % with so few rounds: what is claimed is beyond all observed noise.
        beyond = math.log(floor) < (ratios.min() if middle > 0 else -ratios.max())
        claimed = rounds == scheme.quick_rounds and bool(beyond)
    else:
        interval = median_ratio(candidate, baseline)
        p = order_p(ratios.tolist(), first, scheme)
        significant = p <= scheme.largest_p(rounds)
        claimed = significant and abs(middle) > math.log(floor) and not interval.low <= 1 <= interval.high
        smallest = smallest_shown(ratios.tolist(), floor, scheme)
    word: Word = "no difference shown"
    if claimed:
        word = "slower" if middle > 0 else "faster"
    return Verdict(
        word=word, ratio=math.exp(middle), interval=interval, p=p, floor=floor, smallest=smallest, rounds=rounds
    )


def median_ratio(candidate: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Bootstrap interval of the median over rounds of candidate time / baseline time, at `STATED`.

    Args:
        candidate: Seconds, shape (rounds,).
        baseline: Seconds of the same rounds.

    Raises:
        TooFewSamples: Fewer than eight rounds.
        UsageError: As `deep5.measuring.samples.paired_ratios`.
    """
    import numpy as np

    ratios = np.log(paired_ratios(candidate, baseline))
    _check_count(ratios.size)
    values, weights = median_distribution(ratios)
    return _percentiles(values, weights)


def ratio_of_medians(candidate: Sequence[float], baseline: Sequence[float]) -> tuple[float, Interval]:
    """Ratio of the medians of two sets of unpaired runs, and its bootstrap interval, at `STATED`.

    Args:
        candidate: Seconds per run, shape (n,).
        baseline: Seconds per run, shape (m,); m and n may differ.

    Raises:
        TooFewSamples: One of them has fewer than eight runs.
        UsageError: A time is not positive and finite.
    """
    import numpy as np

    logs = []
    for name, times in (("candidate", candidate), ("baseline", baseline)):
        values = np.asarray(times, np.float64)
        if values.ndim != 1 or not (np.isfinite(values) & (values > 0)).all():
            raise UsageError(f"{name} times {values!r:.80}; allowed: a vector of positive, finite seconds")
        _check_count(values.size)
        logs.append(np.log(values))
    (one, of_one), (other, of_other) = (median_distribution(values) for values in logs)
    middle = float(np.median(logs[0]) - np.median(logs[1]))
    # The two are resampled independently: every pair of medians, with the product of their probabilities.
    return math.exp(middle), _percentiles(np.subtract.outer(one, other).ravel(), np.outer(of_one, of_other).ravel())


def _check_count(count: int) -> None:
    if count < _FEWEST:
        raise TooFewSamples(f"{count} rounds; an interval of a ratio needs at least {_FEWEST}; remedy: measure more")


def _percentiles(values: NDArray[np.float64], weights: NDArray[np.float64]) -> Interval:
    import numpy as np

    order = np.argsort(values)
    below, tail = np.cumsum(weights[order]), (1 - _PERCENTILES) / 2
    low, high = (float(values[order[place_of_share(below, share)]]) for share in (tail, 1 - tail))
    return Interval(low=math.exp(low), high=math.exp(high), confidence=STATED)


def smallest_shown(ratios: Sequence[float], floor: float, scheme: Scheme = CURRENT) -> float:
    """The ratio above 1 that rounds as noisy as these would have detected in 95 % of cases.

    Assumes normal noise with the observed spread about the median.

    Args:
        ratios: Logarithms of the rounds' ratios.
        floor: As for `judge`.
        scheme: As for `judge`.
    """
    import numpy as np
    from scipy.special import ndtri

    values = np.asarray(ratios, np.float64)
    largest_p = scheme.largest_p(values.size)
    if 2 / 2**values.size > largest_p:
        return math.inf  # even rounds that all agree would not suffice
    # For the test, in terms of a mean: the signed-rank test has an efficiency of 0.955.
    spread = float(np.std(values, ddof=1)) / math.sqrt(values.size)
    by_test = (ndtri(1 - largest_p / 2) + _POWER) * spread / math.sqrt(0.955)
    # With few rounds, all must be on one side: in 95 % of cases this holds for each round only if the shift is large.
    one_side = 4 / 2**values.size > largest_p
    by_signs = ndtri(0.95 ** (1 / values.size)) * float(np.std(values, ddof=1)) if one_side else 0.0
    by_interval = (ndtri((1 + _PERCENTILES) / 2) + _POWER) * _MEDIAN * spread
    by_floor = math.log(floor) + _POWER * _MEDIAN * spread
    return math.exp(max(by_test, by_signs, by_interval, by_floor))


def floor_of(processes: Sequence[float], rounds: int) -> float:
    """The ratio above 1 that identical candidates show on a machine, from fresh processes that ran the same code.

    For two rounds, each of which has to exceed it, it is the largest ratio of any two processes. For a single round, it
    is that to the power 1.5. For several rounds, it is the bootstrap bound that the median of so many ratios of two
    processes stays below in 95 % of cases.

    Args:
        processes: Seconds of each process, in execution order, shape (n,), n at least 16.
        rounds: Number of rounds of the comparison.

    Raises:
        TooFewSamples: Fewer than 16 processes.
        UsageError: A time is not positive and finite.
    """
    import numpy as np

    times = np.asarray(processes, np.float64)
    if times.ndim != 1 or not (np.isfinite(times) & (times > 0)).all():
        raise UsageError(f"times of processes {times!r:.80}; allowed: a vector of positive, finite seconds")
    if times.size < 2 * _FEWEST:
        raise TooFewSamples(f"{times.size} processes; a noise floor needs at least {2 * _FEWEST}")
    if rounds <= 2:
        return math.pow(float(times.max() / times.min()), _TAIL if rounds == 1 else 1.0)
    logs = np.log(times)
    pairs = logs[0 : times.size // 2 * 2 : 2] - logs[1::2][: times.size // 2]
    values, weights = median_distribution(np.concatenate([pairs, -pairs]), rounds)
    order = np.argsort(np.abs(values))
    below = np.cumsum(weights[order])
    return math.exp(float(np.abs(values)[order[place_of_share(below, 0.95)]]))


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Start of the steady state in a series of times.

    Attributes:
        begin: Index of the first steady sample.
        reached: Whether a steady state was found; otherwise `begin` is at half of the samples.
    """

    begin: int
    reached: bool


_BLOCK, _LEVEL = 5, 0.02
# Maximum number of values whose pairs are used for a slope.
_PAIRED = 1000


def steady_part(times: Sequence[float]) -> Steady:
    """Find the end of the warm-up: the first block of five samples at the level of the second half.

    A block is at that level if its median is within 2 % of it, or within three standard errors of a block's median if
    the noise is larger. If the two halves of the second half are at different levels, no steady state was reached.

    Args:
        times: Seconds, shape (n,), in chronological order, without the first call.
    """
    import numpy as np

    values = np.asarray(times, np.float64)
    half = values.size // 2
    if values.size < 4 * _BLOCK:
        return Steady(begin=half, reached=False)
    tail = values[half:]
    level = float(np.median(tail))
    # From neighbors, so that a drifting level does not count as noise.
    noise = float(np.median(np.abs(np.diff(tail)))) * 1.4826 / math.sqrt(2)

    def on_level(block: NDArray[np.float64]) -> bool:
        allowed = max(_LEVEL * level, 3 * _MEDIAN * noise / math.sqrt(block.size))
        return abs(float(np.median(block)) - level) <= allowed

    quarter = tail.size // 2
    if not (on_level(tail[:quarter]) and on_level(tail[quarter:])):
        return Steady(begin=half, reached=False)
    begin = next((place for place in range(half) if on_level(values[place : place + _BLOCK])), half)
    return Steady(begin=begin, reached=True)


def drift(times: Sequence[float]) -> float:
    """Relative change of the times from first to last, with respect to their median; 0 without a significant trend.

    Kendall's test at 1 % detects the trend; the Theil-Sen slope gives its size.

    Args:
        times: Seconds, shape (n,), in chronological order.
    """
    import numpy as np
    from scipy.stats import kendalltau, theilslopes

    values = np.asarray(times, np.float64)
    if values.size < 2 * _FEWEST or np.ptp(values) == 0:
        return 0.0
    places = np.arange(values.size)
    if kendalltau(places, values).pvalue > 0.01:
        return 0.0
    # The slope is the median over all pairs; for very many values, a subset is enough.
    some = slice(None, None, -(-values.size // _PAIRED))
    return float(theilslopes(values[some], places[some])[0] * (values.size - 1) / np.median(values))


def far_out(times: Sequence[float]) -> int:
    """Number of samples more than three interquartile ranges beyond the quartiles; they are reported, never dropped.

    Args:
        times: Seconds, shape (n,).

    References:
        Tukey, Exploratory Data Analysis, 1977, section 2D ("far out").
    """
    import numpy as np

    values = np.asarray(times, np.float64)
    if values.size < _FEWEST:
        return 0
    low, high = np.percentile(values, (25, 75))
    # Differences below the clock's resolution are not outliers.
    width = max(high - low, 1e-3 * high)
    return int(np.count_nonzero((values < low - 3 * width) | (values > high + 3 * width)))
