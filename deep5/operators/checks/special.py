"""Checks of NaN and infinity: finite inputs produce none, and in inputs they propagate to the correct outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.operators.checks.collect import Collector
from deep5.operators.checks.inputs import floating, widened
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.truth import Truth
from deep5.operators.checks.values import REFERENCE
from deep5.operators.contract import is_floating

__all__ = ["check_finite", "check_special"]

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
