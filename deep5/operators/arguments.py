"""Checks of the gradient arguments of operators: the needed input gradients, and the given output gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from deep5.core.errors import ShapeError
from deep5.core.tensors import Array, dtype_name
from deep5.operators.contract import is_floating, spec_of

__all__ = ["check_native", "check_output_grads", "wanted_gradients"]


def check_native(name: str, what: str, values: Sequence[Any], kind: Any, allowed: str) -> None:
    """Check that values are native arrays of the framework.

    Args:
        name: Name of the operator in messages.
        what: Name of a value in messages, such as an input.
        values: As passed by the caller.
        kind: Class of the framework's arrays.
        allowed: Name of such an array in messages.

    Raises:
        ShapeError: A value is not such an array.
    """
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            raise ShapeError(
                f"{name}: got {type(value).__name__} as {what} {number}; allowed: {allowed}; remedy: executor.arrays(…)"
            )


def wanted_gradients(name: str, inputs: Sequence[Array], needs: Sequence[bool] | None) -> tuple[bool, ...]:
    """Which inputs need a gradient; all floating-point ones if `needs` is None.

    Args:
        name: Name of the operator in messages.
        inputs: Arrays of any library.
        needs: As passed by the caller.

    Raises:
        ShapeError: The number of needs differs from that of inputs, or an integer input needs a gradient.
    """
    floating = tuple([_floating(value.dtype) for value in inputs])
    if needs is None:
        return floating
    wanted = tuple(map(bool, needs))
    if len(wanted) != len(inputs):
        raise ShapeError(f"{name}: got {len(wanted)} needs; allowed: one per input, {len(inputs)}")
    for number, (want, real) in enumerate(zip(wanted, floating, strict=True)):
        if want and not real:
            raise ShapeError(
                f"{name}: a gradient is requested by input {number}, which is {spec_of(inputs[number]).dtype}; "
                "allowed: floating-point inputs"
            )
    return wanted


def check_output_grads(name: str, outputs: Sequence[Any], output_grads: Sequence[Any], kind: Any) -> list[Any]:
    """The gradients of the outputs; None for those that are not floating-point.

    Args:
        name: Name of the operator in messages.
        outputs: Arrays of the library, or other objects with their `shape` and `dtype`.
        output_grads: As passed by the caller.
        kind: Class of the library's arrays.

    Raises:
        ShapeError: The number of gradients is wrong, or one is not such an array or differs from its output in shape or
            element type.
    """
    if len(output_grads) != len(outputs):
        raise ShapeError(f"{name}: got {len(output_grads)} output_grads; allowed: one per output, {len(outputs)}")
    found: list[Any] = []
    for number, (value, gradient) in enumerate(zip(outputs, output_grads, strict=True)):
        floating = _floating(value.dtype)
        if floating and not (
            isinstance(gradient, kind) and (gradient.shape, gradient.dtype) == (value.shape, value.dtype)
        ):
            got = spec_of(gradient) if isinstance(gradient, kind) else "no array of the framework"
            raise ShapeError(
                f"{name}: the gradient by output {number}: got {got}, expected {spec_of(value)}; remedy: an "
                "array like that output, as executor.arrays(…) gives it"
            )
        found.append(gradient if floating else None)
    return found


@lru_cache(maxsize=64)
def _floating(dtype: Any) -> bool:
    """Whether an element type of any library is floating-point; cached, since computing names is slow."""
    return is_floating(dtype_name(dtype))
