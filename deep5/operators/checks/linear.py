"""Backward as a function of the output gradients: linear at any magnitude and sign, and propagates NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.point import BACKWARD, Point, in_float64, index
from deep5.operators.checks.tolerance import Deviation

__all__ = ["check_linear", "check_unusual"]

# One of these reveals operators that ignore a gradient, its sign or its magnitude, or clip it.
_FACTORS = (-1.0, 1e3, 1e-3)
# Unusual gradients by outputs, the gradients that are allowed then, and what to look for.
_UNUSUAL = {
    "NaN": (np.nan, "NaN", "look for what compares or replaces NaN"),
    "inf": (np.inf, "infinity or NaN", "look for what compares or replaces infinity"),
    "0": (0.0, "0", "each gradient by an output is a factor, and nothing is added"),
}
_LINEAR = (
    "twice 64 eps of the entries and of what the outputs are made of, each times the gradient by its output, "
    "eps = 2.2e-16"
)


def check_linear(point: Point, found: Mapping[int, np.ndarray], into: Collector) -> None:
    """Compare backward of random output gradients with the product of these and backward's own Jacobian.

    Args:
        point: The point.
        found: The Jacobian by backward, for each floating-point input of shape (elements of it, elements of all
            outputs).
        into: Receives a row.
    """
    pull = point.subject.pullback(point.inputs)
    parts = []
    for factor in _FACTORS:
        joined = factor * np.where(point.lost, 0.0, 0.1 + np.abs(point.rng.standard_normal(point.base.size)))
        gradients = pull(point.cotangents(joined), point.needs)
        for number, entries in found.items():
            if entries.size:
                got = np.asarray(gradients[number], np.float64).reshape(-1)
                parts.append((f"gradient by input {number}", _linear(point, number, entries, joined, got)))
    into.compare("backward is linear", parts, _LINEAR, itself=True)


def _linear(point: Point, number: int, entries: np.ndarray, joined: np.ndarray, got: np.ndarray) -> Deviation:
    """Compare a gradient with the Jacobian's entries, each times its output gradient."""
    shape, used = point.inputs[number].shape, joined != 0
    sizes = point.scales[number].reshape(-1, 1)
    # The check of the Jacobian has already reported values that are not finite.
    compared = ~point.blind[number].reshape(-1) & np.isfinite(entries[:, used]).all(axis=1)
    own, weights = np.where(compared[:, None], entries[:, used], 0.0), joined[used]
    want = own @ weights
    with np.errstate(all="ignore"):
        made = np.where(sizes > 0, point.made[used] / sizes, 0.0)
        allowed = 2 * BACKWARD * ((np.abs(own) + made) @ np.abs(weights))
        off = np.where(np.isfinite(got), np.abs(got - want), np.inf)
        off = np.where(compared, off, 0.0)
        share = np.where(off == 0, 0.0, off / np.maximum(allowed, 1e-320))
    at = int(share.argmax())
    bad = share > 1
    story = ""
    if bad.any():
        story = (
            f"for gradients by the outputs around {np.median(weights):.2g} got {got[at]:.12g} at {index(at, shape)}, "
            f"expected {want[at]:.12g}, the sum of what it gives for each of them by itself; {int(bad.sum())} of "
            f"{bad.size} elements are wrong; remedy: each gradient by an output is a factor, at any size and sign"
        )
    beyond = np.where(bad, off, 0.0).reshape(shape)
    return in_float64(float(off[at]), float(want[at]), float(allowed[at]), story, beyond, int(compared.sum()))


def check_unusual(point: Point, into: Collector) -> None:
    """Check gradients by outputs that are all NaN, infinite or zero: gradients that depend on these are NaN, not
    finite, and zero.
    """
    pull = point.subject.pullback(point.inputs)
    reported: dict[str, list[str]] = {word: [] for word in _UNUSUAL}
    for of, part in point.part.items():
        joined = np.zeros(point.base.size)
        joined[part] = np.where(point.lost[part], 0.0, point.rng.uniform(0.5, 1.5, part.stop - part.start))
        before = pull(point.cotangents(joined), point.needs)
        for word, (value, allowed, remedy) in _UNUSUAL.items():
            after = pull(point.cotangents(np.where(joined != 0, value, 0.0)), point.needs)
            for number in point.by:
                one, made = (np.asarray(each[number], np.float64).reshape(-1) for each in (before, after))
                lost = np.isfinite(made) if value == np.inf else ~np.isnan(made)
                wrong = np.isfinite(one) & ((made != 0) if value == 0 else (one != 0) & lost)
                if wrong.any():
                    at = int(wrong.argmax())
                    where, count = index(at, point.inputs[number].shape), int(wrong.sum())
                    reported[word].append(
                        f"{point.subject.name}.backward: the gradient by input {number} at {where} is "
                        f"{made[at] + 0.0:.12g} where all gradients by output {of} are {word}, and follows from them; "
                        f"allowed: {allowed}; {count} of {wrong.size} elements are wrong; remedy: {remedy}"
                    )
    for word, found in reported.items():
        into.require(not found, f"backward, {word} in gradients by outputs", "; ".join(found))
