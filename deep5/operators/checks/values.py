"""What an operator gives against what it should: in every element type and layout, empty, with NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.errors import Deep5Error, OperatorError, ShapeError, Unsupported
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.inputs import LAYOUTS, cast, floating, without_axes, without_elements
from deep5.operators.checks.subject import Subject, specs
from deep5.operators.checks.tolerance import Condition, condition, deviation, epsilon, jumps, tolerance_text
from deep5.operators.contract import is_floating, specs_of

__all__ = ["Truth", "check_dtypes", "check_empty", "check_layouts", "check_special", "own_dtype", "run_in"]

Function = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


class Truth:
    """What is right: a function of float64 arrays, its condition, and what it is called.

    Args:
        function: Takes floating inputs in float64, gives the outputs.
        name: For a reader: `"itself in float64"`.
        given: Whether it is another one than the operator.
        exact: Whether what it gives is computed in float64.
    """

    def __init__(self, function: Function, name: str, *, given: bool, exact: bool = True) -> None:
        self._function, self.name, self.given, self.exact = function, name, given, exact
        self.rng = np.random.default_rng(0)

    def at(self, inputs: Sequence[np.ndarray]) -> Condition:
        """Values and condition at inputs of any element type."""
        return condition(self, cast(inputs, "float64"), self.rng)

    def jumps(self, inputs: Sequence[np.ndarray], known: Condition, dtype: str) -> tuple[np.ndarray, ...]:
        """Where rounding decides; see `check_tolerance.jumps`."""
        return jumps(self, cast(inputs, "float64"), known, epsilon(dtype), self.rng)

    def __call__(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The function's outputs, with NumPy's warnings silenced."""
        with np.errstate(all="ignore"):
            return self._function(inputs)


def own_dtype(inputs: Sequence[np.ndarray]) -> str:
    """The element type of the first floating-point input, or of the first."""
    return next(
        (str(x.dtype) for x in inputs if is_floating(str(x.dtype))), str(inputs[0].dtype) if inputs else "float64"
    )


def compared(
    got: Sequence[np.ndarray], known: Condition, moved: Sequence[np.ndarray] | None, exact: bool
) -> list[tuple[str, Any]]:
    """Every output against what is expected."""
    if len(got) != len(known.values):
        raise OperatorError(f"got {len(got)} outputs, where what it is compared with gives {len(known.values)}")
    return [
        (
            f"output {number}",
            deviation(
                np.asarray(value),
                known.values[number],
                known.scale(number) if known.total[number] is not None else None,
                None if moved is None else moved[number],
                twice=not exact or str(value.dtype) == "float64",
            ),
        )
        for number, value in enumerate(got)
    ]


def check_dtypes(
    subject: Subject, inputs: Sequence[np.ndarray], dtypes: Sequence[str], asked: bool, truth: Truth, into: Collector
) -> None:
    """Forward in several element types against what is right for the inputs as they were rounded.

    Args:
        subject: Runs the operator.
        inputs: As given.
        dtypes: Of the floating inputs, one at a time.
        asked: Whether the user asked for these, so that none may be refused.
        truth: What is right.
        into: Gets a row a type.
    """
    own = own_dtype(inputs)
    for dtype in dtypes:
        check = f"forward, {dtype}, against {truth.name}"
        if dtype == "float64" and not truth.given:
            into.say(f"forward, {dtype}", "noted", "nothing to compare with but itself; remedy: a reference function")
            continue
        values = cast(inputs, dtype)
        with into.guarded(check):
            may_refuse = not asked and dtype != own
            got = run_in(subject, lambda values=values: subject.forward(values), dtype, may_refuse, check, into)  # type: ignore[misc]
            if got is None:
                continue
            known = truth.at(values)
            moved = truth.jumps(values, known, dtype) if is_floating(dtype) and dtype != "float64" else None
            told = tolerance_text(dtype if is_floating(dtype) else "float64", not truth.exact or dtype == "float64")
            into.compare(check, compared(got, known, moved, truth.exact), told)


def run_in(subject: Subject, call: Callable[[], Any], dtype: str, may_refuse: bool, check: str, into: Collector) -> Any:
    """What a call in an element type gives; None, and a row that says so, where the operator does not take the type.

    Refusals are ShapeErrors, functions of NumPy that do not know the type, a class template that does not compile for
    it, and bfloat16 on NumPy, which makes float32 of its products with numbers.

    Args:
        subject: Runs the operator.
        call: Runs it.
        dtype: The element type.
        may_refuse: Whether it may be refused.
        check: What is checked.
        into: Gets the row.
    """
    try:
        return call()
    except Deep5Error as error:
        refused = isinstance(error, (ShapeError, Unsupported)) or isinstance(error.__cause__, TypeError)
        # Of frameworks: their own exceptions, none of which is a broken contract.
        refused = (
            refused or "refused the operator" in str(error) or (not subject.direct and error.__cause__ is not None)
        )
        refused = refused or (subject.direct and dtype == "bfloat16" and isinstance(error, OperatorError))
        if not (may_refuse and refused):
            raise
        into.say(check, "not taken", str(error).split("\n", 1)[0])
        return None


def check_layouts(
    subject: Subject, inputs: Sequence[np.ndarray], know: Callable[[], Condition | None], into: Collector
) -> None:
    """Forward on the same values in other memory: the same outputs, but for the order of sums.

    Args:
        subject: Runs the operator.
        inputs: Contiguous.
        know: Finds the condition of the outputs in float64, asked where bits differ; it gives None where that is not
            known, so that none may differ.
        into: Gets a row a layout.
    """
    if not any(value.ndim and value.size for value in inputs):
        return
    plain = subject.forward(inputs)
    for layout, lay in LAYOUTS.items():
        check = f"forward, input in {layout}" if layout == "Fortran order" else f"forward, input with {layout}"
        if layout == "first axis last in memory" and not any(value.ndim > 2 for value in inputs):
            continue
        with into.guarded(check):
            got = subject.forward([lay(value) if value.ndim else value for value in inputs])
            if same_bits(got, plain):
                into.same(check)
                continue
            known, parts = know(), []
            for number, (value, want) in enumerate(zip(got, plain, strict=True)):
                scale = None if known is None or known.total[number] is None else known.scale(number)
                parts.append((f"output {number}", deviation(np.asarray(value), np.asarray(want), scale, twice=True)))
            into.compare(check, parts, f"against contiguous inputs; {tolerance_text(_float_of(plain), twice=True)}")


def _float_of(values: Sequence[np.ndarray]) -> str:
    return next((str(value.dtype) for value in values if is_floating(str(value.dtype))), "float64")


def check_empty(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Forward on inputs without elements and without axes: refused, or right.

    An extent that only leading axes have, as a batch's, may be refused by `specs` alone, where outputs are empty too.
    In other cases the operator may raise: there is no largest of no elements.
    """
    cases = [(f"forward, extent {extent} cut to 0", lead, cut) for extent, lead, cut in without_elements(inputs)]
    scalars = without_axes(inputs) if any(value.ndim for value in inputs) else None
    if scalars is not None:
        cases.append(("forward, without axes", False, scalars))
    for check, strict, values in cases:
        try:
            expected = specs_of(subject.operator, specs(values)) if subject.direct else None
        except Deep5Error as error:
            into.say(check, "not taken", str(error))
            continue
        try:
            got = subject.forward(values)
        except Deep5Error as error:
            told = str(error).split("\n", 1)[0]
            nothing = expected is not None and all(0 in spec.shape for spec in expected)
            into.say(check, "FAILED" if strict and nothing else "not taken", told)
            continue
        try:
            known = truth.at(values) if truth.given else None
        except Exception as error:  # a reference function may refuse them in its own way
            into.say(check, "passed", f"it runs; {truth.name} does not: {error}")
            continue
        if known is None:
            into.say(check, "passed")
        elif not strict and [np.shape(value) for value in got] != [value.shape for value in known.values]:
            # Axes of one extent need not belong together: then what is cut off makes no sense.
            into.say(check, "not taken", f"it gives other shapes than {truth.name}")
        else:
            into.compare(check, compared(got, known, None, truth.exact), tolerance_text(_float_of(got), twice=True))


_SPECIAL = {"NaN": np.nan, "infinity": np.inf, "-infinity": -np.inf}


def check_special(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """NaN and infinity at single elements: they arrive where they do in what is right, and nowhere else.

    Where nothing is given to compare with, and outputs are like the inputs in shape and each element follows its own
    input alone, all other elements have to be the bits that they are without it.
    """
    plain = subject.forward(inputs)
    alone = None if truth.given else _elementwise(subject, inputs, plain)
    if not truth.given and alone is None:
        into.say(
            "NaN and infinity",
            "noted",
            "not judged: elements depend on several inputs, and there is nothing to compare with; remedy: a reference",
        )
        return
    for word, special in _SPECIAL.items():
        check = f"forward, {word} in an input"
        stories: list[str] = []
        seen = ""
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
                        stories += _patterns(got, truth(cast(changed, "float64")), where)
                        continue
                    for of, (now, before) in enumerate(zip(got, plain, strict=True)):
                        moved = np.flatnonzero(_differ(now, before))
                        if spread := [int(each) for each in moved if each != place]:
                            stories.append(
                                f"{where} changes {len(spread)} other elements of output {of}; allowed: its own"
                            )
                        if np.isnan(special) and not np.isnan(np.asarray(now, float).reshape(-1)[place]):
                            given = now.reshape(-1)[place]
                            seen = f"{where} gives {given}: only a reference can tell whether that is meant"
            into.require(not stories, check, "; ".join(stories[:3]))
            if not stories and seen:
                into.say(check, "noted", seen)


def _patterns(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], where: str) -> list[str]:
    """What is not NaN, or not the same infinity, where it should be, or is where it should not."""
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
                    f"{right[at]}; {int(wrong.sum())} elements have or lack {word} wrongly"
                )
                break
    return stories


def _elementwise(subject: Subject, inputs: Sequence[np.ndarray], plain: Sequence[np.ndarray]) -> bool | None:
    """True where each element of every output follows the same element of the inputs alone; None where not."""
    shape = inputs[0].shape if inputs else ()
    if any(value.shape != shape for value in (*inputs, *plain)) or not plain or not plain[0].size:
        return None
    for number, yes in enumerate(floating(inputs)):
        if not yes:
            continue
        for place in dict.fromkeys((0, plain[0].size // 2, plain[0].size - 1)):
            changed = [each.copy() for each in inputs]
            flat = changed[number].reshape(-1)
            flat[place] = flat[place] * flat.dtype.type(1.5) + flat.dtype.type(0.5)
            for now, before in zip(subject.forward(changed), plain, strict=True):
                if set(np.flatnonzero(_differ(now, before))) - {place}:
                    return None
    return True


def _unequal(values: np.ndarray) -> np.ndarray:
    """Where NaN is, in any element type."""
    found: np.ndarray = np.not_equal(values, values)
    return found


def _differ(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        differ: np.ndarray = ~((first == second) | (_unequal(first) & _unequal(second)))
    return differ.reshape(-1)
