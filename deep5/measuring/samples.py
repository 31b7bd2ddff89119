"""From raw samples to intervals: for a median, for a ratio of times, and for "not slower than".

All intervals use order statistics: they are exact for independent samples of any distribution, need no random numbers,
and handle infinite samples (runs that never reached their target).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deep5.core.errors import TooFewSamples, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Interval",
    "NonInferiority",
    "median_ends",
    "median_interval",
    "non_inferiority",
    "paired_ratios",
    "ratio_interval",
]

FEWEST = 6
"""With fewer than six samples, even the full range covers the median in under 95 %: 1 - 2 * 0.5**5 = 0.9375."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval, both ends included.

    Attributes:
        low: Lower end, in the unit of the samples.
        high: Upper end.
        confidence: The requested coverage, in (0, 1); the true coverage is at least this.
    """

    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        """Half the distance between the ends, in the unit of the samples."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, kw_only=True)
class NonInferiority:
    """Result of `non_inferiority`.

    Attributes:
        ratio: Median over the rounds of candidate time / baseline time; below 1 the candidate is faster.
        interval: Interval of that median.
        floor_half_width: Half-width of the interval of the A/A ratio, the noise floor of these rounds.
        excess: `interval.high - floor_half_width`, so that the rule reads `excess <= 1.01`.
    """

    ratio: float
    interval: Interval
    floor_half_width: float
    excess: float


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Nonparametric confidence interval of the median, by order statistics.

    The interval [x_(k), x_(n+1-k)] of the sorted samples misses the median with probability 2 P(B < k), where B is
    binomial (n, 1/2); k is the largest rank with a probability of at most 1 - confidence.

    Args:
        samples: Shape (runs,), any unit, warm-up excluded; infinite values are valid.
        confidence: Coverage, in (0, 1).

    Raises:
        TooFewSamples: Fewer than six samples, or fewer than the confidence needs.
        UsageError: A sample is NaN, the samples are not a vector, or the confidence is not in (0, 1).

    References:
        Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems, SC'15, section 3.
        Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, section 2.2.

    >>> median_interval([5.0, 1.0, 4.0, 2.0, 6.0, 3.0])
    Interval(low=1.0, high=6.0, confidence=0.95)
    """
    import numpy as np

    values = _vector("samples", samples)
    if np.isnan(values).any():
        raise UsageError(
            f"{int(np.isnan(values).sum())} of {values.size} samples are NaN; allowed: numbers, infinities"
        )
    rank = _rank(values.size, confidence)
    values = np.sort(values)
    return Interval(low=float(values[rank - 1]), high=float(values[-rank]), confidence=confidence)


def median_ends(samples: Sequence[float]) -> tuple[float, float] | None:
    """The ends of `median_interval`; None: there are too few samples for one.

    >>> median_ends([1.0, 2.0]), median_ends([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (None, (1.0, 6.0))
    """
    try:
        found = median_interval(samples)
    except TooFewSamples:
        return None
    return found.low, found.high


def paired_ratios(candidate: Sequence[float], baseline: Sequence[float]) -> NDArray[np.float64]:
    """Ratio of times per round, shape (rounds,), float64.

    Args:
        candidate: Seconds per round, shape (rounds,).
        baseline: Seconds of the same rounds: index i was measured next to the candidate's index i.

    Raises:
        UsageError: The lengths differ, or a time is not positive and finite.
    """
    import numpy as np

    times = _vector("candidate", candidate), _vector("baseline", baseline)
    if times[0].size != times[1].size:
        raise UsageError(
            f"paired rounds need as many candidate times as baseline times; got {times[0].size} and {times[1].size}"
        )
    for name, values in zip(("candidate", "baseline"), times, strict=True):
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            where = int(np.argmax(bad))
            raise UsageError(f"{name} time of round {where} is {values[where]!r}; allowed: positive, finite seconds")
    ratios: NDArray[np.float64] = times[0] / times[1]
    return ratios


def ratio_interval(candidate: Sequence[float], baseline: Sequence[float], confidence: float = 0.95) -> Interval:
    """Confidence interval of the median ratio of two times measured in paired, alternating rounds.

    Pairing cancels the conditions that both sides of a round share (clock frequency, other load, slow drift). The
    interval is `median_interval` of the paired ratios, not a percentile bootstrap. From six rounds on it has at least
    the stated coverage for every distribution, and it needs no seed. In a simulation with 6 to 20 normal samples and a
    requested coverage of 95 %, the bootstrap covered 92 to 94 % and this interval 95.5 % and more. 1000 rounds take
    well under a millisecond.

    The interval describes the median round and hides time that is lost in a few slow rounds, so use many steps per
    round. It assumes independent rounds; alternate which side runs first.

    Args:
        candidate: Seconds per round, shape (rounds,).
        baseline: Seconds of the same rounds.
        confidence: Coverage, in (0, 1).

    Raises:
        TooFewSamples: As `median_interval`.
        UsageError: As `paired_ratios`.

    References:
        Hoefler and Belli, SC'15, section 3; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    return median_interval(paired_ratios(candidate, baseline).tolist(), confidence)


def non_inferiority(
    candidate: Sequence[float],
    baseline: Sequence[float],
    baseline_again: Sequence[float],
    confidence: float = 0.95,
) -> NonInferiority:
    """Test whether a candidate is no slower than a baseline, up to the noise between two identical loops.

    The rule: upper end of the ratio's interval <= margin + half-width of the A/A ratio's interval, with all three loops
    timed in the same rounds of one process. `excess` is the left side minus the half-width; compare it with the margin.

    The floor is the half-width only. It does not compensate for a median of the A/A ratio other than 1. That is a bias
    (execution order, memory placement), to be removed by alternating the order and rebuilding the loops; compensation
    would let the most disturbed machine accept the slowest candidate. Both intervals widen with the noise, so on a
    noisy machine `excess` approaches the point estimate `ratio`: report `floor_half_width` with the verdict.

    Args:
        candidate: Seconds per round, shape (rounds,).
        baseline: Seconds of the same rounds.
        baseline_again: Seconds of the same rounds for a second instance of the baseline.
        confidence: Coverage of both intervals, in (0, 1).

    Raises:
        TooFewSamples: As `median_interval`.
        UsageError: As `paired_ratios`.

    References:
        Wellek, Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010 (an upper confidence bound
        compared with a margin).
    """
    import numpy as np

    interval = ratio_interval(candidate, baseline, confidence)
    floor = ratio_interval(baseline_again, baseline, confidence).half_width
    return NonInferiority(
        ratio=float(np.median(paired_ratios(candidate, baseline))),
        interval=interval,
        floor_half_width=floor,
        excess=interval.high - floor,
    )


def _vector(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise UsageError(f"{name} of shape {array.shape}; allowed: a vector of numbers")
    return array


def _rank(count: int, confidence: float) -> int:
    """The largest rank k with 2 P(B < k) <= 1 - confidence, B binomial (count, 1/2)."""
    if not 0 < confidence < 1:
        raise UsageError(f"confidence {confidence!r}; allowed: a number between 0 and 1, such as 0.95")
    from scipy.special import bdtr

    # In binary, 1 - 0.95 is slightly more than 0.05; the tolerance is far below the steps of the binomial tail.
    tail = (1 - confidence) / 2 * (1 + 1e-12)

    def below(rank: int) -> Any:
        return bdtr(rank - 1, count, 0.5)

    rank = bisect_right(range(1, count // 2 + 1), tail, key=below)
    if count < FEWEST or rank == 0:
        needed = FEWEST
        while 2 * 0.5**needed > 2 * tail:
            needed += 1
        raise TooFewSamples(
            f"{count} samples; an interval of the median at confidence {confidence:g} needs at least {needed}; "
            "remedy: measure more rounds"
        )
    return rank
