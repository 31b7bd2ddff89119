"""Derivatives by finite differences, each with an error bound.

D(h) = (f(x + h v) - f(x - h v)) / 2h has an error of order h^2, and R(h) = (16 D(h) - D(4h)) / 15 one of order h^4
(Richardson). Seven steps are used, each a quarter of the previous one. The error of R(h) is below |R(h) - R(4h)| plus
the effect of rounding in f, noise / h; for each element, the step with the smallest bound is used. A staircase looks
like a slope at steps longer than its stairs, so the bound of R(h) also covers its distance from R at shorter steps. If
f has a kink at x, no step converges: such elements are reported, and must lie between the one-sided differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deep5.operators.checks.inputs import floating

__all__ = ["STEPS", "Slopes", "one_sided", "scales", "slopes"]

STEPS = tuple(4e-3 / 4**level for level in range(7))
# Relative to an output's scale; gradients with a larger error are distinguished from correct ones.
_SETTLED = 1e-7
_RATIO = 16.0
# What rounding may add to a difference at a shorter step, in multiples of its estimate.
_ROUNDINGS = 4.0


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """Derivatives of outputs along directions, arrays of shape (directions, elements of all floating outputs).

    Attributes:
        value: The derivative.
        bound: Bound on its error.
        step: The step used.
        settled: Where the bound is small relative to the output's scale.
        kink: Where it is not, but both one-sided differences converge.
        low: The smallest one-sided difference at the smallest steps.
        high: The largest one.
    """

    value: np.ndarray
    bound: np.ndarray
    step: np.ndarray
    settled: np.ndarray
    kink: np.ndarray
    low: np.ndarray
    high: np.ndarray


def scales(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Perturbation of each input element at a step of 1: its magnitude, at least a sixteenth of the typical one, so
    that zeros move too; 0 for integers.
    """
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
        function: Returns the floating-point outputs, concatenated, in float64.
        inputs: The point.
        directions: The input to move, and its perturbation at a step of 1; an integer instead of an array moves only
            this element of the input, by `scales`.
        base: The outputs at the point.
        noise: Rounding error of each output.
        scale: Magnitude of the terms of each output.
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
        rounding = noise / sizes[2:] * ((_RATIO + 1) / (_RATIO - 1))
        bounds = np.abs(better[1:] - better[:-1]) + rounding
        for level in range(1, len(bounds)):
            shorter = np.abs(better[1 + level] - better[1 : 1 + level]) - _ROUNDINGS * rounding[level]
            bounds[:level] = np.maximum(bounds[:level], shorter)
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


def one_sided(
    function: Callable[[float], np.ndarray], base: np.ndarray, noise: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One-sided derivatives of the outputs of a function of one step, at the smallest steps.

    Args:
        function: Returns the outputs at a step.
        base: The outputs at 0.
        noise: Rounding error of each output.
        scale: Magnitude of the terms of each output.

    Returns:
        Where there is a kink, where the differences to either side converge, and the lowest and the highest derivative
        that agrees with them.
    """
    ends = np.stack([[[function(sign * step)] for sign in (1.0, -1.0)] for step in STEPS[-2:]])
    with np.errstate(all="ignore"):
        _, kink = _kinks(ends, base, noise, scale)
        steps = np.array(STEPS[-2:]).reshape(-1, 1)
        up, down = (ends[:, 0, 0] - base) / steps, (base - ends[:, 1, 0]) / steps
        rounding = 4 * noise / STEPS[-1]
        change = np.maximum(*(np.abs(side[1] - side[0]) for side in (up, down)))
        size = np.maximum(np.abs(up[1]), np.abs(down[1]))
        converges = change <= 1e-3 * size + 1e-5 * scale + rounding
        room = 2 * change + 1e-6 * (size + scale) + rounding
        return kink[0], converges, np.fmin(up[1], down[1]) - room, np.fmax(up[1], down[1]) + room


def _kinks(ends: np.ndarray, base: np.ndarray, noise: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the one-sided differences disagree without converging to each other, and where, in addition, each of them
    converges: at a kink the central difference may converge too, to the mean of both. Where f is smooth, the gap
    between them is h f'', a quarter of that at the previous step.
    """
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
