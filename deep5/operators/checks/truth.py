"""`Truth`: the expected outputs, from a reference function, another framework, or the operator itself in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, Unsupported, UsageError
from deep5.operators.checks.inputs import widened
from deep5.operators.checks.subject import Subject, breaks, refuses_type, specs
from deep5.operators.checks.tolerance import Condition, condition, epsilon, jumps
from deep5.operators.contract import is_floating, several
from deep5.operators.native import NativeOperator

__all__ = ["IN_FLOAT64", "Truth", "own_dtype", "takes", "truth_of", "wide_subject"]

Function = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]

IN_FLOAT64 = (
    "remedy: build what holds weights in float64: module.double() in PyTorch, a Keras layer with dtype='float64', "
    "jax_enable_x64 in JAX"
)
"""The remedy for a framework's function that computes in lower precision."""


class Truth:
    """The source of expected outputs: a function of float64 arrays, its condition, and its name.

    Args:
        function: Takes floating-point inputs in float64, returns the outputs.
        name: Name for the user: `"float64"` for the operator's own run.
        given: Whether it is independent of the operator.
        precision: The element type in which it computes.
        smooth: A float64 equivalent for estimating the condition if `function` computes in lower precision, where small
            changes vanish by rounding. None: `function` itself.

    Attributes:
        informative: Whether a comparison is meaningful; false if the operator's own run gives the same result for all
            inputs.
    """

    def __init__(
        self, function: Function, name: str, *, given: bool, precision: str = "float64", smooth: Function | None = None
    ) -> None:
        self._function, self.name, self.given, self.precision = function, name, given, precision
        self._smooth = smooth
        self.informative = True
        self.rng = np.random.default_rng(0)

    def at(self, inputs: Sequence[np.ndarray]) -> Condition:
        """Values and condition for inputs of any element type."""
        wide = widened(inputs)
        if self._smooth is None:
            return condition(self, wide, self.rng)
        return replace(condition(self._smooth, wide, self.rng), values=tuple(map(np.array, self(wide))))

    def jumps(self, inputs: Sequence[np.ndarray], known: Condition, dtype: str) -> tuple[np.ndarray, ...]:
        """Where rounding decides; see `tolerance.jumps`."""
        wide = widened(inputs)
        if self._smooth is None:
            return jumps(self, wide, known, epsilon(dtype), self.rng)
        base = replace(known, values=tuple(self._smooth(wide)))
        return jumps(self._smooth, wide, base, epsilon(dtype), self.rng)

    def __call__(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The function's outputs, with NumPy's warnings silenced."""
        with np.errstate(all="ignore"):
            return self._function(inputs)


def own_dtype(inputs: Sequence[np.ndarray]) -> str:
    """The element type of the first floating-point input, or else of the first input."""
    return next(
        (str(x.dtype) for x in inputs if is_floating(str(x.dtype))), str(inputs[0].dtype) if inputs else "float64"
    )


def truth_of(
    subject: Subject,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    reference: Callable[..., Any] | None,
    against: str | None,
) -> Truth | None:
    """The expected outputs: from the reference, the other framework, or the operator's own run; None without float64.

    Args:
        subject: Runs the operator.
        inputs: The given inputs.
        outputs: The operator's outputs for them.
        reference: See `check_forward`.
        against: See `check_forward`.

    Raises:
        UsageError: The reference raises, or its outputs differ from the operator's in number, shape or type.
        OperatorError: The operator accepts float64, and fails there.
    """
    wide = widened(inputs)
    if reference is not None:
        name = str(getattr(reference, "__name__", "the reference"))
        function = _of_reference(reference, f"the reference {name} of {subject.name}")
        _check_reference(f"the reference {name}", function(wide), subject.name, outputs)
        return Truth(function, name, given=True)
    if against is not None:
        other = Subject(subject.operator, against)
        if takes(other, wide):
            return Truth(other.forward, other.framework, given=True)
        kinds = [str(value.dtype) for value in other.forward(_as(wide, inputs))]
        precision = max((kind for kind in kinds if is_floating(kind)), key=epsilon, default="float64")
        return Truth(
            lambda values: other.forward(_as(values, inputs)),
            other.framework,
            given=True,
            precision=precision,
            smooth=_smooth(subject, inputs),
        )
    try:
        right = wide_subject(subject, inputs)
    except Unsupported:  # any other error is a fault
        return None
    return Truth(right.forward, "float64" if right is subject else f"float64 on {right.framework}", given=False)


def _smooth(subject: Subject, inputs: Sequence[np.ndarray]) -> Function | None:
    """The operator's own run in float64; None if float64 is not accepted."""
    try:
        return wide_subject(subject, inputs).forward
    except Unsupported:
        return None


def _as(values: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Values cast to the element types of inputs."""
    return tuple(value.astype(given.dtype) for value, given in zip(values, inputs, strict=True))


def _of_reference(reference: Callable[..., Any], what: str) -> Function:
    def function(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        # Copies: a reference may modify its inputs, which must stay unchanged for the comparison.
        try:
            made = [np.asarray(value) for value in several(reference(*[value.copy() for value in inputs]))]
        except (Exception, SystemExit) as error:
            given = ", ".join(map(str, specs(inputs)))
            raise UsageError(
                f"{what} raised {type(error).__name__} for the inputs {given}: {error}; allowed: a function of as many "
                "NumPy arrays as the operator has inputs, floating-point ones in float64"
            ) from error
        for number, value in enumerate(made):
            if value.dtype.kind not in "biuf" or (is_floating(str(value.dtype)) and value.dtype != np.float64):
                raise UsageError(
                    f"{what} gives output {number} in {value.dtype}; allowed: float64, of float64 inputs, or "
                    "integers; remedy: return arrays, with no casts to lower precision"
                )
        return made

    return function


def _check_reference(what: str, made: Sequence[np.ndarray], name: str, outputs: Sequence[np.ndarray]) -> None:
    """Check that a reference's outputs match the operator's, whose outputs were checked against `specs`."""
    if len(made) != len(outputs):
        raise UsageError(
            f"{what} gives {len(made)} outputs; allowed: {len(outputs)}, as {name} does; remedy: return one array, or "
            "a tuple of one array per output"
        )
    for number, (value, own) in enumerate(zip(made, outputs, strict=True)):
        if value.shape != own.shape:
            raise UsageError(
                f"{what} gives output {number} of the shape {list(value.shape)}; allowed: {list(own.shape)}, as {name} "
                "does; remedy: fix whichever of the two is wrong"
            )


def takes(subject: Subject, inputs: Sequence[np.ndarray]) -> bool:
    """Whether an operator accepts float64 inputs, and computes in float64.

    Raises:
        OperatorError: It accepts them, and breaks its contract.
    """
    try:
        made = subject.forward(inputs)
    except Deep5Error as error:
        if breaks(subject, error):
            raise
        return False
    # A back-end may compute in float32 regardless of the inputs.
    return all(str(value.dtype) not in ("float16", "bfloat16", "float32") for value in made)


def wide_subject(subject: Subject, inputs: Sequence[np.ndarray]) -> Subject:
    """The subject that runs the operator in float64: its framework, or else NumPy.

    Raises:
        Unsupported: Neither does.
        OperatorError: The operator accepts float64, and fails there.
    """
    wide, operator = widened(inputs), subject.operator
    if takes(subject, wide):
        return subject
    native = isinstance(operator, NativeOperator)
    if not subject.direct and not native and not hasattr(operator, "op_type"):
        plain = Subject(operator, None)
        if takes(plain, wide):
            return plain
    try:
        subject.forward(wide)
        reported = "its outputs have lower precision"
    except Deep5Error as error:
        if not (native or refuses_type(subject, error)):
            raise
        reported = str(error)
    raise Unsupported(
        f"{subject.name} does not compute in float64 on {subject.framework} ({reported}); allowed: float64, for "
        f"differences{f'; {IN_FLOAT64}' if native else ''}"
    )
