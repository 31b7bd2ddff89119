"""Operators on sequences, which are lists of arrays, and on optional values: None holds nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deep5.core.errors import NetworkError
from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS"]

Values = Sequence[Array]


def _place(xp: Primitives, position: Array | None, count: int, default: int, beyond: int = 0) -> int:
    place: int = default if position is None else xp.number(position)
    if not -count <= place < count + beyond:
        raise NetworkError(f"the position {place} in a sequence of {count}; allowed: {-count} to {count - 1 + beyond}")
    return place + count if place < 0 else place


def _at(xp: Primitives, values: Values, position: Array) -> Array:
    return values[_place(xp, position, len(values), 0)]


def _construct(xp: Primitives, *values: Array) -> list[Array]:
    return list(values)


def _erased(xp: Primitives, values: Values, position: Array | None = None) -> list[Array]:
    place = _place(xp, position, len(values), -1)
    return [*values[:place], *values[place + 1 :]]


def _inserted(xp: Primitives, values: Values, value: Array, position: Array | None = None) -> list[Array]:
    place = _place(xp, position, len(values), len(values), 1)
    return [*values[:place], value, *values[place:]]


def _length(xp: Primitives, values: Values, *, place: Any) -> Array:
    return xp.full((), len(values), dtype=xp.int64, device=place)


def _mapped(
    xp: Primitives, first: Values, *inputs: Any, body: Callable[..., Sequence[Array]], outputs: int
) -> tuple[list[Array], ...]:
    """The body for each element of the first list and of all other lists."""
    rows = [body(value, *(x[at] if isinstance(x, list) else x for x in inputs)) for at, value in enumerate(first)]
    return tuple([row[column] for row in rows] for column in range(outputs))


def _concatenated(xp: Primitives, values: Values, *, axis: int, new_axis: int = 0) -> Array:
    if not values:
        raise NetworkError("ConcatFromSequence of an empty sequence; allowed: at least one tensor")
    return (xp.stack if new_axis else xp.concat)(list(values), axis=axis)


def _split(xp: Primitives, x: Array, sizes: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """Into parts of one size, of given sizes, or single elements."""
    extent = x.shape[axis]
    if sizes is None and not keepdims:
        return list(xp.unstack(x, axis=axis))
    if sizes is not None and sizes.ndim:
        given = [xp.number(each) for each in xp.unstack(sizes)]
        if sum(given) != extent or min(given, default=0) < 0:
            raise NetworkError(f"SplitToSequence into {given} of an axis of {extent}; allowed: sizes that add up")
    else:
        size = 1 if sizes is None else xp.number(sizes)
        if size < 1:
            raise NetworkError(f"SplitToSequence into parts of {size}; allowed: at least 1")
        given = [min(size, extent - start) for start in range(0, extent, size)]
    return list(xp.split(x, given, axis)) if given else []


def _optional(xp: Primitives, value: Any = None) -> Any:
    return value


def _held(xp: Primitives, value: Any) -> Any:
    if value is None:
        raise NetworkError(
            "OptionalGetElement of an optional value that holds nothing; allowed: one that holds a value"
        )
    return value


def _holds(xp: Primitives, value: Any = None, *, place: Any) -> Array:
    return xp.full((), value is not None, dtype=xp.bool, device=place)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ConcatFromSequence": _concatenated,
    "Optional": _optional,
    "OptionalGetElement": _held,
    "OptionalHasElement": _holds,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _construct,
    "SequenceErase": _erased,
    "SequenceInsert": _inserted,
    "SequenceLength": _length,
    "SequenceMap": _mapped,
    "SplitToSequence": _split,
}
OPERATORS = {op_type: Composite(function=function, on_host=True) for op_type, function in _FUNCTIONS.items()}
