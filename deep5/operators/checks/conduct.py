"""How an operator treats memory: inputs stay as they are, outputs are new and stay, twice the same is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.errors import Deep5Error, OperatorError
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.tolerance import epsilon

__all__ = ["check_backward_conduct", "check_forward_conduct", "check_needs", "same_bits"]


def same_bits(first: Sequence[np.ndarray | None], second: Sequence[np.ndarray | None]) -> bool:
    """Whether arrays are the same to the bit, NaN and the sign of zero included."""
    return all(_bits(a) == _bits(b) for a, b in zip(first, second, strict=True))


def check_forward_conduct(
    subject: Subject, inputs: Sequence[np.ndarray], others: Sequence[np.ndarray], into: Collector
) -> bool:
    """Call forward several times and look at all memory that it saw.

    Args:
        subject: Runs the operator.
        inputs: Contiguous; not changed.
        others: Of the same shapes and element types, with other values.
        into: Gets the rows.

    Returns:
        Whether inputs are left as they are.
    """
    name = f"{subject.name}.forward"
    native = subject.native([value.copy() for value in inputs])
    outputs = subject.run(native)
    wrong = _changed(subject, native, inputs, "input")
    left = into.require(
        not wrong,
        "inputs are not changed",
        f"{name} changed {', '.join(wrong)} in place; allowed: inputs that are left as they are; remedy: a copy first",
    )
    if subject.direct:
        shared = [
            f"output {number} shares memory with input {place}"
            for number, made in enumerate(outputs)
            for place, given in enumerate(native)
            if np.size(made) and np.shares_memory(made, given)
        ]
        into.require(
            not shared,
            "outputs are new memory",
            f"{name}: {', '.join(shared)}; allowed: new arrays, since whoever called it may write to either; remedy: "
            "return a copy",
        )
    first = [np.array(value) for value in subject.back(outputs)]
    again = subject.run(subject.native([value.copy() for value in inputs]))
    into.require(
        same_bits(first, subject.back(again)),
        "forward is repeatable",
        f"{name} gave other bits for the same inputs when it was called again; allowed: the same bits; remedy: no "
        "random numbers of its own, nothing kept from call to call, and sums in a fixed order",
    )
    subject.run(subject.native([value.copy() for value in others]))
    into.require(
        same_bits(first, subject.back(outputs)),
        "outputs are left alone",
        f"{name} wrote to the outputs of an earlier call when it was called again; allowed: outputs that nobody writes "
        "to once they were returned; remedy: a new array a call",
    )
    return left


def check_backward_conduct(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    needs: Sequence[bool],
    into: Collector,
) -> bool:
    """The same of backward; `grads` are the gradients by the outputs."""
    name = f"{subject.name}.backward"

    def given() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        made = iter(subject.native([grad.copy() for grad in grads if grad is not None]))
        return subject.native([value.copy() for value in inputs]), tuple(
            None if grad is None else next(made) for grad in grads
        )

    native, by_output = given()
    before = [np.array(value) for value in subject.back(subject.run(native))]
    outputs, found = subject.run_back(native, by_output, needs)
    check = "backward changes nothing it is given"
    wrong = _changed(subject, native, inputs, "input")
    kept = [(n, value) for n, value in enumerate(by_output) if value is not None]
    wrong += _changed(subject, [value for _, value in kept], [grads[n] for n, _ in kept], "gradient by output")
    if subject.direct:  # a framework may round otherwise where it differentiates
        wrong += _changed(subject, outputs, before, "output")
    left = into.require(
        not wrong,
        check,
        f"{name} changed {', '.join(wrong)} in place; allowed: memory that is left as it is; remedy: new arrays",
    )
    present = [value for value in found if value is not None]
    first = [np.array(value) for value in subject.back(present)]
    native, by_output = given()
    _, again = subject.run_back(native, by_output, needs)
    into.require(
        same_bits(first, subject.back([value for value in again if value is not None])),
        "backward is repeatable",
        f"{name} gave other bits for the same inputs when it was called again; allowed: the same bits; remedy: nothing "
        "kept from call to call, and sums in a fixed order",
    )
    subject.run_back(subject.native([value.copy() for value in others]), by_output, needs)
    into.require(
        same_bits(first, subject.back(present)),
        "gradients are left alone",
        f"{name} wrote to the gradients of an earlier call when it was called again; allowed: gradients that nobody "
        "writes to once they were returned; remedy: a new array a call",
    )
    return left


def check_needs(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    whole: Sequence[np.ndarray | None],
    into: Collector,
) -> None:
    """The gradient by one input is the same, whoever else wants one."""
    wanted = [number for number, value in enumerate(whole) if value is not None]
    if len(wanted) < 2:
        return
    for number in wanted:
        needs = tuple(place == number for place in range(len(inputs)))
        check = f"needs, input {number} alone"
        try:
            found = subject.gradients(inputs, grads, needs)[number]
        except Deep5Error as error:
            into.say(check, "FAILED", str(error))
            continue
        expected = whole[number]
        if found is None or expected is None:
            raise OperatorError(f"{subject.name}.backward returned no gradient by input {number} with needs={needs}")
        # Another way to the same sum may round otherwise; what is left out, or computed otherwise, is no rounding.
        room = min(1e3 * epsilon(str(expected.dtype)), 0.1)
        wide, got = expected.astype(float), found.astype(float)
        scale = float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))
        close = np.allclose(got, wide, rtol=room, atol=room * scale, equal_nan=True)
        into.require(
            close,
            check,
            f"{subject.name}.backward gives another gradient by input {number} with needs={needs} than where all "
            "inputs need one; allowed: the same; remedy: look at what is skipped where needs is false",
        )


def _changed(subject: Subject, native: Sequence[Any], values: Sequence[Any], what: str) -> list[str]:
    return [
        f"{what} {number}"
        for number, (now, before) in enumerate(zip(subject.back(native), values, strict=True))
        if not same_bits((now,), (before,))
    ]


def _bits(value: np.ndarray | None) -> bytes | None:
    return None if value is None else np.ascontiguousarray(value).tobytes()
