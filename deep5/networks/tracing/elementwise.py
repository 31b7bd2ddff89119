"""Elementwise functions: arithmetic, powers, comparisons, logic, rounding.

Where an engine's operator and NumPy's function differ (a NaN in Max, the sign of Mod, a division by zero), the function
is composed of operators whose results ONNX and IEEE 754 define.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deep5.core.errors import Unsupported
from deep5.networks.tracing.array import Emitter, TracedArray
from deep5.networks.tracing.promotion import array_of, cast, floating, kind_of, operands, promoted
from deep5.networks.tracing.shapes import broadcast_shapes
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS", "joined", "number", "where"]

_BOOL, _NUMBERS = np.dtype(np.bool_), ("integer", "float")


def joined(op_type: str, x: TracedArray, y: TracedArray, dtype: Any = None) -> TracedArray:
    """A node of two arrays of one element type, broadcast to one shape."""
    return x.trace.emit(op_type, [x, y], dtype or x.dtype, broadcast_shapes(x.shape, y.shape))


def number(x: TracedArray, value: Any) -> TracedArray:
    """A number in the element type of an array."""
    return x.trace.constant(np.asarray(value, x.dtype))


def _one(name: str, op_type: str, *kinds: str, dtype: Any = None) -> Callable[..., TracedArray]:
    def function(trace: Trace, x: Any, /) -> Any:
        (x,) = operands(trace, name, (x,), *kinds)
        return trace.emit(op_type, [x], dtype or x.dtype, x.shape)

    return function


def _two(name: str, op_type: str, *kinds: str, dtype: Any = None) -> Callable[..., TracedArray]:
    def function(trace: Trace, x1: Any, x2: Any, /) -> Any:
        x, y = operands(trace, name, (x1, x2), *kinds)
        return joined(op_type, x, y, dtype)

    return function


def _swapped(name: str, op_type: str) -> Callable[..., TracedArray]:
    """x > y as y < x: in OpenVINO, every number compares greater than NaN, but none less."""

    def function(trace: Trace, x1: Any, x2: Any, /) -> Any:
        x, y = operands(trace, name, (x1, x2), *_NUMBERS)
        return joined(op_type, y, x, _BOOL)

    return function


def _whole(name: str, op_type: str) -> Callable[..., TracedArray]:
    """A rounding function; integers are unchanged."""

    def function(trace: Trace, x: Any, /) -> Any:
        (x,) = operands(trace, name, (x,), *_NUMBERS)
        return trace.emit(op_type, [x], x.dtype, x.shape) if floating(x.dtype) else x

    return function


def _bits(name: str, logical: str, bitwise: str) -> Callable[..., TracedArray]:
    def function(trace: Trace, *values: Any) -> Any:
        given = operands(trace, name, values, "bool", "integer")
        op_type = logical if given[0].dtype == _BOOL else bitwise
        return trace.emit(op_type, given, given[0].dtype, broadcast_shapes(*(x.shape for x in given)))

    return function


def _is(name: str, *, infinite: bool, missing: bool) -> Callable[..., TracedArray]:
    """Whether an element is infinite, or NaN; always false for integers."""

    def function(trace: Trace, x: Any, /) -> Any:
        x = array_of(trace, x)
        if kind_of(x.dtype) != "float":
            known = cast(x, _BOOL)
            return joined("Xor", known, known)  # false for all integers
        found = [
            trace.emit(op_type, [x], _BOOL, x.shape)
            for op_type, requested in (("IsInf", infinite), ("IsNaN", missing))
            if requested
        ]
        return found[0] if len(found) == 1 else joined("Or", *found)

    return function


def _isfinite(trace: Trace, x: Any, /) -> Any:
    return ~_is("isfinite", infinite=True, missing=True)(trace, x)


def _not_equal(trace: Trace, x1: Any, x2: Any, /) -> Any:
    x, y = operands(trace, "not_equal", (x1, x2))
    return ~joined("Equal", x, y, _BOOL)


def where(trace: Emitter, condition: Any, x1: Any, x2: Any, /) -> Any:
    """Elements of one array where a condition holds, and of the other elsewhere."""
    (condition,) = operands(trace, "where with a condition", (condition,), "bool")
    x1, x2 = operands(trace, "where", (x1, x2))
    if x1.dtype == _BOOL:  # engines select only numbers
        return (condition & x1) | (~condition & x2)
    shape = broadcast_shapes(condition.shape, x1.shape, x2.shape)
    return trace.emit("Where", [condition, x1, x2], x1.dtype, shape)


def _extreme(name: str, op_type: str) -> Callable[..., TracedArray]:
    """The larger or smaller of two; NaN where one is NaN, which not all engines' Max and Min propagate."""

    def function(trace: Trace, x1: Any, x2: Any, /) -> Any:
        known = [value for value in (x1, x2) if isinstance(value, (bool, int, float))]
        x, y = operands(trace, name, (x1, x2), *_NUMBERS)
        if not floating(x.dtype):
            return joined(op_type, x, y)
        if known and known[0] == known[0]:
            x, y = (y, x) if known[0] is x1 else (x, y)
            beyond = x < y if op_type == "Max" else x > y
            return where(trace, beyond, y, x)  # comparisons with NaN in x are false
        ahead = x >= y if op_type == "Max" else x <= y
        return where(trace, ahead | trace.namespace.isnan(x), x, y)

    return function


def _clip(trace: Trace, x: Any, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - the standard's names
    x = array_of(trace, x)
    x = x if min is None else _extreme("clip", "Max")(trace, x, min)
    return x if max is None else _extreme("clip", "Min")(trace, x, max)


def _sign(trace: Trace, x: Any, /) -> Any:
    (x,) = operands(trace, "sign", (x,), *_NUMBERS)
    found = trace.emit("Sign", [x], x.dtype, x.shape)
    return where(trace, trace.namespace.isnan(x), x, found) if floating(x.dtype) else found


def _trunc(trace: Trace, x: Any, /) -> Any:
    (x,) = operands(trace, "trunc", (x,), *_NUMBERS)
    return where(trace, x < 0, trace.namespace.ceil(x), trace.namespace.floor(x)) if floating(x.dtype) else x


def _negative(trace: Trace, x: Any, /) -> Any:
    (x,) = operands(trace, "negative", (x,), *_NUMBERS)
    if x.dtype.kind == "u":
        raise Unsupported(f"negative of {x.dtype}; allowed: numbers with a sign; remedy: xp.astype")
    return trace.emit("Neg", [x], x.dtype, x.shape)


def _signbit(trace: Trace, x: Any, /) -> Any:
    (x,) = operands(trace, "signbit", (x,), "float")
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _copysign(trace: Trace, x1: Any, x2: Any, /) -> Any:
    x, y = operands(trace, "copysign", (x1, x2), "float")
    size = trace.namespace.abs(x)
    return where(trace, _signbit(trace, y), -size, size)


def _astype(trace: Trace, x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    x, goal = array_of(trace, x), np.dtype(dtype)
    if goal == _BOOL and x.dtype != _BOOL:
        return _not_equal(trace, x, number(x, 0))
    return cast(x, goal)


def _result_type(trace: Trace, *given: Any) -> Any:
    """The common element type of arrays and types; Python numbers do not affect it."""
    dtypes = [value.dtype if hasattr(value, "dtype") else np.dtype(value) for value in given if _typed(value)]
    if not dtypes:
        raise Unsupported("result_type of only numbers; allowed: at least one array or element type")
    return promoted(*dtypes)


def _typed(value: Any) -> bool:
    return not isinstance(value, (bool, int, float))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _one("abs", "Abs", *_NUMBERS),
    "add": _two("add", "Add", *_NUMBERS),
    "astype": _astype,
    "bitwise_and": _bits("bitwise_and", "And", "BitwiseAnd"),
    "bitwise_invert": _bits("bitwise_invert", "Not", "BitwiseNot"),
    "bitwise_or": _bits("bitwise_or", "Or", "BitwiseOr"),
    "bitwise_xor": _bits("bitwise_xor", "Xor", "BitwiseXor"),
    "ceil": _whole("ceil", "Ceil"),
    "clip": _clip,
    "copysign": _copysign,
    "divide": _two("divide", "Div", "float"),
    "equal": _two("equal", "Equal", dtype=_BOOL),
    "floor": _whole("floor", "Floor"),
    "greater": _swapped("greater", "Less"),
    "greater_equal": _swapped("greater_equal", "LessOrEqual"),
    "isfinite": _isfinite,
    "isinf": _is("isinf", infinite=True, missing=False),
    "isnan": _is("isnan", infinite=False, missing=True),
    "less": _two("less", "Less", *_NUMBERS, dtype=_BOOL),
    "less_equal": _two("less_equal", "LessOrEqual", *_NUMBERS, dtype=_BOOL),
    "logical_and": _two("logical_and", "And", "bool"),
    "logical_not": _one("logical_not", "Not", "bool"),
    "logical_or": _two("logical_or", "Or", "bool"),
    "logical_xor": _two("logical_xor", "Xor", "bool"),
    "maximum": _extreme("maximum", "Max"),
    "minimum": _extreme("minimum", "Min"),
    "multiply": _two("multiply", "Mul", *_NUMBERS),
    "negative": _negative,
    "not_equal": _not_equal,
    "positive": lambda trace, x, /: operands(trace, "positive", (x,), *_NUMBERS)[0],
    "reciprocal": lambda trace, x, /: 1 / operands(trace, "reciprocal", (x,), "float")[0],
    "result_type": _result_type,
    "round": _whole("round", "Round"),
    "sign": _sign,
    "signbit": _signbit,
    "subtract": _two("subtract", "Sub", *_NUMBERS),
    "trunc": _trunc,
    "where": where,
}
