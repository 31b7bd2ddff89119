"""Derivatives by differences, each with a bound on its own error.

D(h) = (f(x + h v) - f(x - h v)) / 2h is right to h^2, and R(h) = (16 D(h) - D(4h)) / 15 to h^4 (Richardson). It is
taken at seven steps, each a quarter of the one before. The error of R(h) is below |R(h) - R(4h)|, plus what rounding of
f leaves, noise / h; of all steps the one with the smallest bound is used, an element at a time. Where f has a kink at
x no step settles: such elements are told, and held between the differences to either side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deep5.operators.checks.inputs import floating

__all__ = ["STEPS", "Slopes", "scales", "slopes"]

STEPS = tuple(4e-3 / 4**level for level in range(7))
# Of what an output is made of; a gradient that is off by more than this is told from one that is right.
_SETTLED = 1e-7
_RATIO = 16.0


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """Derivatives of outputs along directions, arrays of shape (directions, elements of all floating outputs).

    Attributes:
        value: The derivative.
        bound: How far off it may be.
        step: At which it was found.
        settled: Where the bound is small against what the output is made of.
        kink: Where it is not, and the differences to either side settle.
        low: The least difference to one side at the smallest steps.
        high: The largest.
    """

    value: np.ndarray
    bound: np.ndarray
    step: np.ndarray
    settled: np.ndarray
    kink: np.ndarray
    low: np.ndarray
    high: np.ndarray


def scales(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """By how much an element of each input is moved at a step of 1: its size, and at least a sixteenth of a typical
    one, so that a zero moves too; 0 for whole numbers."""
    found = []
    for value, yes in zip(inputs, floating(inputs), strict=True):
        if not yes:
            found.append(np.zeros(value.shape))
            continue
        size = np.where(np.isfinite(value), np.abs(value), 0.0)
        typical = float(np.sqrt(np.mean(np.square(size)))) if size.size else 0.0
        found.append(np.maximum(size, typical / 16 if typical else 1.0))
    return found


def slopes(
    function: Callable[[Sequence[np.ndarray]], np.ndarray],
    inputs: Sequence[np.ndarray],
    directions: Sequence[tuple[int, np.ndarray]],
    base: np.ndarray,
    noise: np.ndarray,
    scale: np.ndarray,
) -> Slopes:
    """Derivatives of a function along directions.

    Args:
        function: Gives the floating outputs, one behind the other, in float64.
        inputs: The point.
        directions: Which input moves, and by how much at a step of 1; a whole number instead of an array moves this
            element of the input alone, by `scales`.
        base: The outputs at the point.
        noise: What rounding may do to each output.
        scale: What each output is made of.
    """
    ends = np.empty((len(STEPS), 2, len(directions), base.size))
    for place, (number, direction) in enumerate(directions):
        point = inputs[number]
        for level, step in enumerate(STEPS):
            for side, sign in enumerate((1.0, -1.0)):
                moved = list(inputs)
                moved[number] = point + (sign * step) * direction
                ends[level, side, place] = function(moved)
    sizes = np.array(STEPS).reshape(-1, 1, 1)
    with np.errstate(all="ignore"):
        central = (ends[:, 0] - ends[:, 1]) / (2 * sizes)
        better = (_RATIO * central[1:] - central[:-1]) / (_RATIO - 1)
        bounds = np.abs(better[1:] - better[:-1]) + noise / sizes[2:] * ((_RATIO + 1) / (_RATIO - 1))
        bounds = np.where(np.isnan(bounds), np.inf, bounds)
        best = bounds.argmin(axis=0)[None]
        value = np.take_along_axis(better[1:], best, axis=0)[0]
        bound = np.take_along_axis(bounds, best, axis=0)[0]
        sides = np.concatenate([(ends[-3:, 0] - base) / sizes[-3:], (base - ends[-3:, 1]) / sizes[-3:]])
        apart, kink = _kinks(ends, base, noise, scale)
        settled = (bound <= _SETTLED * (np.abs(value) + scale)) & ~apart
    return Slopes(
        value=value,
        bound=bound,
        step=np.array(STEPS[2:])[best[0]],
        settled=settled,
        kink=kink,
        low=sides.min(axis=0),
        high=sides.max(axis=0),
    )


def _kinks(ends: np.ndarray, base: np.ndarray, noise: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the differences to either side disagree and do not come closer with the step, and where, in addition, each
    of them settles: at a kink the central one may settle too, on the mean of both. Where f is smooth the gap between
    them is h f'', a quarter of that at the step before."""
    steps = np.array(STEPS[-2:]).reshape(-1, 1, 1)
    up, down = (ends[-2:, 0] - base) / steps, (base - ends[-2:, 1]) / steps
    gap, rounding = np.abs(up - down), 4 * noise / STEPS[-1]
    apart: np.ndarray = (
        (gap[1] > 0.5 * gap[0]) & (gap[1] > 1e-4 * (np.abs(up[1]) + np.abs(down[1]))) & (gap[1] > rounding)
    )
    for side in (up, down):
        settled = np.abs(side[1] - side[0]) <= 1e-3 * np.abs(side[1]) + 1e-5 * scale + rounding
        gap = np.where(settled, gap, np.nan)
    return apart, apart & np.isfinite(gap[1])
