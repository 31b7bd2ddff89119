"""Checks of an operator at many sizes, at extreme values, in sequence, after errors, and on other threads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, OperatorError
from deep5.core.worker_threads import begin
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.gradients import check_backward_dtypes, cotangents
from deep5.operators.checks.inputs import LARGE, contiguous, extreme, far, floating, sized, widened
from deep5.operators.checks.jacobian import check_jacobian
from deep5.operators.checks.ranks import ranked
from deep5.operators.checks.subject import Subject, breaks, refuses_size, specs
from deep5.operators.checks.threads import too_large
from deep5.operators.checks.tolerance import Condition
from deep5.operators.checks.truth import Truth, own_dtype
from deep5.operators.checks.values import compare_with
from deep5.operators.contract import specs_of
from deep5.operators.cpp import CppOperator

__all__ = ["check_after_others", "check_gradients_elsewhere", "check_values_elsewhere"]

_THREADS = 3
_ROUGH = (
    "there are no slopes to compare with: differences do not settle at kinks and jumps, nor where forward loses its "
    "digits by cancellation, and have no numbers where outputs are not finite"
)
# An operator that takes more memory than this at a sixteenth of `BLOCK` rows may take 256 times as much at all of them.
_ROOM_BYTES = 8 << 20


def _accepted(subject: Subject, values: Sequence[np.ndarray], what: str) -> bool:
    """Whether `specs` accepts these inputs, and large ones are soon computed.

    Raises:
        OperatorError: `specs` breaks its contract, or for large ones, `forward` does, or fails.
    """
    try:
        outputs = specs_of(subject.operator, specs(values))
    except OperatorError:
        raise
    except Deep5Error:
        return False
    if not what.startswith(LARGE):
        return True
    return not too_large(outputs) and (not subject.direct or _grows_slowly(subject, values))


def _grows_slowly(subject: Subject, values: Sequence[np.ndarray]) -> bool:
    """Whether the memory for large inputs is bounded: tried on a sixteenth of their rows."""
    most = max(values, key=np.size)
    part = tuple(
        value[: -(-len(value) // 16)].copy() if value.ndim and value.shape[0] == most.shape[0] else value.copy()
        for value in values
    )
    tracemalloc.start()
    try:
        subject.forward(part)
        return tracemalloc.get_traced_memory()[1] < _ROOM_BYTES
    except Deep5Error as error:
        if not refuses_size(subject, error, part):
            raise
        return False
    finally:
        tracemalloc.stop()


def _cases(subject: Subject, inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, Iterator[Any]]]:
    """Kinds of other inputs: sizes, ranks, and values."""
    yield "size", sized(inputs)
    # In C++ an operator that does not check the rank would read other memory, and frameworks compile for each rank.
    if subject.direct and not isinstance(subject.operator, CppOperator):
        yield "rank", ranked(inputs)
    if any(floating(inputs)):
        yield "value", extreme(inputs)


def check_values_elsewhere(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Compare forward with the expected outputs at many sizes and extreme values, and with itself in between.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        truth: The expected outputs.
        into: Receives a row per size that `specs` accepts, and per kind of values.
    """
    known = [np.array(value) for value in subject.forward(contiguous(inputs))]
    exact = truth.given and truth.precision == "float64" and subject.direct
    wide = [("value", far(inputs))] if exact and any(floating(inputs)) else []
    for kind, cases in (*_cases(subject, inputs), *wide):
        for what, values in cases:
            check = f"forward, {what}"
            with into.guarded(check):
                if kind != "value" and not _accepted(subject, values, what):
                    continue
                try:
                    got = subject.forward(values)
                except Deep5Error as error:
                    if not _refused(subject, error, kind, values):
                        raise
                    into.say(check, "refused", str(error).split("\n", 1)[0])
                    continue
                _compare(check, got, values, truth, into, what == "equal values", kind == "rank")
                again = subject.forward(contiguous(inputs))
                if not same_bits(known, again):
                    raise OperatorError(
                        f"{subject.name}.forward gives different bits for the same inputs after it ran with {what}; "
                        "allowed: the same bits; remedy: nothing kept from call to call"
                    )


def _refused(subject: Subject, error: Deep5Error, kind: str, values: Sequence[np.ndarray]) -> bool:
    """Whether an error is a refusal of inputs of this kind, which `specs` accepted."""
    return not breaks(subject, error) if kind == "value" else refuses_size(subject, error, values)


def _compare(
    check: str,
    got: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    truth: Truth,
    into: Collector,
    equal: bool,
    rank: bool,
) -> None:
    try:
        known = truth.at(values)
    except Exception as error:  # a reference function may raise any error
        into.say(check, "not evaluated", f"it runs; {truth.name} does not: {error}")
        return
    if rank and [np.shape(value) for value in got] != [value.shape for value in known.values]:
        into.say(check, "not evaluated", f"it gives other shapes than {truth.name}")
        return
    compare_with(truth, check, got, values, _correlated(known) if equal else known, into)


def _correlated(known: Condition) -> Condition:
    """The condition of sums of equal terms: all are rounded in the same direction, so that the errors of n terms add
    up to n of them, not to sqrt(n). Both are estimates: elements below the median have at least that.
    """

    def typical(estimates: np.ndarray | None) -> np.ndarray | None:
        return estimates if estimates is None or not estimates.size else np.fmax(estimates, np.median(estimates))

    terms = tuple(None if each is None else np.square(each) for each in map(typical, known.terms))
    return replace(known, total=tuple(map(typical, known.total)), terms=terms)


def check_gradients_elsewhere(
    subject: Subject, right: Subject, inputs: Sequence[np.ndarray], rng: np.random.Generator, into: Collector
) -> None:
    """Compare backward with differences in float64 at many sizes and extreme values, and with itself in between.

    At each size, backward in the given element type is compared with float64, too. At extreme values, forward may give
    no numbers, or differences may not settle: then nothing is evaluated. The first failure ends the check.

    Args:
        subject: Runs the operator.
        right: Runs it in float64.
        inputs: The given inputs.
        rng: Draws directions.
        into: Receives a row per size that `specs` accepts, and per kind of values.
    """
    needs = floating(inputs)
    grads = cotangents(subject.forward(contiguous(inputs)), np.random.default_rng(5))
    known = [
        None if value is None else np.array(value) for value in subject.gradients(contiguous(inputs), grads, needs)
    ]
    for kind, cases in _cases(subject, inputs):
        for what, values in cases:
            check = f"backward, {what}"
            with into.guarded(check):
                if kind != "value" and not _accepted(subject, values, what):
                    continue
                part = Collector(into.operator, into.framework, None)
                try:
                    there = check_jacobian(right, widened(values), rng, part, whole=False)
                    if kind == "size":
                        check_backward_dtypes(subject, values, (own_dtype(values),), False, right, part)
                except Deep5Error as error:
                    if (kind == "size" and all(floating(values))) or not _refused(subject, error, kind, values):
                        raise
                    into.say(check, "refused", str(error).split("\n", 1)[0])
                    continue
                failures = [row for row in part.report().failures if kind != "value" or row.tolerance]
                again = subject.gradients(contiguous(inputs), grads, needs)
                if not same_bits(known, again):
                    raise OperatorError(
                        f"{subject.name}.backward gives different bits for the same inputs after it ran with {what}; "
                        "allowed: the same bits; remedy: nothing kept from call to call"
                    )
                note = "; ".join(f"{row.check}: {row.note}" for row in failures)
                if not failures and not there:
                    into.say(check, "not evaluated", _reason(part))
                elif not into.require(not failures, check, note):
                    # A wrong gradient is located element by element, which takes long at each further size.
                    into.say(
                        "backward, further sizes and values", "not evaluated", f"{check} failed; remedy: see there"
                    )
                    return


def _reason(part: Collector) -> str:
    """Why no gradient was compared at a point."""
    return next((row.note for row in part.report().rows if row.verdict == "not evaluated" and row.note), _ROUGH)


def check_after_others(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    backward: bool,
    into: Collector,
) -> None:
    """Check that results are the same bits after an error, on a second thread, and on several threads at once.

    Calls on other inputs come in between, so that a kept result would be seen.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        others: Other values with the same shapes and element types.
        backward: Whether to check backward instead of forward.
        into: Receives a row each.
    """
    name = "backward" if backward else "forward"
    call, other = _call(subject, inputs, backward), _call(subject, others, backward)
    known = [None if value is None else np.array(value) for value in call()]

    def same(check: str, found: Sequence[Any], when: str) -> None:
        into.require(
            same_bits(known, found),
            check,
            f"{subject.name}.{name} gives different bits for the same inputs {when}; allowed: the same bits; remedy: "
            "nothing kept from call to call, and nothing that depends on the thread",
        )

    with into.guarded(check := f"{name}, after an error"):
        _fail(subject, inputs)
        other()
        same(check, call(), "after a call that failed")
    with ThreadPoolExecutor(_THREADS, initializer=begin) as pool:
        with into.guarded(check := f"{name}, on a second thread"):
            pool.submit(other).result()
            same(check, pool.submit(call).result(), "on a second thread")
        with into.guarded(check := f"{name}, on {_THREADS} threads at once"):
            made = [pool.submit(each) for _ in range(_THREADS) for each in (other, call)]
            for found in [each.result() for each in made][1::2]:
                if not same_bits(known, found):
                    same(check, found, f"on {_THREADS} threads at once")
                    break
            else:
                into.same(check)


def _call(subject: Subject, inputs: Sequence[np.ndarray], backward: bool) -> Callable[[], Sequence[np.ndarray | None]]:
    if not backward:
        return lambda: subject.forward(contiguous(inputs))
    grads, needs = cotangents(subject.forward(contiguous(inputs)), np.random.default_rng(6)), floating(inputs)
    return lambda: subject.gradients(contiguous(inputs), grads, needs)


def _fail(subject: Subject, inputs: Sequence[np.ndarray]) -> None:
    """Calls that most operators reject: of another rank, and if its own methods run, of objects that are no arrays."""
    with suppress(Deep5Error):
        subject.forward([np.zeros((2,) * (value.ndim + 3), value.dtype) for value in inputs])
    if subject.direct:
        junk = [object() for _ in inputs]
        with suppress(Exception):
            subject.operator.forward(*junk)
        with suppress(Exception):
            subject.operator.backward(junk, junk, junk, [True] * len(junk))
