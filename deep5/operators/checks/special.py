"""Checks of NaN and infinity: finite inputs produce none, and in inputs they propagate to the correct outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.inputs import floating, widened
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.truth import Truth
from deep5.operators.checks.values import REFERENCE
from deep5.operators.contract import is_floating

__all__ = ["check_finite", "check_special", "check_together"]

_SPECIAL = {"NaN": np.nan, "infinity": np.inf, "-infinity": -np.inf}


def check_special(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Check that NaN and infinity in single elements propagate as in the expected outputs, and nowhere else.

    If there is nothing to compare with, and the operator is elementwise with outputs of the inputs' shape, all other
    elements must be bit-identical to those without it.
    """
    if not any(value.size for value, yes in zip(inputs, floating(inputs), strict=True) if yes):
        return
    plain = subject.forward(inputs)
    if not truth.given and not _elementwise(subject, inputs, plain):
        into.say(
            "NaN and infinity",
            "not evaluated",
            f"elements depend on several inputs, and there is nothing to compare with; {REFERENCE}",
        )
        return
    for word, special in _SPECIAL.items():
        check = f"forward, {word} in an input"
        wrong: list[str] = []
        lost: list[str] = []
        with into.guarded(check):
            for number, value in enumerate(inputs):
                if not is_floating(str(value.dtype)) or not value.size:
                    continue
                for place in dict.fromkeys((0, value.size // 2, value.size - 1)):
                    changed = [each.copy() for each in inputs]
                    changed[number].reshape(-1)[place] = special
                    got = subject.forward(changed)
                    at = [int(index) for index in np.unravel_index(place, value.shape)]
                    where = f"{word} in input {number} at {at}"
                    if truth.given:
                        wrong += _patterns(got, truth(widened(changed)), where)
                    else:
                        wrong += _spread(got, plain, place, where)
                        lost += _swallowed(got, place, where) if np.isnan(special) else []
            if lost and not wrong:
                reported = f"{'; '.join(lost[:3])}; only a reference can decide whether that is intended; {REFERENCE}"
                into.say(check, "not evaluated", reported)
            else:
                into.require(not wrong, check, "; ".join(wrong[:3]))


def check_together(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Check infinities that meet, in two inputs or in one, and negative zeros, as in the reference's outputs.

    Zeros must keep their sign only in operators that move numbers: all that the reference returns is in the inputs.
    """
    numbers = [n for n, yes in enumerate(floating(inputs)) if yes and inputs[n].size]
    if not truth.given or not numbers:
        return
    wrong: list[str] = []
    with into.guarded(check := "forward, infinities that meet"):
        for changed, where in _meeting(inputs, numbers):
            wrong += _patterns(subject.forward(changed), truth(widened(changed)), where)
        into.require(not wrong, check, "; ".join(wrong[:3]))
    zeros = [np.full_like(each, -0.0) if n in numbers else each for n, each in enumerate(inputs)]
    moves = all(_moves(truth, inputs, numbers, factor) for factor in (1.0, -1.37))
    if moves and all(np.signbit(each).all() for each in truth(widened(zeros)) if is_floating(str(each.dtype))):
        with into.guarded(check := "forward, negative zeros"):
            lost = [n for n, each in enumerate(subject.forward(zeros)) if not np.signbit(each).all()]
            note = f"output {lost} is 0 where inputs, and outputs of {truth.name}, are -0; allowed: -0"
            into.require(not lost, check, f"{note}; remedy: add nothing to numbers that are only moved")


def _meeting(inputs: Sequence[np.ndarray], numbers: Sequence[int]) -> Iterator[tuple[list[np.ndarray], str]]:
    for first, second in itertools.pairwise(numbers):
        for one, other in ((np.inf, -np.inf), (-np.inf, np.inf), (np.inf, np.inf), (0.0, np.inf)):
            changed = [each.copy() for each in inputs]
            changed[first].reshape(-1)[0], changed[second].reshape(-1)[0] = one, other
            yield changed, f"{one:g} in input {first} and {other:g} in input {second}"
    for number in numbers:
        for place in dict.fromkeys((1, inputs[number].size - 1)):
            if 0 < place < inputs[number].size:
                changed = [each.copy() for each in inputs]
                changed[number].reshape(-1)[0], changed[number].reshape(-1)[place] = np.inf, -np.inf
                yield changed, f"inf and -inf in input {number}"


def _moves(truth: Truth, inputs: Sequence[np.ndarray], numbers: Sequence[int], factor: float) -> bool:
    """Whether all numbers that the reference returns are numbers of the inputs."""
    values = [each * factor if n in numbers else each for n, each in enumerate(widened(inputs))]
    known = np.concatenate([values[n].reshape(-1) for n in numbers])
    made = [each for each in truth(values) if is_floating(str(each.dtype))]
    return bool(made) and all(bool(np.isin(each, known).all()) for each in made)


def check_finite(outputs: Sequence[np.ndarray], inputs: Sequence[np.ndarray], given: bool, into: Collector) -> None:
    """Check that finite inputs produce no NaN and no infinity, unless a reference does.

    Args:
        outputs: The expected outputs, or else the operator's.
        inputs: The given inputs.
        given: Whether the outputs are a reference's, with which all others are compared.
        into: Receives a row.
    """
    numbers = all(np.isfinite(np.asarray(value, np.float64)).all() for value in inputs)
    if not numbers or not any(value.size for value, yes in zip(outputs, floating(outputs), strict=True) if yes):
        return
    check, found = "finite inputs give finite outputs", []
    for number, value in enumerate(outputs):
        wide = np.asarray(value, np.float64) if is_floating(str(value.dtype)) else np.zeros(0)
        for word, there in (("NaN", np.isnan(wide)), ("infinite", np.isinf(wide))):
            if there.any():
                at = [int(index) for index in np.unravel_index(int(there.argmax()), there.shape)]
                found.append(
                    f"{int(there.sum())} of {wide.size} elements of output {number} are {word}, the first at {at}"
                )
    reported = f"{' and '.join(found)}, and all inputs are finite"
    if given and found:
        into.say(check, "passed", f"{reported}; so they are in what it is compared with")
    else:
        into.require(
            not found,
            check,
            f"{reported}; allowed: numbers, unless a reference has none there either; remedy: inputs in the operator's "
            "domain (--range LOW HIGH, or other arrays), or a reference (--against FILE.py:FUNCTION, or reference=)",
        )


def _spread(got: Sequence[np.ndarray], plain: Sequence[np.ndarray], place: int, where: str) -> list[str]:
    """Changes at positions other than the element's own."""
    found = []
    for number, (now, before) in enumerate(zip(got, plain, strict=True)):
        if count := int(np.count_nonzero(np.flatnonzero(_differ(now, before)) != place)):
            found.append(f"{where} changes {count} other elements of output {number}; allowed: its own")
    return found


def _swallowed(got: Sequence[np.ndarray], place: int, where: str) -> list[str]:
    """Outputs that are not NaN where the input is NaN."""
    made = [value.reshape(-1)[place] for value in got]
    return [f"{where} gives {value} in output {n}" for n, value in enumerate(made) if not np.isnan(float(value))]


def _patterns(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], where: str) -> list[str]:
    """Positions where NaN or an infinity of the same sign is missing, or is not expected."""
    stories = []
    for number, (value, want) in enumerate(zip(got, expected, strict=True)):
        if not is_floating(str(value.dtype)):
            continue
        wide, right = np.asarray(value, np.float64), np.asarray(want, np.float64)
        largest = 6.5e4 if str(value.dtype) == "float16" else 3.3e38 if value.dtype.itemsize < 8 else np.inf
        for word, have, want_it in (
            ("NaN", np.isnan(wide), np.isnan(right)),
            ("infinity", wide == np.inf, right == np.inf),
            ("-infinity", wide == -np.inf, right == -np.inf),
        ):
            wrong = (have != want_it) & ~(np.isfinite(right) & (np.abs(right) > largest))
            if wrong.any():
                at = np.unravel_index(int(wrong.argmax()), wrong.shape)
                stories.append(
                    f"{where} gives {value[at]} in output {number} at {[int(index) for index in at]}, expected "
                    f"{right[at]}; {int(wrong.sum())} elements have {word} wrongly, or miss it"
                )
                break
    return stories


def _elementwise(subject: Subject, inputs: Sequence[np.ndarray], plain: Sequence[np.ndarray]) -> bool:
    """Whether each element of every output depends only on the same element of the inputs."""
    shape = inputs[0].shape if inputs else ()
    if any(value.shape != shape for value in (*inputs, *plain)) or not plain or not plain[0].size:
        return False
    for number, yes in enumerate(floating(inputs)):
        if not yes:
            continue
        for place in dict.fromkeys((0, plain[0].size // 2, plain[0].size - 1)):
            changed = [each.copy() for each in inputs]
            flat = changed[number].reshape(-1)
            flat[place] = flat[place] * flat.dtype.type(1.5) + flat.dtype.type(0.5)
            for now, before in zip(subject.forward(changed), plain, strict=True):
                if set(np.flatnonzero(_differ(now, before))) - {place}:
                    return False
    return True


def _unequal(values: np.ndarray) -> np.ndarray:
    """Positions of NaN, in any element type."""
    found: np.ndarray = np.not_equal(values, values)
    return found


def _differ(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        differ: np.ndarray = ~((first == second) | (_unequal(first) & _unequal(second)))
    return differ.reshape(-1)
