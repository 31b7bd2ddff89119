"""Element types: promotion of arrays and numbers, and the types that a function accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported, brief
from deep5.networks.tracing.array import Emitter, TracedArray
from deep5.networks.tracing.extents import TracedExtent
from deep5.operators.contract import is_floating

__all__ = ["KINDS", "array_of", "cast", "floating", "kind_of", "operands", "promoted"]

KINDS = {"bool": "truth values", "integer": "integers", "float": "floating-point numbers"}


def kind_of(dtype: np.dtype[Any]) -> str:
    """One of `KINDS`."""
    if dtype.kind in "biu":
        return "bool" if dtype.kind == "b" else "integer"
    if is_floating(str(dtype)):
        return "float"
    raise Unsupported(f"arrays of {dtype}; allowed: {', '.join(KINDS.values())}")


def floating(dtype: np.dtype[Any]) -> bool:
    """Whether the type is floating-point."""
    return kind_of(dtype) == "float"


def array_of(trace: Emitter, value: Any) -> TracedArray:
    """The value as an array of the trace; a NumPy array becomes a constant.

    Raises:
        Unsupported: It is not an array.
    """
    if isinstance(value, TracedArray):
        if value.trace is not trace:
            raise Unsupported("it uses an array of an earlier call; allowed: what this call got; remedy: keep none")
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        kind_of(value.dtype)
        return trace.constant(value)
    raise Unsupported(f"got {brief(value)}; allowed: an array; remedy: xp.asarray({brief(value)}, dtype=x.dtype)")


def cast(x: TracedArray, dtype: np.dtype[Any]) -> TracedArray:
    """The array in another element type; the array itself if it has that type."""
    if x.dtype == dtype:
        return x
    return x.trace.emit("Cast", [x], dtype, x.shape, to=int(ir.DataType.from_numpy(dtype)))


def promoted(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The element type of a result, by the standard's table.

    The standard does not define the promotion of integers with floating-point types, and libraries differ: it is an
    error if NumPy would widen the floating-point type.

    Raises:
        Unsupported: The standard does not define the promotion.
    """
    result = dtypes[0]
    for other in dtypes[1:]:
        made = np.promote_types(result, other)
        if made not in (result, other) and kind_of(result) != kind_of(other):
            raise Unsupported(_open(result, other))
        if kind_of(made) == "float" and "float" not in (kind_of(result), kind_of(other)):
            raise Unsupported(_open(result, other))
        result = made
    return result


def _open(left: np.dtype[Any], right: np.dtype[Any]) -> str:
    return (
        f"{left} meets {right}; allowed: pairs for which the array API standard has a result; remedy: "
        f"xp.astype(x, y.dtype)"
    )


def operands(trace: Emitter, function: str, values: tuple[Any, ...], *kinds: str) -> list[TracedArray]:
    """Arrays and Python numbers as arrays of one element type.

    A number gets the element type of the arrays: an integer any type but boolean, other numbers only a floating-point
    type.

    Args:
        trace: The trace of the arrays.
        function: Name of the function in messages.
        values: Arrays, numbers, and dimensions.
        kinds: The kinds in `KINDS` that the function accepts; all if none is given.

    Raises:
        Unsupported: There is no array among them, or one is of another kind.
    """
    numbers = [isinstance(value, (bool, int, float, TracedExtent)) for value in values]
    arrays = [array_of(trace, value) for value, number in zip(values, numbers, strict=True) if not number]
    if not arrays:
        raise Unsupported(f"{function} of only numbers; allowed: at least one array; remedy: xp.asarray")
    dtype = promoted(*(x.dtype for x in arrays))
    if kinds and kind_of(dtype) not in kinds:
        allowed = ", ".join(KINDS[kind] for kind in kinds)
        raise Unsupported(f"{function} of {', '.join(map(_called, arrays))}; allowed: {allowed}; remedy: xp.astype")
    left = iter(arrays)
    return [
        _number(trace, function, value, dtype) if number else cast(next(left), dtype)
        for value, number in zip(values, numbers, strict=True)
    ]


def _called(x: TracedArray) -> str:
    """The description of an array in messages, with its name if it is an input."""
    return f"{x}" if x.value.producer() in x.trace.nodes else f"{x} ({x.value.name!r})"


def _number(trace: Emitter, function: str, value: Any, dtype: np.dtype[Any]) -> TracedArray:
    if isinstance(value, TracedExtent):
        return trace.number(value, dtype)
    kind = kind_of(dtype)
    if (kind == "bool") != isinstance(value, bool) and (kind == "bool" or kind != "float"):
        fits = isinstance(value, int) and kind == "integer" and not isinstance(value, bool)
    else:
        fits = kind != "integer" or not isinstance(value, float)
    if not fits:
        raise Unsupported(f"{function} of {dtype} and the number {value!r}; allowed: a number of its kind")
    try:
        return trace.constant(np.asarray(value, dtype))
    except OverflowError as error:
        raise Unsupported(f"{function}: {dtype} has no {value!r}") from error
