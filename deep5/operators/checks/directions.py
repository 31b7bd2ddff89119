"""Gradients of large inputs along random directions, and locating errors in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.differences import Slopes
from deep5.operators.checks.point import (
    BACKWARD,
    UNSETTLED,
    Point,
    entry,
    how_found,
    in_float64,
    index,
    one_element,
    tied,
)
from deep5.operators.checks.tolerance import Deviation

__all__ = ["check_directions"]

_DIRECTIONS, _MOVES = 3, 3
# Factors of random output gradients: backward is linear in them at any magnitude.
_FACTORS = (1.0, 1e3)
# If an input's gradient is wrong, up to this many elements are tested one by one, more in blocks.
_ONE_BY_ONE, _BLOCKS = 4096, 64
# Maximum number of output elements kept at once.
_KEPT = 1 << 18
# Minimum fraction of an output's elements that must have a derivative.
_ENOUGH = 0.5


def check_directions(point: Point, into: Collector) -> bool:
    """Compare backward with differences along random directions, for random sums of each output's elements.

    Returns:
        Whether it was done at this point, and not beside it because differences do not settle here.
    """
    for attempt in range(4):
        draws = {
            number: [_random(point, number) for _ in range(_DIRECTIONS)]
            for number in point.by
            if point.inputs[number].size
        }
        made = {number: point.slopes([(number, each) for each in drawn]) for number, drawn in draws.items()}
        settled = np.all([each.settled.all(axis=0) for each in made.values()], axis=0) & ~_bent(point, draws, made)
        there = ~point.lost
        left = [of for of, part in point.part.items() if settled[part].sum() < _ENOUGH * there[part].sum()]
        if not left or attempt == _MOVES:
            break
        # Next to a kink the derivative exists again.
        point = Point(point.subject, [_beside(point, number) for number in range(len(point.inputs))], point.rng)
    notes = []
    if attempt:
        notes.append("taken at a point beside the inputs, where the differences of too many outputs do not settle")
    if count := int((there & ~settled).sum()):
        notes.append(f"{count} of {settled.size} elements of the outputs, as at kinks, do not settle and were left out")
    pull = point.subject.pullback(point.inputs)
    pulled: dict[int, list[tuple[np.ndarray, Any]]] = {of: [] for of in point.part}
    for of, part in point.part.items():
        for factor in _FACTORS:
            joined = np.zeros(point.base.size)
            joined[part] = factor * point.rng.standard_normal(part.stop - part.start) * settled[part]
            pulled[of].append((joined, pull(point.cotangents(joined), point.needs)))
    for number, drawn in draws.items():
        check = f"gradient by input {number}"
        if left:
            into.say(check, "FAILED", f"{UNSETTLED.format(name=point.subject.name)} (output {left[0]})")
            continue
        parts = []
        for of, cotangents in pulled.items():
            found = [
                (_along(direction, made[number], place, joined, gradients[number], point.made), joined, gradients)
                for place, direction in enumerate(drawn)
                for joined, gradients in cotangents
            ]
            worst, joined, gradients = max(found, key=lambda each: each[0].error / max(each[0].allowed, 1e-320))
            if worst.story:
                worst = _located(point, number, of, joined, gradients[number], pull, worst)
            parts.append((f"output {of}", worst))
        reported = "; ".join(point.notes(number) + notes)
        into.compare(check, parts, how_found(f"{_DIRECTIONS} random directions", made[number]), reported)
    return not attempt and not left


def _bent(point: Point, draws: Mapping[int, Sequence[np.ndarray]], made: Mapping[int, Slopes]) -> np.ndarray:
    """Outputs whose derivative along a sum of directions is not the sum of those along each.

    They have no gradient there, although along each direction they are smooth, as the median of equal elements.
    """
    bent = np.zeros(point.base.shape, bool)
    for number, drawn in draws.items():
        if tied(point.inputs[number]):
            bent |= point.bent(number, drawn[0] + drawn[1], made[number].value[:2], made[number].bound[:2])
    return bent


def _random(point: Point, number: int) -> np.ndarray:
    size = point.scales[number]
    drawn: np.ndarray = size * point.rng.choice((-1.0, 1.0), size.shape) * point.rng.uniform(0.5, 1.5, size.shape)
    return drawn


def _beside(point: Point, number: int) -> np.ndarray:
    value: np.ndarray = point.inputs[number]
    return value + 0.01 * _random(point, number) if point.needs[number] else value


def _along(
    direction: np.ndarray, made: Slopes, place: int, joined: np.ndarray, gradient: Any, scale: np.ndarray
) -> Deviation:
    """Compare the derivative of a weighted sum of outputs along a direction, by backward and by differences."""
    used, moves = joined != 0, direction != 0
    want = float(np.sum(joined[used] * made.value[place][used]))
    steps = np.asarray(gradient, np.float64)[moves] * direction[moves]
    got = float(np.sum(steps))
    with np.errstate(all="ignore"):
        allowed = float(np.sum(np.abs(joined[used]) * (made.bound[place][used] + BACKWARD * scale[used])))
        allowed += BACKWARD * float(np.sum(np.abs(steps)))
        error = abs(got - want) if np.isfinite(got) else np.inf
    story = ""
    if error > allowed:
        story = (
            f"along a random direction got {got:.12g} by backward, expected {want:.12g} by differences; allowed: a "
            f"difference of {allowed:.2g}, got one of {error:.2g}"
        )
    return in_float64(error, want, allowed, story, np.zeros(0), int(used.sum()))


def _located(
    point: Point,
    number: int,
    of: int,
    joined: np.ndarray,
    gradient: Any,
    pull: Callable[..., Sequence[Any]],
    along: Deviation,
) -> Deviation:
    """Locate the wrong elements of an input's gradient one at a time, and the output that the worst one comes from.

    Args:
        point: The point.
        number: The input.
        of: The output.
        joined: The output gradients: weights of a sum of this output's elements.
        gradient: The input's gradient of that sum, by backward.
        pull: Computes further gradients.
        along: The failure to explain.
    """
    value, got = point.inputs[number], np.asarray(gradient, np.float64).reshape(-1)
    used = joined != 0
    sizes, weights = point.scales[number].reshape(-1), joined[used]
    moving = np.flatnonzero(sizes)
    blocks = np.array_split(moving, moving.size if value.size <= _ONE_BY_ONE else _BLOCKS)

    def compared(blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Values by backward, by differences, and the error bounds of the latter, for steps by `sizes`; shape (3,
        blocks).
        """
        made = point.slopes([(number, _block(value.shape, block, sizes)) for block in blocks])
        with np.errstate(all="ignore"):
            mine = np.array([np.sum(got[block] * sizes[block]) for block in blocks])
            allowed = (made.bound[:, used] + BACKWARD * point.made[used]) @ np.abs(weights)
            return np.array([mine, made.value[:, used] @ weights, allowed])

    at_once = max(1, min(32, _KEPT // max(1, point.base.size)))
    found = np.concatenate(
        [compared(blocks[begin : begin + at_once]) for begin in range(0, len(blocks), at_once)], axis=1
    )
    found /= np.array([sizes[block].mean() for block in blocks])
    off = np.where(np.isfinite(found[0]), np.abs(found[0] - found[1]), np.inf)
    bad = off > found[2]
    what, several = "element", "elements"
    if len(blocks) < moving.size:
        what, several = "block of elements", "blocks of elements"
    shows = f"gradient of a random sum of elements of output {of}, differences by {what} of input {number}"
    beyond = np.where(bad, off, 0.0) if bad.any() else off
    picture = np.zeros(value.shape)
    for block, difference in zip(blocks, beyond, strict=True):
        picture.reshape(-1)[block] = difference
    if not bad.any():
        return along._replace(differences=picture, shows=shows)
    worst = int(beyond.argmax())

    def off_by(places: np.ndarray) -> float:
        mine, want, _ = compared([places])[:, 0]
        return float(abs(mine - want)) if np.isfinite(mine) else np.inf

    at = _halved(blocks[worst], off_by)
    begin = index(blocks[worst][0], value.shape)
    story = (
        f"; the {what} of its gradient at {begin} is {found[0, worst]:.12g} by backward and {found[1, worst]:.12g} by "
        f"differences, the worst of {int(bad.sum())} wrong ones of {bad.size}, which is off by {off[worst]:.2g}; "
        f"{_cause(point, number, of, at, joined, pull)}"
    )
    return along._replace(story=f"{along.story}{story}", differences=picture, shows=f"wrong {several} of the {shows}")


def _block(shape: tuple[int, ...], places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    direction = np.zeros(shape)
    direction.reshape(-1)[places] = sizes[places]
    return direction


def _halved(places: np.ndarray, off: Callable[[np.ndarray], float]) -> int:
    """Bisect to the position with the largest error."""
    while places.size > 1:
        halves = np.array_split(places, 2)
        places = halves[int(np.argmax([off(half) for half in halves]))]
    return int(places[0])


def _cause(point: Point, number: int, of: int, at: int, joined: np.ndarray, pull: Callable[..., Sequence[Any]]) -> str:
    """The output element whose derivative with respect to one input element is wrong, found by bisection."""
    size = float(point.scales[number].reshape(-1)[at])
    want = point.slopes([(number, one_element(point.inputs[number].shape, at, size))]).value[0] / size

    def by_backward(weights: np.ndarray) -> float:
        gradient = pull(point.cotangents(weights), point.needs)[number]
        return float(np.asarray(gradient, np.float64).reshape(-1)[at])

    def off_by(places: np.ndarray) -> float:
        weights = np.zeros(joined.size)
        weights[places] = joined[places]
        off = abs(by_backward(weights) - float(weights[places] @ want[places]))
        return off if np.isfinite(off) else np.inf

    place = _halved(np.flatnonzero(joined), off_by)
    one = np.zeros(joined.size)
    one[place] = 1.0
    return (
        f"{entry(point, of, place - point.part[of].start, number, at)}: got {by_backward(one):.12g} by backward, "
        f"expected {want[place]:.12g} by differences"
    )
