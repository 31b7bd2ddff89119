"""What a caller may ask of an operator's gradients: by which inputs, given which gradients by the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from deep5.core.errors import ShapeError
from deep5.core.tensors import Array, dtype_name
from deep5.operators.contract import is_floating, spec_of

__all__ = ["check_native", "check_output_grads", "wanted_gradients"]


def check_native(name: str, what: str, values: Sequence[Any], kind: Any, allowed: str) -> None:
    """Refuse what is no array of the framework's.

    Args:
        name: What messages call the operator.
        what: What they call a value: an input.
        values: As the caller gave them.
        kind: Of the framework's arrays.
        allowed: What they call one.

    Raises:
        ShapeError: One is none.
    """
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            raise ShapeError(
                f"{name}: got {type(value).__name__} as {what} {number}; allowed: {allowed}; remedy: executor.arrays(…)"
            )


def wanted_gradients(name: str, inputs: Sequence[Array], needs: Sequence[bool] | None) -> tuple[bool, ...]:
    """Which inputs want a gradient; all floating-point ones where `needs` is None.

    Args:
        name: What messages call the operator.
        inputs: Arrays of any library.
        needs: As the caller gave them.

    Raises:
        ShapeError: Another number of needs than inputs, or a gradient by whole numbers.
    """
    floating = tuple([_floating(value.dtype) for value in inputs])
    if needs is None:
        return floating
    wanted = tuple(map(bool, needs))
    if len(wanted) != len(inputs):
        raise ShapeError(f"{name}: got {len(wanted)} needs; allowed: one an input, {len(inputs)}")
    for number, (want, real) in enumerate(zip(wanted, floating, strict=True)):
        if want and not real:
            raise ShapeError(
                f"{name}: a gradient is asked for by input {number}, which is {spec_of(inputs[number]).dtype}; "
                "allowed: floating-point inputs"
            )
    return wanted


def check_output_grads(name: str, outputs: Sequence[Any], output_grads: Sequence[Any], kind: Any) -> list[Any]:
    """The gradients by the outputs; None by those that are no floating-point numbers.

    Args:
        name: What messages call the operator.
        outputs: Arrays of the library, or whatever else has their `shape` and `dtype`.
        output_grads: As the caller gave them.
        kind: Of the library's arrays.

    Raises:
        ShapeError: Another number, or one that is no such array, or of another shape or element type than its output.
    """
    if len(output_grads) != len(outputs):
        raise ShapeError(f"{name}: got {len(output_grads)} output_grads; allowed: one an output, {len(outputs)}")
    found: list[Any] = []
    for number, (value, gradient) in enumerate(zip(outputs, output_grads, strict=True)):
        floating = _floating(value.dtype)
        if floating and not (
            isinstance(gradient, kind) and (gradient.shape, gradient.dtype) == (value.shape, value.dtype)
        ):
            got = spec_of(gradient) if isinstance(gradient, kind) else "no array of the framework's"
            raise ShapeError(
                f"{name}: the gradient by output {number}: got {got}, expected {spec_of(value)}; remedy: an "
                "array like that output, as executor.arrays(…) gives it"
            )
        found.append(gradient if floating else None)
    return found


@lru_cache(maxsize=64)
def _floating(dtype: Any) -> bool:
    """Of an element type of any library; names are slow to make, and this is asked at every call."""
    return is_floating(dtype_name(dtype))
