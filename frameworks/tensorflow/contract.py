"""What operators are held to while TensorFlow traces them, where an extent or a whole shape may not be known yet."""

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
    """Shape and element type of a tensor, `?` for an extent that is not known; None where the rank is not known."""
    if value.shape.rank is None:
        return None
    shape = tuple(_UNKNOWN if extent is None else extent for extent in value.shape.as_list())
    return TensorSpec(shape=shape, dtype=value.dtype.name)


def known_extents(spec: TensorSpec) -> list[int | None]:
    """A shape as TensorFlow takes it: None for an extent that is not known."""
    return [extent if isinstance(extent, int) else None for extent in spec.shape]


def tensors(operator: Operator, values: Sequence[Any]) -> list[Any]:
    """The inputs of an operator as tensors.

    Raises:
        ShapeError: A value that TensorFlow makes no tensor of.
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
                f"{name_of(operator)}: got {type(value).__name__} as input {number}; allowed: a tensor, or what "
                f"TensorFlow makes one of ({error})"
            ) from error
    return made


class Expected:
    """What an operator's outputs are to be, by the shapes and element types of its inputs, which are looked up.

    Args:
        operator: The operator.
        ask: Gives the specifications of the outputs for those of the inputs.
    """

    def __init__(self, operator: Operator, ask: Callable[[Sequence[TensorSpec]], Specs] | None = None) -> None:
        self._operator = operator
        self._ask = ask if ask is not None else lambda specs: specs_of(operator, specs)
        self._known: dict[Any, Specs | None] = {}

    def __call__(self, inputs: Sequence[Any]) -> Specs | None:
        """The specifications; None where they do not follow from what is known of the inputs.

        Raises:
            ShapeError: Inputs that the operator does not take.
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
        except Deep5Error:  # it may only be that it compares an extent that nobody knows yet
            return None


def checked_outputs(operator: Operator, made: Any, expected: Specs | None) -> tuple[Any, ...]:
    """What `forward` returned, as a tuple of tensors, held against what `specs` said.

    Where a trace lost an extent that `specs` says, it is looked at when the graph runs.

    Raises:
        OperatorError: Something else than tensors, or another number, shape or element type.
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
    """Hold what `backward` returned against the inputs; one gradient an input, None where none was needed.

    Raises:
        OperatorError: Another number of gradients, none where one is needed, or one of another shape or element type.
    """
    check_gradients(operator, gradients, inputs, (False,) * len(inputs))  # their number
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
    """The tensor with what is known of its shape; checked when the graph runs, where the tensor itself knew less."""
    if value.shape.is_fully_defined() or shape.rank is None or value.shape == value.shape.merge_with(shape):
        return value
    return tf.ensure_shape(value, shape)


def _said(value: Any) -> str:
    return str(described(value) or f"{value.dtype.name} of a rank that is not known")
