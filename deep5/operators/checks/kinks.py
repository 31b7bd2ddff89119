"""Gradients at kinks: between the one-sided derivatives of forward, for each element and for all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.differences import one_sided
from deep5.operators.checks.point import BACKWARD, EPS, ROUNDINGS, Point, entry, in_float64, one_element
from deep5.operators.checks.tolerance import Deviation

__all__ = ["check_kinks"]

# Elements of each input that are moved, and outputs that are differentiated.
_ELEMENTS, _OUTPUTS = 6, 6
_MESSAGES = 3
_HOW = (
    "between the one-sided differences in float64, apart by what they change from step to step, 1e-6 of the output's "
    "size, and 64 eps of the sum of the gradients"
)


class _Move(NamedTuple):
    """A direction by input, the element that it moves (None: all at once), and one-sided slopes of all outputs."""

    direction: Mapping[int, np.ndarray]
    element: tuple[int, int] | None
    kink: np.ndarray
    converges: np.ndarray
    low: np.ndarray
    high: np.ndarray


def check_kinks(point: Point, into: Collector) -> int:
    """Compare backward with the one-sided differences where inputs are zero or equal to each other.

    At a kink, any value between the slopes to either side is a gradient (a subgradient). One element at a time does not
    reveal a maximum that gives its whole gradient to each of several equal elements: its gradients add up to the
    derivative along all elements at once, which is bounded in the same way.

    Args:
        point: The point.
        into: Receives a row if there are kinks.

    Returns:
        The number of compared entries of the Jacobian; 0 if there are no kinks.
    """
    moves = [
        _moved(point, {number: one_element(value.shape, place, float(sizes.reshape(-1)[place]))}, (number, place))
        for number in point.by
        for value, sizes in ((point.inputs[number], point.scales[number]),)
        for place in _places(value)
        if sizes.reshape(-1)[place]
    ]
    of = _chosen([move.kink for move in moves])
    if not of:
        return 0
    # All at once.
    moves.append(_moved(point, {number: point.scales[number] for number in point.by}, None))
    pull = point.subject.pullback(point.inputs)
    found: list[tuple[str, Deviation]] = []
    for output in of:
        one = np.zeros(point.base.size)
        one[output] = 1.0
        gradients = pull(point.cotangents(one), point.needs)
        name = f"output {point.output_of(output)}"
        # A length has no gradient at 0, and gives NaN there: that is not evaluated.
        found += [
            (name, _between(point, move, output, gradients))
            for move in moves
            if move.converges[output]
            and all(np.isfinite(np.asarray(gradients[number])).all() for number in move.direction)
        ]
    wrong = [(name, each) for name, each in found if each.story]
    note = f"{len(wrong)} of {len(found)} slopes are wrong" if wrong else ""
    into.compare("gradient at kinks", wrong[:_MESSAGES] or found, _HOW, note)
    return len(found)


def _places(value: np.ndarray) -> list[int]:
    """The first element of each value that is zero or occurs several times, and the last one of these."""
    flat = value.reshape(-1)
    values, first, count = np.unique(flat, return_index=True, return_counts=True)
    special = first[(count > 1) | (values == 0)]
    nearest = special[np.argsort(np.abs(flat[special]), kind="stable")][: _ELEMENTS - 1]
    last = np.flatnonzero(flat == flat[nearest[0]])[-1:] if nearest.size else nearest
    return [int(place) for place in dict.fromkeys((*nearest, *last))]


def _chosen(kinks: list[np.ndarray]) -> list[int]:
    """Outputs with a kink, the first and the last one of each direction."""
    found = [np.flatnonzero(each)[[0, -1]] for each in kinks if each.any()]
    return list(dict.fromkeys(int(output) for each in found for output in each))[:_OUTPUTS]


def _moved(point: Point, direction: Mapping[int, np.ndarray], element: tuple[int, int] | None) -> _Move:
    made = one_sided(
        lambda step: point.joined(
            [value + step * direction[n] if n in direction else value for n, value in enumerate(point.inputs)]
        ),
        point.base,
        ROUNDINGS * EPS * point.made,
        point.made,
    )
    kink, converges, low, high = made
    return _Move(direction, element, kink & ~point.lost, converges & ~point.lost, low, high)


def _between(point: Point, move: _Move, output: int, gradients: Sequence[Any]) -> Deviation:
    """Compare the slope by backward with those to either side."""
    given = [np.asarray(gradients[number], np.float64) for number in move.direction]
    steps = [(grad * way)[way != 0] for grad, way in zip(given, move.direction.values(), strict=True)]
    got, size = float(sum(np.sum(step) for step in steps)), float(sum(np.sum(np.abs(step)) for step in steps))
    low, high, room = float(move.low[output]), float(move.high[output]), BACKWARD * size
    off = max(low - got, got - high, 0.0)
    of = point.output_of(output)
    place = output - point.part[of].start
    unit, what = 1.0, f"the sum of the gradients of output {of}, each times the size of its element,"
    if move.element is not None:
        number, at = move.element
        unit, what = float(move.direction[number].reshape(-1)[at]), entry(point, of, place, number, at)
    story = ""
    if off > room:
        story = (
            f"{what} is {got / unit:.12g} by backward, expected {low / unit:.6g} to {high / unit:.6g}, the slopes to "
            "either side of a kink; remedy: any of the slopes between them, and of several equal elements one has the "
            "gradient, or they share it"
        )
    want = min(max(got, low), high)
    return in_float64(off / unit, want / unit, room / unit, story, np.zeros(0), 1)
