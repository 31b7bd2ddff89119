"""The bootstrap of a median in closed form: every value that it can have, and how probable each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["median_distribution", "place_of_share"]


def median_distribution(
    values: NDArray[np.float64], draws: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The distribution of the median of so many draws with replacement: what it can be, and how probable each is.

    Args:
        values: What is drawn from.
        draws: As many as there are values, where not said.

    An odd number 2 m + 1 of draws has the median at most x_(k) where at least m + 1 of them are; the number of those is
    binomial with k / n. Of an even number 2 m the median is the mean of two neighbours x_(i), x_(j): for i < j just m
    draws are at most x_(i), one of them x_(i) itself, and the others at least x_(j), one of them x_(j).
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
    # The lower of the two is x_(i) where at least m draws are at most that; what is left is where both are.
    np.fill_diagonal(both, np.maximum(np.diff(bdtrc(half - 1, draws, share)) - both.sum(axis=1), 0.0))
    first, second = np.triu_indices(count)
    return (values[first] + values[second]) / 2, both[first, second]


def place_of_share(below: NDArray[np.float64], share: float) -> int:
    """Where a distribution function reaches a share; rounding may leave its end a little below 1."""
    import numpy as np

    return min(int(np.searchsorted(below, share)), below.size - 1)
