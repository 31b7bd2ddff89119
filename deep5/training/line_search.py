"""A line search for the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Trial", "strong_wolfe"]

# The maximum step relative to the first one.
_LONGEST = 1e10
# An interpolated step keeps this fraction of the interval away from its ends; otherwise the interval is halved.
_MARGIN = 0.1


class Trial(NamedTuple):
    """A step length α with the loss φ(α) and the slope φ'(α) along the direction."""

    alpha: float
    value: float
    slope: float


def strong_wolfe(
    phi: Callable[[float], tuple[float, float]],
    start: Trial,
    first: float,
    *,
    c1: float = 1e-4,
    c2: float = 0.9,
    evaluations: int = 20,
) -> Trial | None:
    """A step length α with φ(α) ≤ φ(0) + c₁ α φ'(0) and |φ'(α)| ≤ c₂ |φ'(0)|.

    A non-finite loss counts as infinite: the step was too long.

    Args:
        phi: Returns loss and slope at a step length.
        start: Loss and slope at 0; the slope is negative.
        first: The initial step length, positive.
        c1: The constant of the sufficient decrease condition.
        c2: The constant of the curvature condition; c₁ < c₂ < 1.
        evaluations: Maximum number of calls of `phi`.

    Returns:
        The step; if none is found within the limit, the trial with the lowest loss and sufficient decrease, or None if
        there is none.

    References:
        Nocedal and Wright, Numerical optimization, 2nd edition, 2006, algorithms 3.5 and 3.6, equation 3.59.
    """
    search = _Search(phi, start, c1, c2, evaluations)
    before, alpha = start, first
    while search.left:
        trial = search.evaluate(alpha)
        if not search.decreases(trial) or (before is not start and trial.value >= before.value):
            return search.zoom(before, trial)
        if search.flat(trial):
            return trial
        if trial.slope >= 0:
            return search.zoom(trial, before)
        if alpha >= _LONGEST * first:
            break
        before, alpha = trial, 2 * alpha
    return search.lowest


class _Search:
    """The two conditions, the remaining evaluations, and the lowest trial so far with sufficient decrease."""

    def __init__(
        self, phi: Callable[[float], tuple[float, float]], start: Trial, c1: float, c2: float, evaluations: int
    ) -> None:
        self._phi, self._start, self._c1, self._c2 = phi, start, c1, c2
        self.left = evaluations
        self.lowest: Trial | None = None

    def evaluate(self, alpha: float) -> Trial:
        self.left -= 1
        value, slope = self._phi(alpha)
        if not (math.isfinite(value) and math.isfinite(slope)):
            return Trial(alpha, math.inf, math.inf)
        trial = Trial(alpha, value, slope)
        if self.decreases(trial) and (self.lowest is None or value < self.lowest.value):
            self.lowest = trial
        return trial

    def decreases(self, trial: Trial) -> bool:
        """Whether the decrease condition holds."""
        return trial.value <= self._start.value + self._c1 * trial.alpha * self._start.slope

    def flat(self, trial: Trial) -> bool:
        """Whether the curvature condition holds."""
        return abs(trial.slope) <= -self._c2 * self._start.slope

    def zoom(self, low: Trial, high: Trial) -> Trial | None:
        """Algorithm 3.6: shrink an interval that contains a valid step; `low` is the end with the smaller loss."""
        while self.left and low.alpha != high.alpha:
            trial = self.evaluate(_between(low, high))
            if not self.decreases(trial) or trial.value >= low.value:
                high = trial
                continue
            if self.flat(trial):
                return trial
            if trial.slope * (high.alpha - low.alpha) >= 0:
                high = low
            low = trial
        return self.lowest


def _between(one: Trial, other: Trial) -> float:
    """The minimum of the cubic through both ends (equation 3.59), or the midpoint if it is too close to one of them."""
    middle, width = (one.alpha + other.alpha) / 2, other.alpha - one.alpha
    if not math.isfinite(other.value):
        return middle
    d1 = one.slope + other.slope - 3 * (other.value - one.value) / width
    square = d1 * d1 - one.slope * other.slope
    if not square >= 0:
        return middle
    d2 = math.copysign(math.sqrt(square), width)
    below = other.slope - one.slope + 2 * d2
    if below == 0:
        return middle
    found = other.alpha - width * (other.slope + d2 - d1) / below
    least, most = sorted((one.alpha + _MARGIN * width, other.alpha - _MARGIN * width))
    return found if least <= found <= most else middle
