"""Checks of memory behavior: inputs stay unchanged, outputs are new and stay unchanged, calls are repeatable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.inputs import LAYOUTS, cast, floating
from deep5.operators.checks.repeats import share_memory
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.tolerance import epsilon
from deep5.operators.cpp import CppOperator

__all__ = [
    "check_backward_conduct",
    "check_forward_conduct",
    "check_needs",
    "check_nothing_kept",
    "check_repeats",
    "same_bits",
    "some_needs",
]

# Up to this many inputs, all combinations of needed gradients are tried.
_EVERY_WAY = 4
_THREADS = (
    "; in C++, threads that write to the same place (#pragma omp without a reduction) also give different bits "
    "from call to call"
)


def same_bits(first: Sequence[np.ndarray | None], second: Sequence[np.ndarray | None]) -> bool:
    """Whether arrays are bit-identical, including NaN and the sign of zero."""
    return all(_bits(a) == _bits(b) for a, b in zip(first, second, strict=True))


def check_forward_conduct(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    dtypes: Sequence[str],
    into: Collector,
) -> bool:
    """Call forward several times and check all memory passed to it or returned.

    Args:
        subject: Runs the operator.
        inputs: Contiguous arrays; not changed.
        others: Other values with the same shapes and element types.
        dtypes: Element types of floating-point inputs for which shared memory of outputs and inputs is checked.
        into: Receives the rows.

    Returns:
        Whether inputs stay unchanged.
    """
    name = f"{subject.name}.forward"
    elsewhere = _elsewhere(subject, inputs, dtypes) if subject.direct else ([], [])
    native = subject.native([value.copy() for value in inputs])
    outputs = subject.run(native)
    wrong = _changed(subject, native, inputs, "input") or elsewhere[0]
    left = into.require(
        not wrong,
        "inputs are not changed",
        f"{name} changed {_first(wrong)} in place; allowed: unchanged inputs; remedy: a copy first",
    )
    if subject.direct:
        shared = _shared(outputs, native) or elsewhere[1]
        into.require(
            not shared,
            "outputs are new memory",
            f"{name}: {_first(shared)}; allowed: new arrays, since the caller may write to either; remedy: "
            "return a copy",
        )
    first = [np.array(value) for value in subject.back(outputs)]
    again = subject.run(subject.native([value.copy() for value in inputs]))
    into.require(
        same_bits(first, subject.back(again)),
        "forward is repeatable",
        f"{name} gave different bits for the same inputs when it was called again; allowed: the same bits; remedy: no "
        f"random numbers, nothing kept from call to call, and sums in a fixed order{_threads(subject)}",
    )
    subject.run(subject.native([value.copy() for value in others]))
    into.require(
        same_bits(first, subject.back(outputs)),
        "returned outputs are not changed",
        f"{name} wrote to the outputs of an earlier call when it was called again; allowed: outputs that stay "
        "unchanged once returned; remedy: a new array per call",
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
    """The same for backward; `grads` are the output gradients.

    Faults of forward are reported as such: if the operator's own methods run directly, backward is called on the arrays
    that forward left; on a framework, which runs both, the result is compared with a run of forward only.
    """
    name = f"{subject.name}.backward"

    def given() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        made = iter(subject.native([grad.copy() for grad in grads if grad is not None]))
        return subject.native([value.copy() for value in inputs]), tuple(
            None if grad is None else next(made) for grad in grads
        )

    native, by_output = given()
    outputs = subject.run(native)
    before = [np.array(value) for value in subject.back(outputs)]
    after = [np.array(value) for value in subject.back(native)]
    again, _ = given()
    fault = _forward_at_fault(subject, inputs, after, before, subject.back(subject.run(again)))
    if fault:
        into.say("forward, before backward", "FAILED", fault)
        if not subject.direct:
            return False  # further faults cannot be attributed
    if subject.direct:
        found = subject.pull(native, outputs, by_output, needs)
    else:
        native, by_output = given()
        outputs, found = subject.run_back(native, by_output, needs)
    check = "arguments of backward are not changed"
    wrong = _changed(subject, native, after, "input")
    kept = [(n, value) for n, value in enumerate(by_output) if value is not None]
    wrong += _changed(subject, [value for _, value in kept], [grads[n] for n, _ in kept], "gradient by output")
    if subject.direct:  # a framework may round differently when it differentiates
        wrong += _changed(subject, outputs, before, "output")
    left = into.require(
        not wrong,
        check,
        f"{name} changed {', '.join(wrong)} in place; allowed: unchanged memory; remedy: new arrays",
    )
    present = [value for value in found if value is not None]
    first = [np.array(value) for value in subject.back(present)]
    native, by_output = given()
    if subject.direct:
        same = [value.copy() for value in after], [value.copy() for value in before]
        repeated = subject.pull(*same, by_output, needs)
    else:
        _, repeated = subject.run_back(native, by_output, needs)
    into.require(
        same_bits(first, subject.back([value for value in repeated if value is not None])),
        "backward is repeatable",
        f"{name} gave different bits for the same inputs when it was called again; allowed: the same bits; remedy: "
        f"nothing kept from call to call, and sums in a fixed order{_threads(subject)}",
    )
    subject.run_back(subject.native([value.copy() for value in others]), by_output, needs)
    into.require(
        same_bits(first, subject.back(present)),
        "returned gradients are not changed",
        f"{name} wrote to the gradients of an earlier call when it was called again; allowed: gradients that "
        "stay unchanged once returned; remedy: a new array per call",
    )
    return left and not fault


def _forward_at_fault(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    first: Sequence[np.ndarray],
    again: Sequence[np.ndarray],
) -> str:
    """Faults of forward that must not be attributed to backward; empty if there are none.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        after: The inputs after forward.
        first: Outputs of the first call.
        again: Outputs of a second call with the same inputs.
    """
    name, rest = f"{subject.name}.forward", "so that no gradient can be evaluated"
    changed = [
        f"input {number}"
        for number, (now, given) in enumerate(zip(after, inputs, strict=True))
        if not same_bits((now,), (given,))
    ]
    if changed:
        return f"{name} changed {_first(changed)} in place, {rest}; allowed: unchanged inputs; remedy: a copy first"
    if not same_bits(first, again):
        return (
            f"{name} gave different bits for the same inputs when it was called again, {rest}; allowed: the same bits; "
            "remedy: no random numbers, nothing kept from call to call, and sums in a fixed order"
            f"{_threads(subject)}"
        )
    return ""


def _threads(subject: Subject) -> str:
    """A possible cause of differences between calls."""
    return _THREADS if isinstance(subject.operator, CppOperator) else ""


def check_repeats(subject: Subject, into: Collector) -> None:
    """Check that all calls so far gave the same bits as earlier ones with the same arguments, in new memory, and had no
    other effect; a row for each, if one did not.
    """
    if differing := subject.differing():
        into.say(
            "all calls are repeatable",
            "FAILED",
            f"{subject.name} gave different bits in {len(differing)} calls whose arguments were those of an earlier "
            f"call: {_first(differing)}; allowed: the same bits in every call; remedy: nothing kept from call to call, "
            "and nothing that depends on the thread",
        )
    if changing := subject.changing():
        into.say(
            "the process's state is not changed",
            "FAILED",
            f"{subject.name} changed {', '.join(changing)}; allowed: no effect but the results; remedy: "
            "numpy.random.default_rng(seed), with numpy.errstate(…), or whatever else leaves it unchanged",
        )
    if sharing := subject.sharing():
        into.say(
            "all results are new memory",
            "FAILED",
            f"{subject.name}: {sharing[0]}, and in {len(sharing) - 1} further calls; allowed: new arrays, since the "
            "caller may write to each; only gradients may be gradients by outputs, or share memory with each other; "
            "remedy: return a copy",
        )


def check_nothing_kept(
    subject: Subject,
    fresh: Subject | None,
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    into: Collector,
) -> None:
    """Check that backward depends only on its arguments: an intermediate forward, or another object, makes no
    difference.

    Args:
        subject: Runs the operator on NumPy.
        fresh: The same for an unused copy of the operator; None if there is none.
        inputs: The given inputs.
        others: Other values with the same shapes and element types.
        grads: Output gradients.
        into: Receives a row.
    """
    check, needs = "forward keeps nothing for backward", floating(inputs)
    message = (
        f"{subject.name}.backward gives %s; allowed: nothing that forward keeps, since a framework calls forward many "
        "times before backward, or backward on another object; remedy: backward's own inputs and outputs"
    )
    try:
        outputs = subject.run(inputs)
        first = [None if value is None else np.array(value) for value in subject.pull(inputs, outputs, grads, needs)]
    except Deep5Error as error:
        into.say(check, "not evaluated", f"it does not run on NumPy: {str(error).splitlines()[0]}")
        return
    outputs = subject.run(inputs)
    subject.run(others)
    if not into.require(
        same_bits(first, subject.pull(inputs, outputs, grads, needs)),
        check,
        message % "different bits where forward ran on other inputs in between",
    ):
        return
    if fresh is not None:
        check = "backward on a new object"
        negative = [None if grad is None else -grad for grad in grads]
        try:
            found = fresh.pull(inputs, outputs, grads, needs)
            second = fresh.pull(inputs, outputs, negative, needs)
        except Deep5Error as error:
            into.say(check, "FAILED", message % f"an error on an object that has not run forward ({error})")
        else:
            same = same_bits(first, found) and same_bits(subject.pull(inputs, outputs, negative, needs), second)
            into.require(same, check, message % "different bits on an object that has not run forward")


def some_needs(needs: Sequence[bool]) -> Iterator[tuple[str, tuple[bool, ...]]]:
    """Proper subsets of the gradients to need, with their names; for more than four, each one and all but one.

    >>> [name for name, _ in some_needs((True, False, True))]
    ['input 0 only', 'input 2 only']
    """
    wanted = [number for number, need in enumerate(needs) if need]
    for count in range(1, len(wanted)):
        if len(wanted) > _EVERY_WAY and 1 < count < len(wanted) - 1:
            continue
        for chosen in itertools.combinations(wanted, count):
            name = f"input{'s' if count > 1 else ''} {' and '.join(map(str, chosen))} only"
            yield name, tuple(place in chosen for place in range(len(needs)))


def check_needs(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    whole: Sequence[np.ndarray | None],
    into: Collector,
) -> None:
    """Check that an input's gradient does not depend on which other gradients are needed."""
    for name, needs in some_needs([value is not None for value in whole]):
        check = f"needs, {name}"
        try:
            found = subject.gradients(inputs, grads, needs)
        except Deep5Error as error:
            into.say(check, "FAILED", str(error))
            continue
        other = [number for number, need in enumerate(needs) if need and not _close(found[number], whole[number])]
        into.require(
            not other,
            check,
            f"{subject.name}.backward gives another gradient by input {', '.join(map(str, other))} with needs={needs} "
            "than where all inputs need one; allowed: the same; remedy: look at what is skipped where needs is false",
        )


def _close(found: np.ndarray | None, expected: np.ndarray | None) -> bool:
    """Whether gradients agree up to the rounding of a sum in another order; larger differences are errors."""
    if found is None or expected is None:
        return False
    room = min(1e3 * epsilon(str(expected.dtype)), 0.1)
    wide, got = expected.astype(float), found.astype(float)
    scale = float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))
    return bool(np.allclose(got, wide, rtol=room, atol=room * scale, equal_nan=True))


def _elsewhere(subject: Subject, inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Inputs that forward changes, and inputs that share memory with outputs, in each element type and layout."""
    changed: list[str] = []
    shared: list[str] = []
    layouts: dict[str, Callable[[np.ndarray], np.ndarray]] = {"contiguous": np.asarray, **LAYOUTS}
    for dtype in dtypes:
        values = cast(inputs, dtype)
        for layout, lay in layouts.items():
            laid = [lay(value.copy()) if value.ndim and value.size else value.copy() for value in values]
            with suppress(Deep5Error):  # rejected types are reported by the checks of values
                shared += [f"{each} ({dtype}, {layout})" for each in _shared(subject.run(laid), laid)]
            changed += [f"{each} ({dtype}, {layout})" for each in _changed(subject, laid, values, "input")]
    return changed, shared


def _shared(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[str]:
    return [
        f"output {number} shares memory with input {place}"
        for number, made in enumerate(outputs)
        for place, given in enumerate(inputs)
        if np.size(made) and share_memory(made, given)
    ]


def _first(found: Sequence[str]) -> str:
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more


def _changed(subject: Subject, native: Sequence[Any], values: Sequence[Any], what: str) -> list[str]:
    return [
        f"{what} {number}"
        for number, (now, before) in enumerate(zip(subject.back(native), values, strict=True))
        if not same_bits((now,), (before,))
    ]


def _bits(value: np.ndarray | None) -> bytes | None:
    return None if value is None else np.ascontiguousarray(value).tobytes()
