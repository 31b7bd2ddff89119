"""Checks of operators while TensorFlow traces them, when a dimension or a whole shape may be unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, brief
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec
from deep5.networks.custom import Extent
from deep5.operators.contract import check_gradients, check_inputs, name_of, several, specs_of

__all__ = ["Expected", "checked_gradients", "checked_outputs", "described", "known_extents", "tensors"]

_UNKNOWN = Extent("?")

Specs = tuple[TensorSpec, ...]


def described(value: Any) -> TensorSpec | None:
    """Shape and dtype of a tensor, `?` for an unknown dimension; None if the rank is unknown."""
    if value.shape.rank is None:
        return None
    shape = tuple(_UNKNOWN if extent is None else extent for extent in value.shape.as_list())
    return TensorSpec(shape=shape, dtype=value.dtype.name)


def known_extents(spec: TensorSpec) -> list[int | None]:
    """A shape in TensorFlow's form: None for an unknown dimension."""
    return [extent if isinstance(extent, int) else None for extent in spec.shape]


def tensors(operator: Operator, values: Sequence[Any]) -> list[Any]:
    """The inputs of an operator as tensors.

    Raises:
        ShapeError: TensorFlow cannot convert a value to a tensor.
    """
    made = []
    for number, value in enumerate(values):
        if isinstance(value, tf.Tensor):
            made.append(value)
            continue
        try:
            made.append(tf.convert_to_tensor(value))
        except (TypeError, ValueError) as error:
            raise ShapeError(
                f"{name_of(operator)}: got {type(value).__name__} as input {number}; allowed: a tensor, or a "
                f"value that TensorFlow converts to one ({error})"
            ) from error
    return made


class Expected:
    """The expected outputs of an operator, looked up by the shapes and dtypes of its inputs.

    Args:
        operator: The operator.
        ask: Returns the output specs for given input specs.
    """

    def __init__(self, operator: Operator, ask: Callable[[Sequence[TensorSpec]], Specs] | None = None) -> None:
        self._operator = operator
        self._ask = ask if ask is not None else lambda specs: specs_of(operator, specs)
        self._known: dict[Any, Specs | None] = {}

    def __call__(self, inputs: Sequence[Any]) -> Specs | None:
        """The specs; None if the known parts of the inputs do not determine them.

        Raises:
            ShapeError: The operator does not accept the inputs.
            OperatorError: `specs` failed.
        """
        key = tuple([(value.shape, value.dtype) for value in inputs])
        try:
            return self._known[key]
        except KeyError:
            pass
        return remember(self._known, key, self._found(inputs))

    def _found(self, inputs: Sequence[Any]) -> Specs | None:
        check_inputs(self._operator, len(inputs))
        specs = [described(value) for value in inputs]
        given = [spec for spec in specs if spec is not None]
        if len(given) < len(specs):
            return None
        if all(value.shape.is_fully_defined() for value in inputs):
            return self._ask(given)
        try:
            return self._ask(given)
        except Deep5Error:  # the cause may be just a comparison with an unknown dimension
            return None


def checked_outputs(operator: Operator, made: Any, expected: Specs | None) -> tuple[Any, ...]:
    """The outputs of `forward` as a tuple of tensors, compared with the result of `specs`.

    If the trace lost a dimension that `specs` gives, the dimension is checked when the graph runs.

    Raises:
        OperatorError: An output is not a tensor, or the number, shape or dtype differs.
    """
    name, outputs = name_of(operator), several(made)
    if expected is not None and len(outputs) != len(expected):
        raise OperatorError(
            f"{name}.forward returned {len(outputs)} outputs; allowed: {len(expected)}, as its specs says"
        )
    found = []
    for number, value in enumerate(outputs):
        if not isinstance(value, tf.Tensor):
            raise OperatorError(
                f"{name}.forward returned {brief(value)} as output {number}; allowed: a tensor; remedy: the functions "
                "of d5.array_namespace(x)"
            )
        found.append(value if expected is None else _held(f"{name}.forward: output {number}", value, expected[number]))
    return tuple(found)


def checked_gradients(
    operator: Operator, gradients: Any, inputs: Sequence[Any], needs: Sequence[bool]
) -> tuple[Any, ...]:
    """Compare the result of `backward` with the inputs; returns one gradient per input, None where none was needed.

    Raises:
        OperatorError: The number of gradients differs, a needed one is None, or a shape or dtype differs.
    """
    check_gradients(operator, gradients, inputs, (False,) * len(inputs))  # checks the count
    name, found = name_of(operator), []
    for number, (gradient, value, needed) in enumerate(zip(gradients, inputs, needs, strict=True)):
        if needed and not isinstance(gradient, tf.Tensor):
            raise OperatorError(
                f"{name}.backward returned {brief(gradient)} as the gradient by input {number}; allowed: a tensor of "
                f"the input's shape, {value.shape}"
            )
        if needed and (gradient.dtype != value.dtype or not gradient.shape.is_compatible_with(value.shape)):
            raise OperatorError(
                f"{name}.backward: gradient by input {number}: got {_said(gradient)}, expected {_said(value)}"
            )
        found.append(_ensured(gradient, value.shape) if needed else None)
    return tuple(found)


def _held(what: str, value: Any, spec: TensorSpec) -> Any:
    shape = known_extents(spec)
    if value.dtype.name != spec.dtype:
        raise OperatorError(f"{what}: got dtype {value.dtype.name}, expected {spec.dtype}, as its specs says")
    if not value.shape.is_compatible_with(shape):
        raise OperatorError(f"{what}: got shape {_said(value)}, expected {spec}, as its specs says")
    return _ensured(value, tf.TensorShape(shape))


def _ensured(value: Any, shape: Any) -> Any:
    """The tensor with its known shape; where the tensor itself had less information, checked when the graph runs."""
    if value.shape.is_fully_defined() or shape.rank is None or value.shape == value.shape.merge_with(shape):
        return value
    return tf.ensure_shape(value, shape)


def _said(value: Any) -> str:
    return str(described(value) or f"{value.dtype.name} of a rank that is not known")
