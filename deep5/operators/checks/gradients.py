"""Checks of backward other than its derivatives: element types, layouts, empty inputs, `array_api_strict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, OperatorError
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.inputs import LAYOUTS, cast, floating, widened, without_elements
from deep5.operators.checks.subject import Subject, breaks
from deep5.operators.checks.tolerance import Condition, condition, deviation, epsilon, jumps, tolerance_text
from deep5.operators.checks.values import run_in
from deep5.operators.contract import check_gradients, check_outputs, is_floating, several, spec_of, specs_of

__all__ = ["check_backward_dtypes", "check_backward_empty", "check_backward_layouts", "check_strict", "cotangents"]

# A gradient that is smaller than its terms by this factor is what remained of them.
_CANCELS = 1e-3


def cotangents(outputs: Sequence[np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray | None, ...]:
    """Random output gradients in the outputs' element types; None for outputs that are not floating-point."""
    return tuple(
        np.asarray(rng.standard_normal(np.shape(value))).astype(value.dtype) if is_floating(str(value.dtype)) else None
        for value in outputs
    )


def check_backward_dtypes(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    dtypes: Sequence[str],
    requested: bool,
    right: Subject,
    into: Collector,
) -> None:
    """Compare backward in lower precision with backward in float64, which was checked by differences.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        dtypes: Element types of the floating-point inputs, one at a time.
        requested: Whether the user requested these types, so that none may be rejected.
        right: Computes the gradients in float64.
        into: Receives a row per type.
    """
    rng, own = np.random.default_rng(1), _own(inputs)
    for dtype in dtypes:
        check = f"backward, {dtype}, against float64"
        if dtype == "float64":
            continue
        values = cast(inputs, dtype)
        needs, may_refuse = floating(values), not requested and dtype != own
        with into.guarded(check):
            outputs = run_in(subject, lambda values=values: subject.forward(values), dtype, may_refuse, check, into)  # type: ignore[misc]
            if outputs is None:
                continue
            grads = cotangents(outputs, rng)
            got = run_in(
                subject,
                lambda values=values, grads=grads, needs=needs: subject.gradients(values, grads, needs),  # type: ignore[misc]
                dtype,
                may_refuse,
                check,
                into,
            )
            if got is None:
                continue
            known, moved = _gradient_condition(right, values, grads, needs, dtype)
            into.compare(check, _by_input(got, known, moved, dtype), tolerance_text(dtype))


def check_backward_layouts(subject: Subject, inputs: Sequence[np.ndarray], right: Subject, into: Collector) -> None:
    """Check backward on inputs and output gradients in other layouts: the same up to the order of sums."""
    if not any(value.ndim and value.size for value in inputs):
        return
    needs = floating(inputs)
    grads = cotangents(subject.forward(inputs), np.random.default_rng(2))
    plain = subject.gradients(inputs, grads, needs)
    for layout, lay in LAYOUTS.items():
        if layout == "first axis last" and not any(value.ndim > 2 for value in inputs):
            continue
        with into.guarded(check := f"backward, memory in {layout}" if "order" in layout else f"backward, {layout}"):
            # A kept result would be another.
            subject.gradients(inputs, [None if grad is None else -grad for grad in grads], needs)
            got = subject.gradients(
                [lay(value) if value.ndim else value for value in inputs],
                [None if grad is None else lay(grad) if grad.ndim else grad for grad in grads],
                needs,
            )
            _same(check, got, plain, right, inputs, grads, into)
    # Frameworks store the gradient of a sum as one number, broadcast with zero strides.
    ones = [None if grad is None else np.ones_like(grad) for grad in grads]
    one = [None if grad is None else np.broadcast_to(np.ones((), grad.dtype), grad.shape) for grad in grads]
    with into.guarded(check := "backward, strides of 0"):
        plain = subject.gradients(inputs, ones, needs)
        _same(check, subject.gradients(inputs, one, needs), plain, right, inputs, ones, into)


def _same(
    check: str,
    got: Sequence[np.ndarray | None],
    plain: Sequence[np.ndarray | None],
    right: Subject,
    inputs: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    into: Collector,
) -> None:
    """Compare gradients with those of contiguous memory."""
    if same_bits(got, plain):
        into.same(check)
        return
    known, _ = _gradient_condition(right, inputs, grads, floating(inputs), _own(inputs))
    parts, place = [], 0
    for number, (value, want) in enumerate(zip(got, plain, strict=True)):
        if value is None or want is None:
            continue
        scale = known.scale(place)
        place += 1
        parts.append((f"gradient by input {number}", deviation(value, want, scale, twice=True)))
    into.compare(check, parts, f"against contiguous memory; {tolerance_text(_own(inputs), twice=True)}", itself=True)


def check_backward_empty(subject: Subject, inputs: Sequence[np.ndarray], into: Collector) -> None:
    """Check that backward accepts empty inputs if forward does."""
    for extent, leading, values in without_elements(inputs):
        check = f"backward, dimension {extent} cut to 0"
        try:
            outputs = subject.forward(values)
        except Deep5Error as error:
            into.say(check, "FAILED" if breaks(subject, error) else "refused", str(error).split("\n", 1)[0])
            continue
        strict = leading and not any(value.size for value in outputs)
        grads = [np.ones_like(value) if is_floating(str(value.dtype)) else None for value in outputs]
        try:
            subject.gradients(values, grads, floating(values))
        except Deep5Error as error:
            failed = isinstance(error, OperatorError) and (strict or breaks(subject, error))
            into.say(check, "FAILED" if failed else "refused", str(error).split("\n", 1)[0])
        else:
            into.say(check, "passed")


def check_strict(subject: Subject, inputs: Sequence[np.ndarray], backward: bool, into: Collector) -> None:
    """Run a Python operator on arrays of `array_api_strict`, where anything outside the array standard fails.

    Args:
        subject: Runs the operator on NumPy arrays.
        inputs: The given inputs; float16 and bfloat16, which the standard does not have, become float32.
        backward: Whether to run backward instead of forward.
        into: Receives a row.
    """
    import array_api_strict

    operator, name = subject.operator, f"{subject.name}.{'backward' if backward else 'forward'}"
    own = _own(inputs)
    values = cast(inputs, own if own in ("float32", "float64") else "float32")
    check = f"{'backward' if backward else 'forward'} under array_api_strict"
    outputs = subject.forward(values)
    grads = cotangents(outputs, np.random.default_rng(3))
    needs = floating(values)
    made = [array_api_strict.asarray(value) for value in values]
    try:
        with np.errstate(all="ignore"):
            strict = several(operator.forward(*made))
            found = _plain(strict, made)
            check_outputs(operator, found, specs_of(operator, [spec_of(value) for value in values]))
            if backward:
                given = [None if grad is None else array_api_strict.asarray(grad) for grad in grads]
                gradients = operator.backward(given, made, strict, needs)
                found = check_gradients(operator, _plain(gradients, made), values, needs)
    except Exception as error:
        reported = str(error) if isinstance(error, Deep5Error) else f"{type(error).__name__}: {error}"
        into.say(
            check,
            "FAILED",
            f"{name} does not run on arrays of the array API standard: {reported}; allowed: functions of "
            "d5.array_namespace(…) only, so that every framework runs them; remedy: see "
            "https://data-apis.org/array-api, or strict=False",
        )
        return
    expected = subject.gradients(values, grads, needs) if backward else outputs
    with into.guarded(check):
        parts = []
        for number, (value, want) in enumerate(zip(found, expected, strict=True)):
            if value is None or want is None:
                continue
            wide = np.asarray(want)
            scale = np.abs(wide).astype(float) if is_floating(str(wide.dtype)) else None
            # NumPy computes both; only functions that the namespaces implement differently may round differently.
            if scale is not None and scale.size:
                scale = scale + float(np.max(np.where(np.isfinite(scale), scale, 0.0)))
            parts.append(
                (f"{'gradient by input' if backward else 'output'} {number}", deviation(np.asarray(value), wide, scale))
            )
        into.compare(check, parts, "against NumPy: 8 eps (|y| + max |y|)", itself=True)


def _plain(made: Any, inputs: Sequence[Any]) -> Any:
    """Strict arrays as NumPy arrays; anything else is an error."""
    if not isinstance(made, (tuple, list)):
        return made
    for value in made:
        if value is not None and not isinstance(value, type(inputs[0])):
            raise TypeError(
                f"it returned {type(value).__module__}.{type(value).__name__}, not an array of the same kind"
            )
    return tuple(None if value is None else np.asarray(value) for value in made)


def _gradient_condition(
    right: Subject,
    inputs: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    needs: Sequence[bool],
    dtype: str,
) -> tuple[Condition, Sequence[np.ndarray]]:
    """Gradients in float64, their condition, and where rounding decides comparisons.

    Backward is a function of inputs, output gradients and outputs, each of which was rounded. Outputs follow the
    inputs, and are also perturbed on their own, except where backward tests them for equality.
    """
    rng = np.random.default_rng(0)
    values = widened(inputs)
    wide = [grad.astype(np.float64) for grad in grads if grad is not None]
    count = len(values)

    def by_output(given: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        left = iter(given)
        return [None if grad is None else next(left) for grad in grads]

    def whole(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = right.gradients(given[:count], by_output(given[count:]), needs)
        return [value for value in found if value is not None]

    known = condition(whole, (*values, *wide), rng)
    moved = jumps(whole, (*values, *wide), known, epsilon(dtype), rng)
    outputs = right.forward(values)

    def of_outputs(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = right.pull(values, given, by_output(wide), needs)
        return [value for value in found if value is not None]

    totals = []
    if right.direct:
        own = condition(of_outputs, outputs, rng)
        parts = [own.scale(place) - np.abs(own.values[place]) for place in range(len(own.values))]
    else:
        # A framework's own derivative may depend on its outputs, which cannot be perturbed: use the largest value
        # instead.
        parts = [np.full(np.shape(value), np.max(np.abs(value), initial=0.0)) for value in known.values]
    for value, total, part in zip(known.values, known.total, parts, strict=True):
        largest = float(np.max(np.abs(np.where(np.isfinite(value), value, 0.0)), initial=0.0))
        smooth = np.isfinite(part) & (part < 1e6 * largest)
        totals.append(None if total is None else total + np.where(smooth, part, 0.0))
    pulled = [np.abs(value * grad) for value, grad in zip(outputs, by_output(wide), strict=True) if grad is not None]
    largest = max((float(np.max(each, initial=0.0, where=np.isfinite(each))) for each in pulled), default=0.0)
    moved_inputs = [value for value, wanted in zip(values, needs, strict=True) if wanted]
    for place, (value, moved_by) in enumerate(zip(known.values, moved_inputs, strict=True)):
        # If a function hardly depends on an input, as a normalization of one element, its gradient is the difference of
        # terms of the size dy y / x, which are rounded.
        terms = largest / max(float(np.sqrt(np.mean(np.square(moved_by)))) if moved_by.size else 0.0, 1e-300)
        total = totals[place]
        if total is not None and np.isfinite(terms) and np.all(np.abs(value) < _CANCELS * terms):
            totals[place] = np.maximum(total, terms)
    return replace(known, total=tuple(totals)), moved


def _by_input(got: Sequence[Any], known: Condition, moved: Sequence[np.ndarray], dtype: str) -> list[tuple[str, Any]]:
    """Compare every gradient with float64; that of an input with a finer type is only as accurate as the inputs of
    `dtype` that it depends on.
    """
    numbers = [number for number, value in enumerate(got) if value is not None]
    return [
        (
            f"gradient by input {number}",
            deviation(
                got[number],
                known.values[place],
                known.scale(place) * max(1.0, epsilon(dtype) / epsilon(str(got[number].dtype))),
                moved[place],
            ),
        )
        for place, number in enumerate(numbers)
    ]


def _own(inputs: Sequence[np.ndarray]) -> str:
    return next((str(value.dtype) for value in inputs if is_floating(str(value.dtype))), "float64")
