"""Contract checks of running operators: the number and shapes of outputs and gradients match the declared ones."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, brief
from deep5.core.memo import remember
from deep5.core.tensors import Array, TensorSpec, dtype_name

if TYPE_CHECKING:
    from deep5.core.operator import Operator

__all__ = [
    "ChangedElementType",
    "check_gradients",
    "check_inputs",
    "check_outputs",
    "gradient_inputs",
    "is_floating",
    "known",
    "name_of",
    "several",
    "spec_of",
    "specs_of",
]


class ChangedElementType(OperatorError):
    """A result of the declared shape in another floating-point element type than the declared one."""


def name_of(operator: Operator) -> str:
    """The name of an operator in messages."""
    return str(getattr(operator, "title", "") or type(operator).__name__)


def is_floating(dtype: str) -> bool:
    """Whether values of this element type have gradients.

    >>> is_floating("bfloat16"), is_floating("int64")
    (True, False)
    """
    return dtype.startswith(("float", "bfloat"))


def known(spec: TensorSpec) -> bool:
    """Whether all dimensions are integers; dimensions left open by a network or a framework are not.

    >>> known(TensorSpec(shape=(2, 3))), known(TensorSpec(shape=("N", 3)))
    (True, False)
    """
    return all(type(extent) is int for extent in spec.shape)


def spec_of(value: Array) -> TensorSpec:
    """The shape and element type of an array of any library."""
    return TensorSpec(shape=tuple(map(int, value.shape)), dtype=dtype_name(value.dtype))


def differing(message: str, got: TensorSpec, expected: TensorSpec) -> OperatorError:
    """The error for a result that is not as declared, with a remedy where only the floating-point element type differs.

    >>> float32, bfloat16 = TensorSpec(shape=(2,)), TensorSpec(shape=(2,), dtype="bfloat16")
    >>> type(differing("", float32, bfloat16)).__name__, type(differing("", float32, TensorSpec(shape=(3,)))).__name__
    ('ChangedElementType', 'OperatorError')
    """
    if expected.mismatch(got.shape, expected.dtype) or not (is_floating(got.dtype) and is_floating(expected.dtype)):  # type: ignore[arg-type]  # dimensions of an array are integers
        return OperatorError(message)
    return ChangedElementType(
        f"{message}; remedy: compute in the inputs' type, and make numbers arrays of it, as in "
        "xp.asarray(2.5, dtype=x.dtype)"
    )


def check_inputs(operator: Operator, count: int) -> None:
    """Check the number of inputs against the signature of `specs`.

    Raises:
        ShapeError: Too few or too many inputs.
    """
    try:
        inspect.signature(operator.specs).bind(*(None,) * count)
    except TypeError:
        taken = [p for p in inspect.signature(operator.specs).parameters.values() if p.kind is not p.VAR_POSITIONAL]
        names = ", ".join(parameter.name for parameter in taken)
        raise ShapeError(
            f"{name_of(operator)}: got {count} inputs; allowed: {len(taken)}, as its specs takes them ({names})"
        ) from None


def specs_of(operator: Operator, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
    """The output specifications of an operator for these inputs; None for one that is omitted.

    Raises:
        ShapeError: It does not accept this number of inputs.
        OperatorError: `specs` failed, or did not return TensorSpecs.
    """
    check_inputs(operator, len(inputs))
    given = ", ".join(map(str, inputs))
    try:
        outputs = operator.specs(*inputs)  # type: ignore[arg-type]  # None for an omitted input
    except Deep5Error:
        raise
    except Exception as error:
        raise OperatorError(
            f"{name_of(operator)}.specs raised {type(error).__name__} for the inputs {given}: {error}{_advice(inputs)}"
        ) from error
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(out, TensorSpec) for out in outputs):
        raise OperatorError(
            f"{name_of(operator)}.specs returned {brief(outputs)}; allowed: a tuple of at least one TensorSpec; "
            "remedy: return (x,), say, where the output is like the input x"
        )
    # If all input shapes are known, all output shapes must be.
    if all(known(spec) for spec in inputs if spec is not None):
        for number, spec in enumerate(outputs):
            extents: tuple[Any, ...] = spec.shape
            for extent in extents:
                if isinstance(extent, bool) or not isinstance(extent, Integral) or not 0 <= int(extent) < 1 << 63:
                    raise OperatorError(
                        f"{name_of(operator)}.specs: output {number} has the dimension {brief(extent)} for the inputs "
                        f"{given}; allowed: integers of at least 0"
                    )
    return outputs


def _advice(inputs: Sequence[TensorSpec | None]) -> str:
    """A remedy if `specs` failed for these inputs."""
    given = [spec for spec in inputs if spec is not None]
    names = sorted({str(extent) for spec in given for extent in spec.shape if isinstance(extent, str)})
    if not names:
        return "; remedy: raise d5.ShapeError(…) if it does not accept these inputs"
    return (
        f"; {', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} symbolic, known when the network runs; "
        "allowed: to pass a dimension on, and + - * // %; remedy: compare only numbers, as in isinstance(size, int) "
        "and size < 1, or give the network's inputs fixed shapes"
    )


def several(outputs: Any) -> tuple[Any, ...]:
    """The result of `forward` as a tuple."""
    if isinstance(outputs, tuple):
        return outputs
    return tuple(outputs) if isinstance(outputs, list) else (outputs,)


def check_outputs(operator: Operator, outputs: tuple[Any, ...], expected: Sequence[TensorSpec]) -> None:
    """Compare the outputs of `forward` with `specs`.

    Raises:
        OperatorError: The number, a shape or an element type differs.
    """
    name = name_of(operator)
    if len(outputs) != len(expected):
        raise OperatorError(
            f"{name}.forward returned {len(outputs)} outputs; allowed: {len(expected)}, as its specs says"
        )
    for number, (value, spec) in enumerate(zip(outputs, expected, strict=True)):
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise OperatorError(f"{name}.forward returned {brief(value)} as output {number}; allowed: an array, {spec}")
        got = spec_of(value)
        if reason := spec.mismatch(got.shape, got.dtype):  # type: ignore[arg-type]  # dimensions of an array are integers
            raise differing(f"{name}.forward: output {number}: {reason}, as its specs says", got, spec)


def check_gradients(
    operator: Operator, gradients: Any, inputs: Sequence[Any], needs: Sequence[bool]
) -> tuple[Any, ...]:
    """Compare the gradients of `backward` with the inputs.

    Returns:
        One gradient per input; None if not needed.

    Raises:
        OperatorError: The number of gradients is wrong, a needed one is missing, or one has a wrong shape or element
            type.
    """
    name = name_of(operator)
    if isinstance(gradients, list):
        gradients = tuple(gradients)
    if not isinstance(gradients, tuple):
        raise OperatorError(
            f"{name}.backward returned {type(gradients).__name__}; allowed: a tuple of gradients, one per input, "
            f"{len(inputs)}"
        )
    if len(gradients) != len(inputs):
        raise OperatorError(
            f"{name}.backward returned {len(gradients)} gradients; allowed: one per input, {len(inputs)}"
        )
    for number, (gradient, value, needed) in enumerate(zip(gradients, inputs, needs, strict=True)):
        if not needed:
            continue
        if gradient is None or not hasattr(gradient, "shape"):
            raise OperatorError(
                f"{name}.backward returned {brief(gradient)} as the gradient by input {number}; allowed: an array of "
                f"the input's shape, {list(value.shape)}"
            )
        if tuple(gradient.shape) != tuple(value.shape) or gradient.dtype != value.dtype:
            got, wanted = spec_of(gradient), spec_of(value)
            raise differing(f"{name}.backward: gradient by input {number}: got {got}, expected {wanted}", got, wanted)
    return tuple(gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True))


def gradient_inputs(operator: Operator, inputs: Sequence[TensorSpec]) -> tuple[bool, ...]:
    """Which inputs have a gradient: the floating-point ones."""
    return tuple(is_floating(spec.dtype) for spec in inputs)


class Expectations:
    """Cached output specifications of an operator, by the shapes and element types of its inputs.

    Args:
        operator: The operator.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._known: dict[Any, tuple[TensorSpec, ...]] = {}

    def __call__(self, inputs: Sequence[Array]) -> tuple[TensorSpec, ...]:
        """The output specifications for these inputs; raises as `specs_of`."""
        key = tuple([(value.shape, value.dtype) for value in inputs])
        found = self._known.get(key)
        if found is None:
            found = remember(self._known, key, specs_of(self._operator, [spec_of(value) for value in inputs]))
        return found
