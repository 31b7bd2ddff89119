"""`check_forward` and `check_gradient`: the checks of an operator, without mercy; for pytest and the command line."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from deep5.errors import Deep5Error, OperatorError, ShapeError, Unsupported, UsageError, brief
from deep5.operators.checks.child import survive
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import check_backward_conduct, check_forward_conduct, check_needs
from deep5.operators.checks.gradients import (
    check_backward_dtypes,
    check_backward_empty,
    check_backward_layouts,
    check_strict,
    cotangents,
)
from deep5.operators.checks.inputs import cast, contiguous, floating
from deep5.operators.checks.jacobian import check_jacobian
from deep5.operators.checks.report import OperatorReport
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.values import Truth, check_dtypes, check_empty, check_layouts, check_special, own_dtype
from deep5.operators.contract import check_inputs, is_floating, name_of, several
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.operator import Operator
from deep5.tensors import Array, to_numpy

__all__ = ["check_forward", "check_gradient", "forward_report", "gradient_report"]

_DTYPES = ("float32", "float64", "float16", "bfloat16")
TIME_LIMIT_S = 20.0
_Report = TypeVar("_Report", bound=Callable[..., OperatorReport])


def _quiet(report: _Report) -> _Report:
    """Operators are run on what they may complain of: warnings are for their users."""

    @functools.wraps(report)
    def silent(*given: Any, **named: Any) -> OperatorReport:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: OperatorReport = report(*given, **named)
            return made

    return silent  # type: ignore[return-value]


def check_forward(
    operator: Operator,
    inputs: Sequence[Array],
    *,
    reference: Callable[..., Any] | None = None,
    against: str | None = None,
    framework: str | None = None,
    dtypes: Sequence[str] | None = None,
    strict: bool = True,
    out: str | Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> OperatorReport:
    """Check what an operator computes, and how it treats memory.

    Values are held against a reference function, another framework, or the operator itself in float64; in several
    element types, on inputs that are not contiguous, that are empty or have no axes, with NaN and infinity. Inputs have
    to stay as they are, outputs have to be new memory that nobody writes to later, and twice the same has to be the
    same to the bit. An operator in Python also runs under `array_api_strict`, one in C++ first in a process of its own.

    Args:
        operator: The operator.
        inputs: Arrays; they are not changed.
        reference: A function of NumPy arrays, floating-point ones in float64, that gives the right outputs in float64.
        against: A framework that gives the right outputs instead.
        framework: Who runs the operator; None: NumPy calls it, or the framework of a `NativeOperator`.
        dtypes: Element types of the floating inputs; None: all that the operator takes.
        strict: Whether an operator in Python has to run under `array_api_strict`.
        out: Folder for a picture of the differences; None: a temporary one.
        time_limit_s: Seconds that one call of a C++ operator may take.

    Returns:
        Every check with error and tolerance, and how the tolerance came about.

    Raises:
        OperatorError: Something does not hold; the message tells all of it. A C++ operator crashed.
        ShapeError: The operator does not take the inputs.
        UsageError: Arguments that cannot be used.
    """
    return _judged(
        forward_report(
            operator,
            inputs,
            reference=reference,
            against=against,
            framework=framework,
            dtypes=dtypes,
            strict=strict,
            out=out,
            time_limit_s=time_limit_s,
        )
    )


def check_gradient(
    operator: Operator,
    inputs: Sequence[Array],
    *,
    framework: str | None = None,
    dtypes: Sequence[str] | None = None,
    strict: bool = True,
    out: str | Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    seed: int = 0,
) -> OperatorReport:
    """Check an operator's backward against central differences of its forward in float64.

    The whole Jacobian where inputs have at most 192 elements and outputs 512, random directions where they have more;
    by every floating input, of every floating output. Elements at a kink are told, and held between the slopes to
    either side. Then backward in lower precision against float64, other memory, empty inputs, `needs`, repeatability,
    and what backward does to memory, as `check_forward` has it.

    Args:
        operator: The operator.
        inputs: The point, arrays; they are not changed.
        framework: As for `check_forward`.
        dtypes: As for `check_forward`.
        strict: As for `check_forward`.
        out: As for `check_forward`.
        time_limit_s: As for `check_forward`.
        seed: Of the directions.

    Returns:
        As `check_forward`.

    Raises:
        OperatorError: As for `check_forward`.
        ShapeError: As for `check_forward`.
        Unsupported: The operator has no gradient, or runs in float64 nowhere.
        UsageError: As for `check_forward`.
    """
    return _judged(
        gradient_report(
            operator,
            inputs,
            framework=framework,
            dtypes=dtypes,
            strict=strict,
            out=out,
            time_limit_s=time_limit_s,
            seed=seed,
        )
    )


@_quiet
def forward_report(
    operator: Operator,
    inputs: Sequence[Array],
    *,
    reference: Callable[..., Any] | None = None,
    against: str | None = None,
    framework: str | None = None,
    dtypes: Sequence[str] | None = None,
    strict: bool = True,
    out: str | Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> OperatorReport:
    """As `check_forward`, where failures are rows of the report and no error."""
    if reference is not None and against is not None:
        raise UsageError("check_forward: reference and against are both given; allowed: one of them")
    given, tried, subject, into = _start(operator, inputs, framework, dtypes, out, time_limit_s)
    subject.forward(contiguous(given))  # what cannot run at all is told at once
    if not check_forward_conduct(subject, given, _others(given), into):
        return into.report()  # values that change under way cannot be judged
    truth = _truth(subject, given, reference, against)
    if truth is None:
        into.say(
            "forward", "noted", "it takes no float64, so that there is nothing to compare with; remedy: a reference"
        )
    else:
        check_dtypes(subject, given, tried, dtypes is not None, truth, into)
        with into.guarded("empty"):
            check_empty(subject, given, truth, into)
        with into.guarded("NaN and infinity"):
            check_special(subject, given, truth, into)
    with into.guarded("layouts"):
        check_layouts(subject, given, lambda: None if truth is None else truth.at(given), into)
    if strict and subject.direct and not isinstance(operator, CppOperator):
        check_strict(subject, given, False, into)
    return into.report()


@_quiet
def gradient_report(
    operator: Operator,
    inputs: Sequence[Array],
    *,
    framework: str | None = None,
    dtypes: Sequence[str] | None = None,
    strict: bool = True,
    out: str | Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    seed: int = 0,
) -> OperatorReport:
    """As `check_gradient`, where failures are rows of the report and no error."""
    given, tried, subject, into = _start(operator, inputs, framework, dtypes, out, time_limit_s)
    outputs = subject.forward(contiguous(given))
    if not any(floating(given)) or not any(floating(outputs)):
        into.say("gradient", "noted", "there is none: no input, or no output, is of floating-point numbers")
        return into.report()
    rng = np.random.default_rng(seed)
    grads, needs = cotangents(outputs, rng), floating(given)
    whole = subject.gradients(contiguous(given), [None if grad is None else grad.copy() for grad in grads], needs)
    if not check_backward_conduct(subject, given, _others(given), grads, needs, into):
        return into.report()  # values that change under way cannot be judged
    check_needs(subject, given, grads, whole, into)
    right = _right(subject, given)
    if right is subject:
        with into.guarded("gradient"):
            check_jacobian(subject, cast(given, "float64"), rng, into)
    else:
        into.say("gradient", "noted", f"{subject.framework} takes no float64: compared with {right.framework} instead")
    check_backward_dtypes(subject, given, tried, dtypes is not None, right, into)
    with into.guarded("backward in other memory"):
        check_backward_layouts(subject, given, right, into)
    with into.guarded("backward of nothing"):
        check_backward_empty(subject, given, into)
    if strict and subject.direct and not isinstance(operator, CppOperator):
        check_strict(subject, given, True, into)
    return into.report()


def _judged(report: OperatorReport) -> OperatorReport:
    if report.failures:
        raise OperatorError(report.story())
    return report


def _start(
    operator: Operator,
    inputs: Sequence[Array],
    framework: str | None,
    dtypes: Sequence[str] | None,
    out: str | Path | None,
    time_limit_s: float,
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...], Subject, Collector]:
    """What every check begins with: inputs of our own, element types to try, who runs it, and that it survives that."""
    got: Any = operator  # which a user may have given as anything
    if not isinstance(got, Operator):
        what = (
            f"{operator.__name__}(…), with parentheses" if isinstance(operator, type) else "an object of a class of it"
        )
        raise UsageError(f"got {brief(got)} as the operator; allowed: a d5.Operator; remedy: {what}")
    if isinstance(inputs, (str, bytes)) or hasattr(inputs, "dtype") or not isinstance(inputs, Sequence):
        raise UsageError(f"got {type(inputs).__name__} as inputs; allowed: a list of arrays, one an input; remedy: [x]")
    if not isinstance(operator, NativeOperator):
        check_inputs(operator, len(inputs))
    given = contiguous([to_numpy(value) for value in inputs])
    for number, value in enumerate(given):
        if value.dtype.kind not in "biuf" and not is_floating(str(value.dtype)):
            raise ShapeError(f"{name_of(operator)}: got input {number} of {value.dtype}; allowed: real numbers")
    for dtype in dtypes or ():
        if dtype not in _DTYPES:
            raise UsageError(f"got the element type {brief(dtype)}; allowed: {', '.join(_DTYPES)}")
    own = own_dtype(given)
    tried = tuple(dict.fromkeys(dtypes or (own, *_DTYPES))) if any(floating(given)) else (own,)
    if isinstance(operator, CppOperator):
        survive(operator, given, tried, time_limit_s)
    subject = Subject(operator, framework)
    return given, tried, subject, Collector(subject.name, subject.framework, Path(out) if out is not None else None)


def _others(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Other values of the same shapes and types, that an operator takes as it takes these: turned around, and all
    floating ones a little larger."""
    found = []
    for value in inputs:
        turned = np.ascontiguousarray(value.reshape(-1)[::-1].reshape(value.shape))
        if is_floating(str(value.dtype)):
            turned = turned * value.dtype.type(1.25) if value.size else turned
        found.append(np.asarray(turned).astype(value.dtype))
    return tuple(found)


def _truth(
    subject: Subject, inputs: Sequence[np.ndarray], reference: Callable[..., Any] | None, against: str | None
) -> Truth | None:
    """What is right: the reference, the other framework, or the operator itself where it takes float64."""
    wide = cast(inputs, "float64")
    if reference is not None:
        function = _of_reference(reference, subject)
        function(wide)
        return Truth(function, str(getattr(reference, "__name__", "the reference")), given=True)
    if against is not None:
        other, own = Subject(subject.operator, against), own_dtype(inputs)
        if _takes(other, wide):
            return Truth(other.forward, other.framework, given=True)
        return Truth(lambda values: other.forward(cast(values, own)), other.framework, given=True, exact=False)
    return Truth(subject.forward, "itself in float64", given=False) if _takes(subject, wide) else None


def _of_reference(
    reference: Callable[..., Any], subject: Subject
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    def function(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        # Copies: a reference may be careless, and what it is compared with must not be touched.
        try:
            made = [np.asarray(value) for value in several(reference(*[value.copy() for value in inputs]))]
        except Exception as error:
            raise UsageError(f"the reference of {subject.name} raised {type(error).__name__}: {error}") from error
        for number, value in enumerate(made):
            if is_floating(str(value.dtype)) and value.dtype != np.float64:
                raise UsageError(
                    f"the reference of {subject.name} gives output {number} in {value.dtype}; allowed: float64, of "
                    "float64 inputs; remedy: no casts to lower precision"
                )
        return made

    return function


def _takes(subject: Subject, inputs: Sequence[np.ndarray]) -> bool:
    try:
        made = subject.forward(inputs)
    except Deep5Error:
        return False
    # A back-end may compute in float32 whatever it is given.
    return all(str(value.dtype) not in ("float16", "bfloat16", "float32") for value in made)


def _right(subject: Subject, inputs: Sequence[np.ndarray]) -> Subject:
    """Who runs the operator in float64: its framework, or else NumPy.

    Raises:
        Unsupported: Nobody does.
    """
    wide = cast(inputs, "float64")
    if _takes(subject, wide):
        return subject
    if (
        not subject.direct
        and not isinstance(subject.operator, NativeOperator)
        and not hasattr(subject.operator, "op_type")
    ):
        plain = Subject(subject.operator, None)
        if _takes(plain, wide):
            return plain
    # Told in the operator's own words.
    subject.forward(wide)
    raise Unsupported(
        f"{subject.name} does not compute in float64 on {subject.framework}; allowed: float64, for differences"
    )
