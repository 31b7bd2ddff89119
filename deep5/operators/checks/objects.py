"""Checks that only the content of arrays matters, not which objects they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.gradients import cotangents
from deep5.operators.checks.inputs import contiguous, floating
from deep5.operators.checks.subject import Subject

__all__ = ["check_objects"]

Arrays = Sequence[np.ndarray]


def check_objects(subject: Subject, inputs: Arrays, others: Arrays, backward: bool, into: Collector) -> None:
    """Check that results follow when a caller writes to the same input arrays, and if one array is two inputs.

    Args:
        subject: Runs the operator; only its own methods get the caller's arrays.
        inputs: The given inputs.
        others: Other values with the same shapes and element types.
        backward: Whether to check backward instead of forward.
        into: Receives a row each.
    """
    if not subject.direct:
        return
    name = "backward" if backward else "forward"
    run = _backward(subject) if backward else subject.forward

    def same(check: str, found: Sequence[Any], expected: Sequence[Any], when: str) -> None:
        into.require(
            same_bits(found, expected),
            check,
            f"{subject.name}.{name} gives different bits {when}; allowed: the same bits as for copies; remedy: use the "
            "content of arrays, nothing kept for an array, and not whether two are the same",
        )

    with into.guarded(check := f"{name}, inputs that are written to"):
        arrays = contiguous(inputs)
        run(arrays)
        for value, new in zip(arrays, others, strict=True):
            value[...] = new
        same(check, run(arrays), run(contiguous(others)), "where its inputs were written to after an earlier call")
    first = next((value for value in inputs if value.size), None)
    if first is None or sum(_alike(value, first) for value in inputs) < 2:
        return
    one = [first if _alike(value, first) else value for value in inputs]
    with into.guarded(check := f"{name}, one array as several inputs"):
        try:
            expected = run(contiguous(one))
        except Deep5Error:  # equal inputs may be invalid
            return
        same(check, run(one), expected, "where several inputs are the same array")


def _alike(value: np.ndarray, first: np.ndarray) -> bool:
    return value.shape == first.shape and value.dtype == first.dtype


def _backward(subject: Subject) -> Callable[[Arrays], Sequence[Any]]:
    def run(inputs: Arrays) -> Sequence[Any]:
        grads = cotangents(subject.forward(inputs), np.random.default_rng(7))
        return subject.gradients(inputs, grads, floating(inputs))

    return run
