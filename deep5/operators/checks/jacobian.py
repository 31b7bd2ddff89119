"""Gradients against differences: the whole Jacobian of small inputs, random directions of large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.differences import Slopes, scales, slopes
from deep5.operators.checks.inputs import floating
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.tolerance import ROUNDINGS, Condition, Deviation, condition

__all__ = ["WHOLE_INPUTS", "WHOLE_OUTPUTS", "check_jacobian"]

WHOLE_INPUTS, WHOLE_OUTPUTS = 192, 512
"""At most so many elements are differentiated by, and of, one at a time."""

_DIRECTIONS, _COTANGENTS, _MOVES = 3, 2, 3
_LOCATED, _AT_ONCE = 4096, 32
_EPS = float(np.finfo(np.float64).eps)
# Of backward's own sums, against what the outputs are made of; far below what the differences can tell.
_BACKWARD = 64 * _EPS
# Of an output's elements, at least so many have to have a derivative.
_ENOUGH = 0.5
# Of a whole Jacobian's entries that are not 0, at most so many may not settle.
_ROUGH = 0.1
_UNSETTLED = (
    "{name}: the differences do not settle, so that no gradient can be judged; allowed: inputs around which forward is "
    "smooth, and a forward that computes float64 in float64; remedy: inputs away from kinks"
)


class _Point:
    """An operator at one point in float64: what it is made of, and derivatives there."""

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

    def slopes(self, directions: Sequence[tuple[int, np.ndarray]]) -> Slopes:
        return slopes(
            lambda inputs: self._joined(self.subject.forward(inputs)),
            self.inputs,
            directions,
            self.base,
            ROUNDINGS * _EPS * self.made,
            self.made,
        )

    def cotangents(self, joined: np.ndarray) -> tuple[np.ndarray | None, ...]:
        """A gradient an output, from those of the floating ones in a row."""
        return tuple(
            joined[self.part[number]].reshape(value.shape) if number in self.part else None
            for number, value in enumerate(self.known.values)
        )

    def _joined(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        parts = [np.asarray(outputs[number], np.float64).reshape(-1) for number in self.of]
        return np.concatenate(parts) if parts else np.zeros(0)


def check_jacobian(subject: Subject, inputs: Sequence[np.ndarray], rng: np.random.Generator, into: Collector) -> None:
    """Compare backward with differences of forward, by every floating input and of every floating output.

    Args:
        subject: Runs the operator.
        inputs: The point; floating-point ones in float64.
        rng: Draws directions.
        into: Gets a row an input.
    """
    point = _Point(subject, inputs, rng)
    if not point.by or not point.of or not point.base.size:
        into.say("gradient", "noted", "there is no floating-point input, or no floating-point output to differentiate")
        return
    count = sum(point.inputs[number].size for number in point.by)
    if count <= WHOLE_INPUTS and point.base.size <= WHOLE_OUTPUTS:
        _whole(point, into)
    else:
        _directional(point, into)


def _whole(point: _Point, into: Collector) -> None:
    pull = point.subject.pullback(point.inputs)
    found: dict[int, list[np.ndarray]] = {number: [] for number in point.by}
    for row in range(point.base.size):
        one = np.zeros(point.base.size)
        one[row] = 1.0
        gradients = pull(point.cotangents(one), point.needs)
        for number in point.by:
            found[number].append(np.asarray(gradients[number], np.float64).reshape(-1))
    for number in point.by:
        value = point.inputs[number]
        if not value.size:
            continue
        check = f"gradient by input {number}"
        sizes = point.scales[number].reshape(-1)
        made = point.slopes([(number, _one(value.shape, place, sizes[place])) for place in range(value.size)])
        got = np.stack(found[number], axis=1) * sizes.reshape(-1, 1)
        rough = ~made.settled & ~made.kink
        if rough.sum() > _ROUGH * ((made.value != 0) | (got != 0)).sum():
            into.say(check, "FAILED", _UNSETTLED.format(name=point.subject.name))
            continue
        parts = [
            (f"output {of}", _entries(made, got, point.made, sizes, part, value.shape, point.known.values[of].shape))
            for of, part in point.part.items()
            if part.stop > part.start
        ]
        notes = []
        if count := int(made.kink.sum()):
            notes.append(
                f"{count} of {rough.size} entries lie at a kink, and were held between the slopes to either side"
            )
        if count := int(rough.sum()):
            notes.append(f"for {count} of {rough.size} entries the differences do not settle: these were not judged")
        into.compare(check, parts, _text("the whole Jacobian", made), "; ".join(notes))


def _one(shape: tuple[int, ...], place: int, size: float) -> np.ndarray:
    direction = np.zeros(shape)
    direction.reshape(-1)[place] = size
    return direction


def _entries(
    made: Slopes,
    got: np.ndarray,
    scale: np.ndarray,
    sizes: np.ndarray,
    part: slice,
    by: tuple[int, ...],
    of: tuple[int, ...],
) -> Deviation:
    """Entries of the Jacobian of one output; the picture shows, for each element of the input, the worst of them."""
    mine, value, settled = got[:, part], made.value[:, part], made.settled[:, part]
    low, high = made.low[:, part], made.high[:, part]
    with np.errstate(all="ignore"):
        allowed = np.where(settled, made.bound[:, part] + _BACKWARD * (np.abs(mine) + scale[part]), _EPS)
        # At a kink any slope between those to either side is a gradient.
        room = 1e-6 * (np.abs(low) + np.abs(high) + scale[part])
        beside = np.fmax(np.fmax(low - room - mine, mine - high - room), 0.0)
        off = np.where(settled, np.abs(mine - value), np.where(made.kink[:, part], beside, 0.0))
        off = np.where(settled & ~np.isfinite(mine), np.inf, off)
        share = np.where(off == 0, 0.0, off / np.maximum(allowed, 1e-320))
    at = np.unravel_index(
        int((share if share.max() > 0 else np.where(settled, np.abs(value), 0.0)).argmax()), off.shape
    )
    bad, size = share > 1, float(sizes[at[0]])
    want, error, room_at = (float(each[at]) / size for each in (value, off, allowed))
    story = ""
    if bad.any():
        told = (
            f"{want:.12g} by differences"
            if settled[at]
            else f"{low[at] / size:.6g} to {high[at] / size:.6g}, at a kink"
        )
        story = (
            f"d output{_index(at[1], of)} / d input{_index(at[0], by)} is {float(mine[at]) / size:.12g} by backward "
            f"and {told}; allowed: a difference of {room_at:.2g}, got one of {error:.2g}; {int(bad.sum())} of "
            f"{bad.size} entries are wrong"
        )
    return _deviation(error, want, room_at, story, np.where(bad, off, 0.0).max(axis=1).reshape(by))


def _directional(point: _Point, into: Collector) -> None:
    for attempt in range(4):
        draws = {
            number: [_random(point, number) for _ in range(_DIRECTIONS)]
            for number in point.by
            if point.inputs[number].size
        }
        made = {number: point.slopes([(number, each) for each in drawn]) for number, drawn in draws.items()}
        settled = np.all([each.settled.all(axis=0) for each in made.values()], axis=0)
        left = [of for of, part in point.part.items() if settled[part].mean() < _ENOUGH and part.stop > part.start]
        if not left or attempt == _MOVES:
            break
        # Beside a kink there is a derivative again.
        point = _Point(point.subject, [_beside(point, number) for number in range(len(point.inputs))], point.rng)
    notes = []
    if attempt:
        notes.append("taken at a point beside the inputs, since too many outputs lie at a kink there")
    if count := int((~settled).sum()):
        notes.append(f"{count} of {settled.size} elements of the outputs lie at a kink and were left out")
    pull = point.subject.pullback(point.inputs)
    pulled: dict[int, list[tuple[np.ndarray, Any]]] = {of: [] for of in point.part}
    for of, part in point.part.items():
        for _ in range(_COTANGENTS):
            joined = np.zeros(point.base.size)
            joined[part] = point.rng.standard_normal(part.stop - part.start) * settled[part]
            pulled[of].append((joined, pull(point.cotangents(joined), point.needs)))
    for number, drawn in draws.items():
        check = f"gradient by input {number}"
        if left:
            into.say(check, "FAILED", f"{_UNSETTLED.format(name=point.subject.name)} (output {left[0]})")
            continue
        parts = []
        for of, cotangents in pulled.items():
            worst = max(
                (
                    _along(direction, made[number], place, joined, gradients[number], point.made)
                    for place, direction in enumerate(drawn)
                    for joined, gradients in cotangents
                ),
                key=lambda each: each.error / max(each.allowed, 1e-320),
            )
            if worst.story:
                story, picture = _located(point, number, *cotangents[0])
                worst = worst._replace(story=f"{worst.story}{story}", differences=picture)
            parts.append((f"output {of}", worst))
        into.compare(check, parts, _text(f"{_DIRECTIONS} random directions", made[number]), "; ".join(notes))


def _random(point: _Point, number: int) -> np.ndarray:
    size = point.scales[number]
    drawn: np.ndarray = size * point.rng.choice((-1.0, 1.0), size.shape) * point.rng.uniform(0.5, 1.5, size.shape)
    return drawn


def _beside(point: _Point, number: int) -> np.ndarray:
    value: np.ndarray = point.inputs[number]
    return value + 0.01 * _random(point, number) if point.needs[number] else value


def _along(
    direction: np.ndarray, made: Slopes, place: int, joined: np.ndarray, gradient: Any, scale: np.ndarray
) -> Deviation:
    """The derivative of a weighted sum of outputs along a direction, by backward and by differences."""
    used = joined != 0
    want = float(np.sum(joined[used] * made.value[place][used]))
    got = float(np.sum(np.asarray(gradient, np.float64) * direction))
    with np.errstate(all="ignore"):
        allowed = float(np.sum(np.abs(joined[used]) * (made.bound[place][used] + _BACKWARD * scale[used])))
        allowed += _BACKWARD * float(np.sum(np.abs(np.asarray(gradient, np.float64) * direction)))
        error = abs(got - want) if np.isfinite(got) else np.inf
    story = ""
    if error > allowed:
        story = (
            f"along a random direction it is {got:.12g} by backward and {want:.12g} by differences; allowed: a "
            f"difference of {allowed:.2g}, got one of {error:.2g}"
        )
    return _deviation(error, want, allowed, story, np.zeros(0))


def _located(point: _Point, number: int, joined: np.ndarray, gradients: Sequence[Any]) -> tuple[str, np.ndarray]:
    """Which elements of an input's gradient are wrong, found one at a time; and all differences."""
    value, got = point.inputs[number], np.asarray(gradients[number], np.float64)
    if value.size > _LOCATED:
        return "", np.zeros(0)
    used = joined != 0
    sizes, weights = point.scales[number].reshape(-1), joined[used]
    off, allowed, want = np.zeros(value.size), np.zeros(value.size), np.zeros(value.size)
    for begin in range(0, value.size, _AT_ONCE):
        places = range(begin, min(begin + _AT_ONCE, value.size))
        made = point.slopes([(number, _one(value.shape, place, sizes[place])) for place in places])
        part = slice(places.start, places.stop)
        with np.errstate(all="ignore"):
            want[part] = made.value[:, used] @ weights / sizes[part]
            allowed[part] = (made.bound[:, used] + _BACKWARD * point.made[used]) @ np.abs(weights) / sizes[part]
    off = np.abs(got.reshape(-1) - want)
    bad = ~(off <= allowed)
    if not bad.any():
        return "", off.reshape(value.shape)
    at = int(np.where(bad, np.nan_to_num(off / np.maximum(allowed, 1e-320), nan=np.inf), 0.0).argmax())
    story = (
        f"; the worst element is input{_index(at, value.shape)}, {got.reshape(-1)[at]:.12g} by backward and "
        f"{want[at]:.12g} by differences; {int(bad.sum())} of {bad.size} elements are wrong"
    )
    return story, np.where(bad, off, 0.0).reshape(value.shape)


def _deviation(error: float, want: float, allowed: float, story: str, differences: np.ndarray) -> Deviation:
    relative = error / abs(want) if want else (0.0 if error == 0 else np.inf)
    return Deviation(error, relative, relative / _EPS, allowed, story, differences)


def _index(place: Any, shape: tuple[int, ...]) -> list[int]:
    return [int(index) for index in np.unravel_index(int(place), shape)] if shape else []


def _text(how: str, made: Slopes) -> str:
    step = float(np.median(made.step[made.settled])) if made.settled.any() else np.nan
    return (
        f"central differences in float64, {how}: |R(h) - R(4h)| + {ROUNDINGS:g} eps (|y| + sqrt(n) S) / h, "
        f"h = {step:.1g} of the input's size (median), eps = 2.2e-16"
    )
