"""The bootstrap distribution of a median in closed form: its possible values and their probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["median_distribution", "place_of_share"]


def median_distribution(
    values: NDArray[np.float64], draws: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distribution of the median of `draws` draws with replacement: its possible values and their probabilities.

    Args:
        values: The values that are drawn from.
        draws: Number of draws; the number of values by default.

    For an odd number 2 m + 1 of draws, the median is at most x_(k) if at least m + 1 draws are; the number of such
    draws is binomial with probability k / n. For an even number 2 m, the median is the mean of two order statistics
    x_(i), x_(j). For i < j, exactly m draws are at most x_(i), at least one of them equal to x_(i), and the others are
    at least x_(j), at least one of them equal to x_(j).
    """
    import numpy as np
    from scipy.special import bdtrc, comb

    values = np.sort(values)
    count, draws = values.size, draws or values.size
    share = np.arange(count + 1) / count
    if draws % 2:
        return values, np.diff(bdtrc(draws // 2, draws, share))
    half = draws // 2
    at, beyond = np.diff(share**half), -np.diff((1 - share) ** half)
    both = np.triu(comb(draws, half) * np.outer(at, beyond), 1)
    # The lower of the two is x_(i) if at least m draws are at most x_(i); the remainder is the case that both are
    # x_(i).
    np.fill_diagonal(both, np.maximum(np.diff(bdtrc(half - 1, draws, share)) - both.sum(axis=1), 0.0))
    first, second = np.triu_indices(count)
    return (values[first] + values[second]) / 2, both[first, second]


def place_of_share(below: NDArray[np.float64], share: float) -> int:
    """Index at which a distribution function reaches `share`; rounding may leave its last value slightly below 1."""
    import numpy as np

    return min(int(np.searchsorted(below, share)), below.size - 1)
