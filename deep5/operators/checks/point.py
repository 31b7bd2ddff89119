"""`Point`: an operator at one point in float64, where its gradients are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.operators.checks.differences import Slopes, scales, slopes
from deep5.operators.checks.inputs import floating
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.tolerance import ROUNDINGS, Condition, Deviation, condition

__all__ = [
    "BACKWARD",
    "EPS",
    "ROUNDINGS",
    "UNSETTLED",
    "Point",
    "entry",
    "how_found",
    "in_float64",
    "index",
    "one_element",
    "tied",
]

EPS = float(np.finfo(np.float64).eps)
BACKWARD = 64 * EPS
"""Rounding error of backward's own sums, relative to the outputs' scale; far below the error of differences."""
_BENT = 1e-6
"""Relative difference of derivatives; where there is no gradient, they differ by a part of themselves."""
UNSETTLED = (
    "{name}: the differences do not settle, so that no gradient can be evaluated: forward has kinks or jumps there, or "
    "loses its digits, by cancellation or in lower precision; allowed: inputs around which forward is smooth, and a "
    "forward that computes float64 in float64; remedy: inputs away from kinks, and what keeps digits, such as log1p(x) "
    "for log(1 + x)"
)


class Point:
    """An operator at one point in float64: its condition and derivatives there.

    Args:
        subject: Runs the operator.
        inputs: The point; floating-point ones in float64.
        rng: Draws directions, and the perturbations for the condition.
    """

    def __init__(self, subject: Subject, inputs: Sequence[np.ndarray], rng: np.random.Generator) -> None:
        self.subject, self.inputs, self.rng = subject, tuple(inputs), rng
        self.known: Condition = condition(subject.forward, inputs, rng)
        self.by = [number for number, yes in enumerate(floating(inputs)) if yes]
        self.of = [number for number, yes in enumerate(floating(self.known.values)) if yes]
        self.needs = floating(inputs)
        self.scales = scales(inputs)
        self.base = self._joined(self.known.values)
        made = [self.known.scale(number).reshape(-1) for number in self.of]
        self.made = np.concatenate(made) if made else np.zeros(0)
        ends = np.cumsum([0, *(self.known.values[number].size for number in self.of)])
        self.part = {number: slice(int(ends[at]), int(ends[at + 1])) for at, number in enumerate(self.of)}
        # Output elements that are not finite have no derivative. Input elements whose gradient is then not finite
        # either, regardless of the other gradients, are not moved.
        self.lost = ~np.isfinite(self.base)
        self.blind = {number: np.zeros(self.inputs[number].shape, bool) for number in self.by}
        if self.lost.any():
            gradients = subject.pullback(self.inputs)(self.cotangents(np.where(self.lost, 0.0, 1.0)), self.needs)
            for number in self.by:
                self.blind[number] = ~np.isfinite(np.asarray(gradients[number], np.float64))
                self.scales[number] = np.where(self.blind[number], 0.0, self.scales[number])

    def slopes(self, directions: Sequence[tuple[int, np.ndarray]]) -> Slopes:
        """Derivatives of the floating-point outputs, concatenated, along directions of one input each."""
        return slopes(
            self.joined,
            self.inputs,
            directions,
            self.base,
            ROUNDINGS * EPS * self.made,
            self.made,
        )

    def bent(self, number: int, sum_of: np.ndarray, values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """Outputs whose derivative along a sum of directions of an input is not the sum of the given derivatives.

        Args:
            number: The input.
            sum_of: The sum of the directions.
            values: The derivative along each, of shape (directions, outputs).
            bounds: Bounds on their errors.
        """
        whole = self.slopes([(number, sum_of)])
        with np.errstate(invalid="ignore"):
            gap = np.abs(whole.value[0] - values.sum(axis=0))
            room = whole.bound[0] + bounds.sum(axis=0) + _BENT * (np.abs(values).sum(axis=0) + self.made)
        bent: np.ndarray = whole.settled[0] & (gap > room)
        return bent

    def notes(self, number: int) -> list[str]:
        """Notes on an input: elements that are not checked, and limitations at this point."""
        value, found = self.inputs[number], []
        if axes := [axis for axis, extent in enumerate(value.shape) if extent == 1]:
            found.append(
                f"input {number} has the size 1 along axis {', '.join(map(str, axes))}, where a sum equals a mean, "
                "and broadcasting has no effect; remedy: a larger size too"
            )
        if value.size > 1 and ((value > 0).all() or (value < 0).all()):
            sign = "positive" if value.flat[0] > 0 else "negative"
            found.append(
                f"all elements of input {number} are {sign}, and others were not tried; remedy: numbers of both signs, "
                "where it takes them"
            )
        if self.lost.any():
            beside = f", and by {count} elements of the input" if (count := int(self.blind[number].sum())) else ""
            found.append(
                f"{int(self.lost.sum())} of {self.lost.size} elements of the outputs are NaN or infinite: derivatives "
                f"of these{beside} were left out"
            )
        return found

    def cotangents(self, joined: np.ndarray) -> tuple[np.ndarray | None, ...]:
        """One gradient per output, from the concatenated gradients of the floating-point outputs."""
        return tuple(
            joined[self.part[number]].reshape(value.shape) if number in self.part else None
            for number, value in enumerate(self.known.values)
        )

    def output_of(self, place: int) -> int:
        """The output that an element of the concatenated outputs belongs to."""
        return next(number for number, part in self.part.items() if part.start <= place < part.stop)

    def joined(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The floating-point outputs for some inputs, concatenated."""
        return self._joined(self.subject.forward(inputs))

    def _joined(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        parts = [np.asarray(outputs[number], np.float64).reshape(-1) for number in self.of]
        return np.concatenate(parts) if parts else np.zeros(0)


def tied(value: np.ndarray) -> bool:
    """Whether some elements are equal, so that an order statistic of them has no gradient."""
    return np.unique(value).size < value.size


def one_element(shape: tuple[int, ...], place: int, size: float) -> np.ndarray:
    """A direction that moves only one element, by `size`."""
    direction = np.zeros(shape)
    direction.reshape(-1)[place] = size
    return direction


def entry(point: Point, of: int, place: Any, number: int, at: Any) -> str:
    """Description of an entry of the Jacobian in messages."""
    output, given = point.known.values[of].shape, point.inputs[number].shape
    return f"d output {of}{index(place, output)} / d input {number}{index(at, given)}"


def in_float64(
    error: float, want: float, allowed: float, story: str, differences: np.ndarray, values: int, shows: str = ""
) -> Deviation:
    """A `Deviation`, with relative error and ulps computed from the error and the expected value."""
    relative = error / abs(want) if want else (0.0 if error == 0 else np.inf)
    return Deviation(error, relative, relative / EPS, allowed, story, differences, values, shows)


def index(place: Any, shape: tuple[int, ...]) -> list[int]:
    """Indices of an element from its position in memory."""
    return [int(each) for each in np.unravel_index(int(place), shape)] if shape else []


def how_found(how: str, made: Slopes) -> str:
    """The derivation of the tolerance."""
    step = float(np.median(made.step[made.settled])) if made.settled.any() else np.nan
    return (
        f"central differences in float64, {how}: |R(h) - R(4h)| + {ROUNDINGS:g} eps (|y| + sqrt(n) S) / h, "
        f"h = {step:.1g} of the input's size (median), eps = 2.2e-16"
    )
