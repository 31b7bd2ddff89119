"""Checks of an operator's outputs: in every element type and layout, and for empty inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, OperatorError
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.inputs import LAYOUTS, cast, contiguous, repeated, without_axes, without_elements
from deep5.operators.checks.subject import Subject, breaks, refuses_size, refuses_type, specs
from deep5.operators.checks.tolerance import Condition, deviation, epsilon, tolerance_text, working
from deep5.operators.checks.truth import Truth, own_dtype
from deep5.operators.contract import ChangedElementType, is_floating, specs_of

__all__ = [
    "REFERENCE",
    "check_dtypes",
    "check_empty",
    "check_layouts",
    "compare_with",
    "compared",
    "run_in",
    "tolerance_of",
]

_MOST_INPUTS = 4  # of which each is laid out differently from the others
_WIDENED = (
    "; NumPy widens bfloat16 beside a Python float, and in linalg, where other frameworks keep it or refuse it: the "
    "reference ends with this error in a bfloat16 network"
)
REFERENCE = "remedy: a reference (--against FILE.py:FUNCTION, or reference=)"


def compared(
    got: Sequence[np.ndarray],
    known: Condition,
    moved: Sequence[np.ndarray] | None,
    truth: Truth,
    inputs: Sequence[np.ndarray],
) -> list[tuple[str, Any]]:
    """Compare every output with its expected value.

    Args:
        got: The outputs.
        known: The expected outputs.
        moved: Where rounding decides; None: nowhere.
        truth: What computed the expected outputs.
        inputs: The inputs of the outputs.

    Raises:
        OperatorError: The number of outputs is wrong.
    """
    if len(got) != len(known.values):
        raise OperatorError(f"got {len(got)} outputs, where what it is compared with gives {len(known.values)}")
    found = []
    for number, value in enumerate(got):
        part = deviation(
            np.asarray(value),
            known.values[number],
            _room(str(value.dtype), known, number, truth.precision, inputs),
            None if moved is None else moved[number],
            twice=truth.precision != "float64" or str(value.dtype) == "float64",
        )
        if part.story and truth.given:
            reported = _without_numbers(np.asarray(value), known.values[number], truth, inputs)
            part = part._replace(story=part.story + reported)
        found.append((f"output {number}", part))
    return found


def _without_numbers(got: np.ndarray, expected: np.ndarray, truth: Truth, inputs: Sequence[np.ndarray]) -> str:
    """What to look at if a reference is not finite where an operator gives numbers for finite inputs; "" otherwise.

    Either may be wrong: log(1 + exp(x)) overflows, log(x + 1e-12) hides an infinity. Leaving such elements out would
    pass the latter, so that they fail.
    """
    if got.shape != expected.shape or not is_floating(str(got.dtype)):
        return ""
    lost = np.isfinite(got.astype(np.float64)) & ~np.isfinite(expected.astype(np.float64))
    wide = [np.asarray(value, np.float64) for value in inputs]
    if not lost.any() or not all(np.isfinite(value).all() for value in wide):
        return ""
    at = [int(index) for index in np.unravel_index(int(lost.argmax()), lost.shape)]
    largest = max(float(np.max(np.abs(value), initial=0.0)) for value in wide)
    return (
        f"; {truth.name} is not finite at {int(lost.sum())} of these, the first at {at}, where all inputs are finite "
        f"(at most {largest:.3g}): either {truth.name} overflows or leaves its domain on the way, or the operator is "
        "wrong; remedy: a reference that is finite where the result is, such as numpy.logaddexp(0, x) for "
        "log(1 + exp(x)), or an operator that is infinite or NaN there"
    )


def compare_with(
    truth: Truth,
    check: str,
    got: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    known: Condition,
    into: Collector,
) -> None:
    """Compare outputs with those of a truth, and report the row.

    Args:
        truth: The source of the expected outputs.
        check: Name of the row.
        got: The outputs.
        values: The inputs.
        known: The expected outputs, `truth.at(values)`.
        into: Receives the row.
    """
    own = own_dtype(values)
    # In integers and in float64, the operator's own run in float64 is the same run again.
    itself = not truth.given and not (truth.informative and is_floating(own) and own != "float64")
    moved = truth.jumps(values, known, own) if is_floating(own) and own != "float64" else None
    rows = compared(got, known, moved, truth, values)
    into.compare(check, rows, tolerance_of(got, truth.precision, values), itself=itself)


def tolerance_of(got: Sequence[np.ndarray], precision: str, inputs: Sequence[np.ndarray]) -> str:
    """The derivation of the tolerance of `compared`."""
    own = next((str(value.dtype) for value in got if is_floating(str(value.dtype))), "float64")
    coarsest = max(working(own, inputs), precision, key=epsilon)
    return tolerance_text(coarsest, precision != "float64" or own == "float64")


def _room(dtype: str, known: Condition, number: int, precision: str, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    if known.total[number] is None:
        return None
    coarsest = max(working(dtype, inputs), precision, key=epsilon) if is_floating(dtype) else dtype
    coarser = epsilon(coarsest) / epsilon(dtype) if is_floating(dtype) else 1.0
    return known.scale(number) * coarser


def check_dtypes(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    dtypes: Sequence[str],
    requested: bool,
    truth: Truth,
    into: Collector,
) -> None:
    """Compare forward in several element types with the expected outputs for the rounded inputs.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        dtypes: Element types of the floating-point inputs, one at a time.
        requested: Whether the user requested these types, so that none may be rejected.
        truth: The expected outputs.
        into: Receives a row per type.
    """
    own = own_dtype(inputs)
    for dtype in dtypes:
        check = f"forward, {dtype}, against {truth.name}"
        if not truth.given and (dtype == "float64" or not is_floating(dtype)):
            into.say(f"forward, {dtype}", "not evaluated", f"there is nothing to compare with but itself; {REFERENCE}")
            continue
        values = cast(inputs, dtype)
        with into.guarded(check):
            may_refuse = not requested and dtype != own
            got = run_in(subject, lambda values=values: subject.forward(values), dtype, may_refuse, check, into)  # type: ignore[misc]
            if got is None:
                continue
            known = truth.at(values)
            moved = truth.jumps(values, known, dtype) if is_floating(dtype) and dtype != "float64" else None
            into.compare(
                check,
                compared(got, known, moved, truth, values),
                tolerance_of(got, truth.precision, values),
                itself=not (truth.given or truth.informative),
            )


def run_in(subject: Subject, call: Callable[[], Any], dtype: str, may_refuse: bool, check: str, into: Collector) -> Any:
    """The result of a call in an element type; None, and a row, if the operator does not accept the type.

    See `refuses_type`. One broken contract is a refusal, too: a wider type than bfloat16 on NumPy.

    Args:
        subject: Runs the operator.
        call: The call.
        dtype: The element type.
        may_refuse: Whether the type may be rejected.
        check: Name of the check.
        into: Receives the row.
    """
    try:
        return call()
    except Deep5Error as error:
        # By the array API, an array keeps its type beside a Python float, and an operator may rely on that. NumPy does
        # so for its own types, but not for bfloat16, which is ml_dtypes': then NumPy refuses the type, not the
        # operator, whose source is right on other frameworks. One that widens its inputs itself also does so in
        # float16, which fails. The verdict names the refusal, since the reference does not run the operator in bfloat16
        # either.
        widened = subject.direct and dtype == "bfloat16" and isinstance(error, ChangedElementType)
        if not (may_refuse and (widened or refuses_type(subject, error))):
            raise
        note = str(error).split("\n", 1)[0]
        into.refuse_type(check, f"{note}{_WIDENED if widened else ''}", dtype, "which NumPy widens" * widened)
        return None


def check_layouts(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    know: Callable[[Sequence[np.ndarray]], Condition | None],
    into: Collector,
) -> None:
    """Check forward on the same values in other layouts: the same outputs up to the order of sums.

    Args:
        subject: Runs the operator.
        inputs: Contiguous arrays.
        others: Other values with the same shapes and types, on which it runs in between.
        know: Computes the condition of the outputs in float64, called if bits differ; returns None if unknown, and then
            no bit may differ.
        into: Receives a row per layout.
    """
    if not any(value.ndim and value.size for value in inputs):
        return
    plain = subject.forward(inputs)
    for layout, lay in LAYOUTS.items():
        check = f"forward, input in {layout}" if layout == "Fortran order" else f"forward, input with {layout}"
        if layout == "first axis last" and not any(value.ndim > 2 for value in inputs):
            continue
        with into.guarded(check):
            subject.forward(others)  # a kept result would be another
            laid = [lay(value) if value.ndim else value for value in inputs]
            _as_contiguous(check, subject.forward(laid), plain, lambda: know(inputs), into)
    several = [number for number, value in enumerate(inputs) if value.ndim and value.size]
    for number in several[:_MOST_INPUTS] if len(several) > 1 else ():
        with into.guarded(check := f"forward, input {number} with strides of 2"):
            laid = [LAYOUTS["strides of 2"](value) if place == number else value for place, value in enumerate(inputs)]
            _as_contiguous(check, subject.forward(laid), plain, lambda: know(inputs), into)
    with into.guarded(check := "forward, input with strides of 0"):
        rows = repeated(inputs)
        whole = contiguous(rows)
        try:
            plain = subject.forward(whole)
        except Deep5Error as error:
            if breaks(subject, error):
                raise
            return  # equal rows may be an invalid input, for an inverse, for example
        _as_contiguous(check, subject.forward(rows), plain, lambda: know(whole), into)


def _as_contiguous(
    check: str,
    got: Sequence[np.ndarray],
    plain: Sequence[np.ndarray],
    know: Callable[[], Condition | None],
    into: Collector,
) -> None:
    """Compare outputs with those of contiguous inputs."""
    if same_bits(got, plain):
        into.same(check)
        return
    known, parts = know(), []
    for number, (value, want) in enumerate(zip(got, plain, strict=True)):
        scale = None if known is None or known.total[number] is None else known.scale(number)
        parts.append((f"output {number}", deviation(np.asarray(value), np.asarray(want), scale, twice=True)))
    reported = f"against contiguous inputs; {tolerance_text(_float_of(plain), twice=True)}"
    into.compare(check, parts, reported, itself=True)


def _float_of(values: Sequence[np.ndarray]) -> str:
    return next((str(value.dtype) for value in values if is_floating(str(value.dtype))), "float64")


def check_empty(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Check forward on empty and rank-0 inputs: rejected, or correct.

    Only `specs` may reject rank 0, and empty leading axes, as of a batch, if outputs are empty too. In other cases the
    operator may raise: an empty array has no maximum, for example.
    """
    cases = [(f"forward, dimension {extent} cut to 0", lead, cut) for extent, lead, cut in without_elements(inputs)]
    scalars = without_axes(inputs) if any(value.ndim for value in inputs) else None
    if scalars is not None:
        cases.append(("forward, rank 0", False, scalars))
    for check, strict, values in cases:
        try:
            expected = specs_of(subject.operator, specs(values)) if subject.direct else None
        except Deep5Error as error:
            into.say(check, "FAILED" if isinstance(error, OperatorError) else "refused", str(error))
            continue
        try:
            got = subject.forward(values)
        except Deep5Error as error:
            nothing = expected is not None and all(0 in spec.shape for spec in expected)
            if values is scalars:
                refused = refuses_size(subject, error, values)
            else:
                refused = not breaks(subject, error) and not (strict and nothing)
            into.say(check, "refused" if refused else "FAILED", str(error).split("\n", 1)[0])
            continue
        try:
            known = truth.at(values) if truth.given else None
        except Exception as error:  # a reference function may raise any error
            into.say(check, "not evaluated", f"it runs; {truth.name} does not: {error}")
            continue
        if known is None:
            into.say(check, "passed")
        elif not strict and [np.shape(value) for value in got] != [value.shape for value in known.values]:
            # Axes of the same size may be unrelated: then cutting them makes no sense.
            into.say(check, "refused", f"it gives other shapes than {truth.name}")
        else:
            into.compare(check, compared(got, known, None, truth, values), tolerance_of(got, truth.precision, values))
