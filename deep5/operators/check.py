"""`check_forward` and `check_gradient`: strict checks of an operator, for pytest and the command line."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import OperatorError, ShapeError, UsageError, brief, suggestion
from deep5.core.operator import Operator
from deep5.core.tensors import Array, to_numpy
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import (
    check_backward_conduct,
    check_forward_conduct,
    check_needs,
    check_nothing_kept,
    check_repeats,
)
from deep5.operators.checks.gradients import (
    check_backward_dtypes,
    check_backward_empty,
    check_backward_layouts,
    check_strict,
    cotangents,
)
from deep5.operators.checks.inputs import contiguous, floating, widened
from deep5.operators.checks.integers import check_integers
from deep5.operators.checks.jacobian import check_jacobian
from deep5.operators.checks.many import check_after_others, check_gradients_elsewhere, check_values_elsewhere
from deep5.operators.checks.objects import check_objects
from deep5.operators.checks.others import check_follows, check_sizes
from deep5.operators.checks.report import OperatorReport
from deep5.operators.checks.special import check_finite, check_special, check_together
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.survival import survive
from deep5.operators.checks.threads import check_threads
from deep5.operators.checks.truth import IN_FLOAT64, own_dtype, truth_of, wide_subject
from deep5.operators.checks.values import REFERENCE, check_dtypes, check_empty, check_layouts
from deep5.operators.contract import check_inputs, is_floating, name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.plan import CODES

__all__ = ["TIME_LIMIT_S", "check_forward", "check_gradient", "check_time_limit"]

_DTYPES = ("float32", "float64", "float16", "bfloat16")
TIME_LIMIT_S = 20.0
"""Default time limit in seconds of one call of an operator in a separate process."""
_LONGEST_S = 1e6
"""More than a week; waiting for a process does not accept infinity."""
_WRONG_HERE = "a check with the given sizes and values failed; remedy: first make it right there"


def check_time_limit(name: str, time_limit_s: Any) -> None:
    """Check that a time limit is a positive number; `name` is its name in messages.

    Raises:
        UsageError: It is not.
    """
    number = isinstance(time_limit_s, (int, float, np.integer, np.floating)) and not isinstance(time_limit_s, bool)
    if not number or math.isnan(time_limit_s) or not 0 < time_limit_s <= _LONGEST_S:
        got = f"{time_limit_s:g}" if number else brief(time_limit_s)
        raise UsageError(f"got {name} {got}; allowed: more than 0 s, a number of at most {_LONGEST_S:g}")


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
    raises: bool = True,
) -> OperatorReport:
    """Check an operator's results and its memory behavior.

    Values are compared with a reference function, another framework, or the operator itself in float64: in several
    element types, on inputs that are not contiguous, are empty or have rank 0, and with NaN and infinity. Finite inputs
    must not produce NaN or infinity unless the expected values have them too. Inputs must stay unchanged, outputs must
    be new memory that is not written to later, and repeated calls must be bit-identical. A Python operator also runs
    under `array_api_strict`, a C++ operator first in a separate process.

    Args:
        operator: The operator.
        inputs: Arrays; they are not changed.
        reference: A function of NumPy arrays, floating-point ones in float64, that returns the expected outputs in
            float64.
        against: A framework that computes the expected outputs instead.
        framework: The framework that runs the operator; None: called on NumPy arrays, or the framework of a
            `NativeOperator`.
        dtypes: Element types of the floating-point inputs; None: all that the operator accepts.
        strict: Whether a Python operator must run under `array_api_strict`.
        out: Folder for a picture of the differences; None: a temporary one.
        time_limit_s: Time limit in seconds of one call of a C++ operator.
        raises: Whether failures raise an error; otherwise only the report contains them, which is then false.

    Returns:
        Every check with its error and tolerance, and the derivation of the tolerance.

    Raises:
        OperatorError: A check failed, and the message lists all failures; or the operator does not run at all.
        ShapeError: The operator does not accept the inputs.
        UsageError: An argument is invalid.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Square(d5.Operator):
    ...     def specs(self, x): return (x,)
    ...     def forward(self, x): return x * x
    ...     def backward(self, output_grads, inputs, outputs, needs): return (2 * inputs[0] * output_grads[0],)
    >>> report = d5.check_forward(Square(), [np.linspace(-1, 1, 3)], reference=np.square, dtypes=["float64"])
    >>> bool(report), report.failures
    (True, ())
    """
    got: Any = reference  # a user may have passed anything
    if got is not None and not callable(got):
        remedy = "reference=numpy.cbrt, say"
        if isinstance(got, str):
            remedy = f"against={brief(got)}, where a framework gives the expected values"
        raise UsageError(
            f"check_forward: got reference={brief(got)}; allowed: a function of NumPy arrays; remedy: {remedy}"
        )
    if reference is not None and against is not None:
        raise UsageError("check_forward: reference and against are both given; allowed: one of them")
    with _checked(operator, inputs, framework, dtypes, out, time_limit_s) as (run, into):
        _forward(run, into, reference, against, strict)
    return _concluded(into, raises)


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
    raises: bool = True,
) -> OperatorReport:
    """Check an operator's `backward` against central differences of its `forward` in float64.

    Checks the whole Jacobian if inputs have at most 192 elements and outputs 512, otherwise random directions, for
    every floating-point input and output. Elements at a kink are reported, and must lie between the one-sided slopes;
    output elements that are not finite have no derivative, and are counted and skipped. `backward` must be linear in
    the output gradients, propagate their NaN, and depend only on its arguments. Further checks, as in `check_forward`:
    lower precision against float64, other memory layouts, empty inputs, `needs`, repeatability, and memory behavior.

    Args:
        operator: The operator.
        inputs: The point, arrays; they are not changed.
        framework: As for `check_forward`.
        dtypes: As for `check_forward`.
        strict: As for `check_forward`.
        out: As for `check_forward`.
        time_limit_s: As for `check_forward`.
        seed: Seed of the random directions.
        raises: As for `check_forward`.

    Returns:
        As `check_forward`.

    Raises:
        OperatorError: As for `check_forward`.
        ShapeError: As for `check_forward`.
        Unsupported: The operator has no gradient, or no framework runs it in float64.
        UsageError: As for `check_forward`.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Square(d5.Operator):
    ...     def specs(self, x): return (x,)
    ...     def forward(self, x): return x * x
    ...     def backward(self, output_grads, inputs, outputs, needs): return (2 * inputs[0] * output_grads[0],)
    >>> report = d5.check_gradient(Square(), [np.linspace(-1, 1, 3)], dtypes=["float64"])
    >>> bool(report), [row.verdict for row in report.rows if row.check == "gradient by input 0"]
    (True, ['passed'])
    """
    with _checked(operator, inputs, framework, dtypes, out, time_limit_s) as (run, into):
        _gradient(run, into, strict, np.random.default_rng(seed))
    return _concluded(into, raises)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """An operator prepared for the checks.

    Attributes:
        subject: Runs it.
        inputs: Copies of the given inputs.
        dtypes: Element types to try.
        requested: Whether the user requested these types, so that none may be rejected.
    """

    subject: Subject
    inputs: tuple[np.ndarray, ...]
    dtypes: tuple[str, ...]
    requested: bool

    def strictly(self, strict: bool) -> bool:
        """Whether it must run under `array_api_strict`."""
        return strict and self.subject.direct and not isinstance(self.subject.operator, CppOperator)


def _forward(
    run: _Run, into: Collector, reference: Callable[..., Any] | None, against: str | None, strict: bool
) -> None:
    subject, given = run.subject, run.inputs
    fresh = _alike(subject.operator) if subject.direct else None  # before anything ran
    outputs = subject.forward(contiguous(given))  # raises at once if it cannot run at all
    into.begin("forward: calls and arguments")
    if not check_forward_conduct(subject, given, _others(given), run.dtypes, into):
        return  # values that change between calls cannot be checked
    subject.watch()
    try:
        truth = truth_of(subject, given, outputs, reference, against)
    except OperatorError as error:
        into.say("forward, float64", "FAILED", str(error))
        truth = None
    other = None if fresh is None else Subject(fresh, None)
    check_follows(subject, other, given, _others(given), truth, into)
    expected = outputs if truth is None else truth(widened(given))
    check_finite(expected, given, truth is not None and truth.given, into)
    if truth is None:
        native = isinstance(subject.operator, NativeOperator)
        reported = "it does not compute in float64, so that there is nothing to compare with"
        into.begin("forward: element types")
        into.say("forward", "not evaluated", f"{reported}; {IN_FLOAT64 + '; or a reference' if native else REFERENCE}")
    else:
        into.begin("forward: element types")
        check_dtypes(subject, given, run.dtypes, run.requested, truth, into)
        into.begin("forward: sizes and values")
        with into.guarded("other sizes"):
            check_sizes(subject, given, truth, into)
        if into.failed:
            into.say("forward, many sizes and values", "not evaluated", _WRONG_HERE)
        else:
            check_values_elsewhere(subject, given, truth, into)
            if reference is not None:
                check_integers(subject, given, truth, into)
        into.begin("forward: empty inputs")
        with into.guarded("empty"):
            check_empty(subject, given, truth, into)
        into.begin("forward: NaN and infinity")
        with into.guarded("NaN and infinity"):
            check_special(subject, given, truth, into)
        with into.guarded("infinities that meet"):
            check_together(subject, given, truth, into)
    into.begin("forward: layouts of memory")
    with into.guarded("layouts"):
        check_layouts(subject, given, _others(given), lambda values: None if truth is None else truth.at(values), into)
    into.begin("forward: threads and other calls")
    check_threads(subject, given, False, into)
    if not into.failed:
        check_after_others(subject, given, _others(given), False, into)
        check_objects(subject, given, _others(given), False, into)
    if not into.failed:
        check_repeats(subject, into)
    if run.strictly(strict):
        into.begin("forward: array_api_strict")
        check_strict(subject, given, False, into)


def _gradient(run: _Run, into: Collector, strict: bool, rng: np.random.Generator) -> None:
    subject, given = run.subject, run.inputs
    fresh = _alike(subject.operator)  # before anything ran
    outputs = subject.forward(contiguous(given))
    into.begin("backward: gradients")
    if not any(floating(given)) or not any(floating(outputs)):
        into.say("gradient", "not evaluated", "there is none: no input, or no output, is of floating-point numbers")
        return
    grads, needs = cotangents(outputs, rng), floating(given)
    try:
        whole = subject.gradients(contiguous(given), [None if grad is None else grad.copy() for grad in grads], needs)
    except OperatorError as error:  # raising, or breaking the contract, is a failure
        into.say("backward", "FAILED", str(error))
        return
    into.begin("backward: calls and arguments")
    if not check_backward_conduct(subject, given, _others(given), grads, needs, into):
        return  # values that change between calls cannot be checked
    subject.watch()
    check_needs(subject, given, grads, whole, into)
    if not isinstance(subject.operator, NativeOperator) and not hasattr(subject.operator, "op_type"):
        plain = subject if subject.direct else Subject(subject.operator, None)
        other = None if fresh is None else Subject(fresh, None)
        with into.guarded("nothing is kept"):
            check_nothing_kept(plain, other, given, _others(given), grads, into)
    into.begin("backward: gradients")
    try:
        right = wide_subject(subject, given)
    except OperatorError as error:  # it accepts float64, and fails there
        into.say("backward, float64", "FAILED", str(error))
        return
    if right is not subject:
        reported = f"it takes no float64: gradients are checked on {right.framework}, and those here compared with them"
        into.say(f"gradient in float64 on {subject.framework}", "not evaluated", reported)
    with into.guarded("gradient"):
        check_jacobian(right, widened(given), rng, into)
    into.begin("backward: element types")
    check_backward_dtypes(subject, given, run.dtypes, run.requested, right, into)
    into.begin("backward: layouts of memory")
    with into.guarded("backward in other memory"):
        check_backward_layouts(subject, given, right, into)
    into.begin("backward: empty inputs")
    with into.guarded("backward of nothing"):
        check_backward_empty(subject, given, into)
    into.begin("backward: threads and other calls")
    check_threads(subject, given, True, into)
    into.begin("backward: sizes and values")
    if into.failed:
        into.say("backward, many sizes and values", "not evaluated", _WRONG_HERE)
    else:
        with into.guarded("backward elsewhere"):
            check_gradients_elsewhere(subject, right, given, rng, into)
    into.begin("backward: threads and other calls")
    if not into.failed:
        check_after_others(subject, given, _others(given), True, into)
        check_objects(subject, given, _others(given), True, into)
    if not into.failed:
        check_repeats(subject, into)
    if run.strictly(strict):
        into.begin("backward: array_api_strict")
        check_strict(subject, given, True, into)


def _concluded(into: Collector, raises: bool) -> OperatorReport:
    report = into.report()
    if raises and report.failures:
        raise OperatorError(report.story())
    return report


@contextmanager
def _checked(
    operator: Operator,
    inputs: Sequence[Array],
    framework: str | None,
    dtypes: Sequence[str] | None,
    out: str | Path | None,
    time_limit_s: float,
) -> Iterator[tuple[_Run, Collector]]:
    """Common start of the checks: copies of the inputs, element types to try, the subject, and the survival check.

    Operators run on unusual inputs here, so warnings are silenced within.
    """
    got: Any = operator  # a user may have passed anything
    if not isinstance(got, Operator):
        what = (
            f"{operator.__name__}(…), with parentheses" if isinstance(operator, type) else "an object of a class of it"
        )
        raise UsageError(f"got {brief(got)} as the operator; allowed: a d5.Operator; remedy: {what}")
    if isinstance(inputs, (str, bytes)) or hasattr(inputs, "dtype") or not isinstance(inputs, Sequence):
        raise UsageError(
            f"got {type(inputs).__name__} as inputs; allowed: a list of arrays, one per input; remedy: [x]"
        )
    check_time_limit("time_limit_s", time_limit_s)
    source: Any = operator.source if isinstance(operator, CppOperator) else None
    if source and not isinstance(source, (str, Path)):
        reported = "allowed: C++ as a string, or the path of a file"
        raise UsageError(f"{name_of(operator)}: got source = {brief(source)}; {reported}")
    if not isinstance(operator, NativeOperator):
        check_inputs(operator, len(inputs))
    # Operators get native byte order, regardless of a file's.
    given = contiguous([_in_own_bytes(to_numpy(value)) for value in inputs])
    for number, value in enumerate(given):
        if value.dtype.kind == "f" and value.dtype.itemsize > 8:
            reported = f"allowed: {', '.join(CODES)}; remedy: .astype(numpy.float64)"
            raise ShapeError(f"{name_of(operator)}: got input {number} of {value.dtype}; {reported}")
        if value.dtype.kind not in "biuf" and not is_floating(str(value.dtype)):
            raise ShapeError(f"{name_of(operator)}: got input {number} of {value.dtype}; allowed: real numbers")
    for dtype in dtypes or ():
        if dtype not in _DTYPES:
            near = suggestion(str(dtype), _DTYPES)
            raise UsageError(f"got the element type {brief(dtype)}; allowed: {', '.join(_DTYPES)}{near}")
    own = own_dtype(given)
    tried = tuple(dict.fromkeys(dtypes or (own, *_DTYPES))) if any(floating(given)) else (own,)
    with warnings.catch_warnings(), np.errstate():  # an operator may set NumPy's
        warnings.simplefilter("ignore")
        if isinstance(operator, CppOperator):
            survive(operator, given, tried, time_limit_s)
        subject = Subject(operator, framework)
        into = Collector(subject.name, subject.framework, Path(out) if out is not None else None)
        try:
            yield _Run(subject=subject, inputs=given, dtypes=tried, requested=dtypes is not None), into
        finally:
            subject.restore()


def _in_own_bytes(value: np.ndarray) -> np.ndarray:
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _alike(operator: Operator) -> Operator | None:
    """A deep copy of an operator; None if it cannot be copied."""
    try:
        return copy.deepcopy(operator)
    except Exception:  # some attributes, such as locks or modules, cannot be copied
        return None


def _others(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Other values with the same shapes and types that an operator accepts likewise: reversed, and all floating-point
    ones slightly larger.
    """
    found = []
    for value in inputs:
        turned = np.ascontiguousarray(value.reshape(-1)[::-1].reshape(value.shape))
        if is_floating(str(value.dtype)):
            turned = turned * value.dtype.type(1.25) if value.size else turned
        found.append(np.asarray(turned).astype(value.dtype))
    return tuple(found)
