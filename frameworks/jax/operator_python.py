"""Python operators on JAX: their array code on JAX arrays, their backward as the gradient rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported, brief
from deep5.core.operator import Operator
from deep5.operators.contract import (
    Expectations,
    check_gradients,
    check_outputs,
    is_floating,
    name_of,
    several,
)

__all__ = ["Forward", "differentiable", "native_arrays", "python_operator"]

Outputs = tuple[Any, ...]
Forward = Callable[[Sequence[Any]], Outputs]
Backward = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[bool]], Sequence[Any]]

# The class of concrete arrays. Testing for jax.Array, which includes tracers, takes ten times as long.
_ARRAY = type(jnp.zeros(()))
# JAX's tracing errors for code that reads the values of an array.
_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


def python_operator(operator: Operator) -> Callable[..., Outputs]:
    """An operator whose methods receive JAX arrays, traced or not.

    Calls check the operator's contract, inside `jax.jit` during tracing.

    Args:
        operator: The operator.

    Returns:
        A function of arrays that returns a tuple of arrays, differentiable in reverse mode; to any order that the code
        of `backward` allows.
    """
    expectations = Expectations(operator)
    # The user is responsible for traced arrays that the user's code stored in the operator.
    given = {id(value) for value in _traced(operator).values()}

    def forward(inputs: Sequence[Any]) -> Outputs:
        expected = expectations(inputs)
        try:
            outputs = several(operator.forward(*inputs))
        except Exception as error:
            raise _failed(operator, "forward", error) from error
        for number, value in enumerate(outputs):
            _check_native(operator, "forward", f"output {number}", value)
        check_outputs(operator, outputs, expected)
        return outputs

    def backward(
        output_grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], needs: Sequence[bool]
    ) -> Outputs:
        kept = [name for name, value in _traced(operator).items() if id(value) not in given]
        if kept:
            raise OperatorError(
                f"{name_of(operator)}.forward keeps an array that JAX traces, in {', '.join(kept)}; allowed: nothing "
                "that is kept between forward and backward; remedy: the inputs and outputs that backward gets"
            )
        try:
            gradients = operator.backward(output_grads, inputs, outputs, needs)
        except Exception as error:
            raise _failed(operator, "backward", error) from error
        found = check_gradients(operator, gradients, inputs, needs)
        for number, value in enumerate(found):
            if value is not None:
                _check_native(operator, "backward", f"the gradient by input {number}", value)
        return found

    return differentiable(forward, backward)


def differentiable(forward: Forward, backward: Backward) -> Callable[..., Outputs]:
    """A function with its own gradient rule (`jax.custom_vjp`), traced with 64-bit types.

    Args:
        forward: Returns the outputs.
        backward: Returns one gradient per input, None where none is needed, from the output gradients (None for outputs
            that are not floating-point), the inputs, the outputs, and which inputs need a gradient.
    """

    @jax.custom_vjp  # type: ignore[untyped-decorator]  # jax is not type-checked
    def apply(*inputs: Any) -> Outputs:
        with jax.enable_x64(True):
            return forward(inputs)

    def run(*primals: Any) -> tuple[Outputs, Any]:
        inputs = tuple(_jax_array(primal.value) for primal in primals)
        # Through `apply`, so that differentiating again uses `backward` again, not the inside of `forward`.
        outputs = apply(*inputs)
        # JAX keeps the structure of the residuals unchanged, but would convert a bool to an array.
        needs = tuple(
            () if primal.perturbed and is_floating(value.dtype.name) else None
            for primal, value in zip(primals, inputs, strict=True)
        )
        return outputs, (inputs, outputs, needs)

    def pull(kept: Any, output_grads: Any) -> Outputs:
        inputs, outputs, marks = kept
        needs = tuple(mark is not None for mark in marks)
        if not any(needs):
            return (None,) * len(inputs)
        with jax.enable_x64(True):
            given = [
                None
                if not is_floating(value.dtype.name)
                else jnp.zeros(value.shape, value.dtype)
                if isinstance(gradient, SymbolicZero)
                else gradient
                for gradient, value in zip(output_grads, outputs, strict=True)
            ]
            return tuple(backward(given, inputs, outputs, needs))

    apply.defvjp(run, pull, symbolic_zeros=True)
    made: Callable[..., Outputs] = apply
    return made


def _jax_array(value: Any) -> Any:
    """The value as a JAX array: JAX passes NumPy arrays through differentiation unchanged."""
    if isinstance(value, jax.Array):
        return value
    with jax.enable_x64(True):
        return jnp.array(value)


def native_arrays(operator: Operator, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs if they are JAX arrays; copies of NumPy arrays, keeping 64-bit types.

    Raises:
        ShapeError: An input is something else.
    """
    for value in inputs:
        if type(value) is not _ARRAY and not isinstance(value, jax.Array):
            break
    else:
        return inputs
    return [_native(operator, number, value) for number, value in enumerate(inputs)]


def _native(operator: Operator, number: int, value: Any) -> Any:
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            array = np.asarray(value)
            with jax.enable_x64(True):
                return jnp.array(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
        except TypeError as error:
            raise ShapeError(
                f"{name_of(operator)}: input {number}: got an array of {value.dtype}, which JAX cannot take ({error}); "
                "allowed: arrays of numbers"
            ) from error
    raise ShapeError(
        f"{name_of(operator)}: got {type(value).__name__} as input {number}; allowed: an array of JAX or NumPy; "
        "remedy: jax.numpy.asarray(…)"
    )


def _check_native(operator: Operator, method: str, what: str, value: Any) -> None:
    if not isinstance(value, jax.Array):
        raise OperatorError(
            f"{name_of(operator)}.{method} returned {brief(value)} as {what}; allowed: an array of JAX, as its inputs "
            "are; remedy: the functions of deep5.array_namespace(…)"
        )


def _traced(operator: Operator) -> dict[str, Any]:
    """Traced arrays in an operator's attributes, by name; directly, or inside a list or a dictionary."""
    found = {}
    for name, value in vars(operator).items():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        found.update({f"self.{name}": part for part in parts if isinstance(part, jax.core.Tracer)})
    return found


def _failed(operator: Operator, method: str, error: Exception) -> Exception:
    name = f"{name_of(operator)}.{method}"
    if isinstance(error, Deep5Error):
        return error
    if isinstance(error, _UNTRACEABLE):
        return Unsupported(
            f"{name} cannot be traced by JAX ({type(error).__name__}): what it calls and returns must not depend on "
            "the values of its inputs, and must be JAX's; remedy: the functions of deep5.array_namespace(…), or run "
            "it outside of jax.jit"
        )
    return OperatorError(f"{name} raised {type(error).__name__}: {error}")
