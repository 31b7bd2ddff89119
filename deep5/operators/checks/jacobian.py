"""Comparison of gradients with differences: the whole Jacobian for small inputs, random directions for large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.differences import Slopes
from deep5.operators.checks.directions import check_directions
from deep5.operators.checks.kinks import check_kinks
from deep5.operators.checks.linear import check_linear, check_unusual
from deep5.operators.checks.point import (
    BACKWARD,
    EPS,
    UNSETTLED,
    Point,
    entry,
    how_found,
    in_float64,
    one_element,
    tied,
)
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.tolerance import Deviation

__all__ = ["WHOLE_INPUTS", "WHOLE_OUTPUTS", "check_jacobian"]

WHOLE_INPUTS, WHOLE_OUTPUTS = 192, 512
"""Maximum numbers of input and output elements for the whole Jacobian."""

# Maximum fraction of a whole Jacobian's nonzero entries that may not converge.
_ROUGH = 0.1
_NUMBERLESS = (
    "{name}: all elements of the {what} are NaN or infinite, so that no gradient can be evaluated; allowed: inputs for "
    "which forward gives numbers; remedy: inputs in the operator's domain (--range LOW HIGH, or other arrays)"
)


def check_jacobian(
    subject: Subject, inputs: Sequence[np.ndarray], rng: np.random.Generator, into: Collector, *, whole: bool = True
) -> bool:
    """Compare backward with differences of forward, for every floating-point input and output.

    Args:
        subject: Runs the operator.
        inputs: The point; floating-point inputs in float64.
        rng: Draws directions.
        into: Receives a row per input.
        whole: Whether the whole Jacobian is compared where inputs and outputs are small; otherwise random directions.

    Returns:
        Whether gradients were compared at the point itself, and not only beside it.
    """
    point = Point(subject, inputs, rng)
    if not point.by or not point.of or not point.base.size:
        note = "there is no floating-point input, or no floating-point output, that has elements"
        into.say("gradient", "not evaluated", note)
        return False
    if point.lost.all():
        into.say("gradient", "FAILED", _NUMBERLESS.format(name=subject.name, what="outputs"))
        return False
    for number in point.by:
        if point.inputs[number].size and point.blind[number].all():
            note = _NUMBERLESS.format(name=subject.name, what=f"gradient by input {number}, and some of the outputs,")
            into.say(f"gradient by input {number}", "FAILED", note)
            return False
    count = sum(point.inputs[number].size for number in point.by)
    if whole and count <= WHOLE_INPUTS and point.base.size <= WHOLE_OUTPUTS:
        _check_whole(point, into)
        there = True
    else:
        there = check_directions(point, into)
    kinks = check_kinks(point, into)
    check_unusual(point, into)
    return there or kinks > 0


def _check_whole(point: Point, into: Collector) -> None:
    pull = point.subject.pullback(point.inputs)
    rows: dict[int, list[np.ndarray]] = {number: [] for number in point.by}
    for row in range(point.base.size):
        one = np.zeros(point.base.size)
        one[row] = 1.0
        gradients = pull(point.cotangents(one), point.needs)
        for number in point.by:
            rows[number].append(np.asarray(gradients[number], np.float64).reshape(-1))
    found = {number: np.stack(each, axis=1) for number, each in rows.items()}
    for number in point.by:
        value = point.inputs[number]
        if not value.size:
            continue
        check = f"gradient by input {number}"
        sizes = point.scales[number].reshape(-1)
        made = point.slopes([(number, one_element(value.shape, place, sizes[place])) for place in range(value.size)])
        compared = ~(point.blind[number].reshape(-1, 1) | point.lost)
        if tied(value):
            some = point.rng.uniform(0.5, 1.5, (value.size, 1))
            direction = (some[:, 0] * sizes).reshape(value.shape)
            bent = point.bent(number, direction, some * made.value, some * made.bound)
            made = replace(made, settled=made.settled & ~bent, kink=made.kink & ~bent)
        made = replace(made, settled=made.settled & compared, kink=made.kink & compared)
        with np.errstate(invalid="ignore"):
            got = found[number] * sizes.reshape(-1, 1)
        rough = compared & ~made.settled & ~made.kink
        if rough.sum() > _ROUGH * (compared & ((made.value != 0) | (got != 0))).sum():
            into.say(check, "FAILED", UNSETTLED.format(name=point.subject.name))
            continue
        parts = [
            (f"output {of}", _entries(point, made, got, number, of))
            for of, part in point.part.items()
            if part.stop > part.start
        ]
        notes = point.notes(number)
        if count := int(made.kink.sum()):
            notes.append(
                f"{count} of {rough.size} entries lie at a kink, and were compared with the slopes to either side"
            )
        if count := int(rough.sum()):
            notes.append(f"for {count} of {rough.size} entries the differences do not settle: these were not evaluated")
        into.compare(check, parts, how_found("the whole Jacobian", made), "; ".join(notes))
    check_linear(point, found, into)


def _entries(point: Point, made: Slopes, got: np.ndarray, number: int, of: int) -> Deviation:
    """Compare the Jacobian of one output; the picture shows the worst entry for each element of the input."""
    part, scale, by = point.part[of], point.made, point.inputs[number].shape
    sizes = np.where(point.blind[number], 1.0, point.scales[number]).reshape(-1, 1)
    mine, value, settled = got[:, part], made.value[:, part], made.settled[:, part]
    low, high = made.low[:, part], made.high[:, part]
    with np.errstate(all="ignore"):
        allowed = np.where(settled, made.bound[:, part] + BACKWARD * (np.abs(mine) + scale[part]), EPS)
        # At a kink any slope between the one-sided slopes is a valid gradient.
        room = 1e-6 * (np.abs(low) + np.abs(high) + scale[part])
        beside = np.fmax(np.fmax(low - room - mine, mine - high - room), 0.0)
        off = np.where(settled, np.abs(mine - value), np.where(made.kink[:, part], beside, 0.0))
        off = np.where((settled | made.kink[:, part]) & ~np.isfinite(mine), np.inf, off)
        share = np.where(off == 0, 0.0, off / np.maximum(allowed, 1e-320))
        bad = share > 1
        beyond = np.where(bad, off, 0.0) / sizes
    right = share if share.max() > 0 else np.where(settled, np.abs(value), 0.0)
    at = np.unravel_index(int((beyond if bad.any() else right).argmax()), off.shape)
    size = float(sizes[at[0], 0])
    want, error, room_at = (float(each[at]) / size for each in (value, off, allowed))
    story = ""
    if bad.any():
        note = (
            f"{want:.12g} by differences"
            if settled[at]
            else f"{low[at] / size:.6g} to {high[at] / size:.6g}, the slopes to either side of a kink"
        )
        story = (
            f"{entry(point, of, at[1], number, at[0])}: got {float(mine[at]) / size:.12g} by backward, expected "
            f"{note}; allowed: a difference of {room_at:.2g}, got one of {error:.2g}; {int(bad.sum())} of {bad.size} "
            "entries are wrong"
        )
    shows = f"wrong entries of the Jacobian, by element of input {number}, each the worst over output {of}"
    entries = int((settled | made.kink[:, part]).sum())
    return in_float64(error, want, room_at, story, beyond.max(axis=1).reshape(by), entries, shows)
