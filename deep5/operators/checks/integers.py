"""Checks of integer inputs: negative ones, powers of two where other types end, and the type's own limits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.subject import Subject, breaks, specs
from deep5.operators.checks.tolerance import deviation
from deep5.operators.checks.truth import Truth
from deep5.operators.contract import specs_of
from deep5.operators.cpp import CppOperator

__all__ = ["check_integers", "integers"]

# Where int8, int16, float32, int32 and float64 end.
_POWERS = (7, 8, 15, 16, 24, 31, 32, 53)
_MOST = 4  # cases of the same kind, for inputs with few elements
# Work may grow with the integers: no larger ones are tried after a call that takes this long.
_LONG_S = 0.3
_INDICES = "integers may be indices or lengths there; only those that were given were tried"


def integers(inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """The inputs with other integers in all integer inputs, from small to large ones.

    Yields:
        A description, and the inputs.
    """
    whole = [number for number, value in enumerate(inputs) if value.dtype.kind in "iu" and value.size]
    least, most = (pick(inputs[number].size for number in whole) for pick in (min, max))
    for what, values in _kinds([np.iinfo(inputs[number].dtype) for number in whole]):
        count = max(map(len, values.values()))
        for start in range(0, count, max(1, least))[:_MOST] if most < 2 * count else (0,):
            made = list(inputs)
            for place, number in enumerate(whole):
                value = inputs[number]
                turned = np.roll(np.array(values[str(value.dtype)], value.dtype), -start - 3 * place)
                made[number] = np.resize(turned, value.shape)
            yield what, tuple(made)


def _kinds(types: Sequence[np.iinfo]) -> Iterator[tuple[str, dict[str, list[int]]]]:
    def within(name: str, of: list[int]) -> Iterator[tuple[str, dict[str, list[int]]]]:
        found = {str(each.dtype): [value for value in of if each.min <= value <= each.max] for each in types}
        if all(found.values()):
            yield name, found

    yield from within("small integers", [-7, 3, -1, 0, 2, -2, 1, -3, 5])
    for power in _POWERS:
        near = [2**power + off for off in (1, -1, 0, 3)]
        yield from within(f"integers around 2^{power}", [*near, *(-each for each in near)])
    yield (
        "the limits of integers",
        {str(each.dtype): [each.max, each.min, each.max - 1, each.min + 1, each.max // 2 + 2] for each in types},
    )


def check_integers(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Compare forward with a reference function at other integers than the given ones.

    Only where an output element depends on the same element of the inputs, or there is one input: otherwise integers
    may be indices. Elements for which the reference in float64 gives another number have overflown, or are no domain
    of it, and are left out.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        truth: The expected outputs, of a reference function.
        into: Receives a row per kind of integers that the reference accepts.
    """
    if not any(value.dtype.kind in "iu" and value.size for value in inputs):
        return
    if not _elementwise(subject, inputs):
        into.say("forward, other integers", "not evaluated", _INDICES)
        return
    tried, note = False, "the reference gives no integers for them"
    for what, values in integers(inputs):
        begin, late = time.perf_counter(), False
        check = f"forward, {what}"
        try:
            expected, defined = _expected(truth, values)
        except Exception as error:  # a reference function may raise any error
            note = f"{truth.name} does not take them: {error}"
            continue
        if not any(each.any() for each in defined):
            continue
        tried, passed = True, True
        with into.guarded(check):
            try:
                got = subject.forward(values)
            except Deep5Error as error:
                if breaks(subject, error):
                    raise
                into.say(check, "refused", str(error).split("\n", 1)[0])
            else:
                parts = [
                    (f"output {number}", deviation(np.asarray(value), want, None, np.asarray(~use, float)))
                    for number, (value, want, use) in enumerate(zip(got, expected, defined, strict=True))
                    if use.any()
                ]
                late = time.perf_counter() - begin > _LONG_S
                passed = into.compare(check, parts, "the same integers")
        if not passed:
            return
        if late:
            into.say("forward, larger integers", "not evaluated", f"{what} took more than {_LONG_S:g} s")
            return
    if not tried:
        into.say("forward, other integers", "not evaluated", note)


def _elementwise(subject: Subject, inputs: Sequence[np.ndarray]) -> bool:
    """Whether integers are no indices, as far as shapes show it."""
    if not subject.direct or isinstance(subject.operator, CppOperator):
        return False
    if len(inputs) == 1:
        return True
    try:
        shape = np.broadcast_shapes(*(value.shape for value in inputs))
    except ValueError:
        return False
    return all(spec.shape == shape for spec in specs_of(subject.operator, specs(inputs)))


def _expected(truth: Truth, values: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The outputs of a reference, and where they are integers that did not overflow."""
    expected = [np.asarray(value) for value in truth(values)]
    defined = [np.full(value.shape, value.dtype.kind in "iub") for value in expected]
    largest = max(float(np.max(np.abs(value.astype(np.float64)), initial=0.0)) for value in values)
    try:
        wide = [np.asarray(value) for value in truth([value.astype(np.float64) for value in values])]
    except Exception:  # operators on bits take no floating-point numbers, and do not overflow
        return expected, defined
    for number, (value, other) in enumerate(zip(expected, wide, strict=True)):
        if value.shape == other.shape:
            with np.errstate(all="ignore"):
                apart = np.abs(value.astype(np.float64) - other.astype(np.float64))
                room = 1e-9 * np.abs(other.astype(np.float64)) + 1 + 1e-15 * largest
                defined[number] &= apart <= room
    return expected, defined
