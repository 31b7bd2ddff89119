"""Checks with other values and sizes than the given ones: outputs depend on them, and are correct there, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.core.errors import Deep5Error, OperatorError
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.inputs import contiguous, resized
from deep5.operators.checks.subject import Subject, refuses_size, specs
from deep5.operators.checks.truth import Truth
from deep5.operators.checks.values import REFERENCE, compare_with, compared, tolerance_of
from deep5.operators.contract import specs_of

__all__ = ["check_follows", "check_sizes"]


def check_follows(
    subject: Subject,
    fresh: Subject | None,
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    truth: Truth | None,
    into: Collector,
) -> None:
    """Check that other inputs of the same shapes give other outputs, and the same ones as another object.

    Args:
        subject: Runs the operator.
        fresh: The same for an unused copy of the operator; None if there is none.
        inputs: The given inputs.
        others: Other values with the same shapes and element types.
        truth: The expected outputs; marked as not informative if the operator's own run does not depend on its inputs.
        into: Receives a row.
    """
    if same_bits(inputs, others):  # all are empty, or all elements are equal
        return
    check = "forward, other values"
    with into.guarded(check):
        before, after = subject.forward(inputs), subject.forward(others)
        # The unused copy also runs on the given inputs, in its second call: the subject's first two calls had the same.
        if fresh is not None and not (
            same_bits(after, fresh.forward(others)) and same_bits(before, fresh.forward(contiguous(inputs)))
        ):
            into.say(
                check,
                "FAILED",
                f"{subject.name}.forward gives different bits for the same inputs where it ran on others of their "
                "shape before; allowed: the same bits; remedy: nothing kept from call to call",
            )
        elif not any(value.size for value in after) or not same_bits(before, after):
            into.say(check, "passed")
        elif truth is None or not truth.given:
            if truth is not None:
                truth.informative = False
            into.say(
                check,
                "not evaluated",
                "no output changed where all inputs did: right where it is constant, wrong where it keeps results; "
                f"only a reference can decide; {REFERENCE}",
            )
        else:
            parts = compared(after, truth.at(others), None, truth, others)
            into.compare(check, parts, tolerance_of(after, truth.precision, others))


def check_sizes(subject: Subject, inputs: Sequence[np.ndarray], truth: Truth, into: Collector) -> None:
    """Check forward with dimensions one smaller and one larger, if `specs` accepts them: loops often fail at
    remainders.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        truth: The expected outputs.
        into: Receives a row per accepted kind of size, or one that reports that there is none.
    """
    tried = 0
    done = set[int]()
    for step, changed, values in resized(inputs):
        if step in done:  # all dimensions at once
            continue
        which = "all dimensions" if len(changed) > 1 else f"dimension {changed[0]}"
        check = f"forward, {which} one {'more' if step > 0 else 'less'}"
        try:
            if subject.direct or not hasattr(subject.operator, "says_specs"):
                specs_of(subject.operator, specs(values))
        except OperatorError:
            raise
        except Deep5Error:
            continue
        if len(changed) > 1:
            done.add(step)
        tried += 1
        with into.guarded(check):
            try:
                got = subject.forward(values)
            except Deep5Error as error:
                if not refuses_size(subject, error, values):
                    raise
                into.say(check, "refused", str(error).split("\n", 1)[0])
                continue
            compare_with(truth, check, got, values, truth.at(values), into)
    if not tried and any(extent > 1 for value in inputs for extent in value.shape):
        into.say("forward, other sizes", "not evaluated", "it takes none that are one less or one more: only these")
