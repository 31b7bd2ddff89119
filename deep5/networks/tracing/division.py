"""Integer division, remainders and powers with NumPy's results, regardless of the engine's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.elementwise import joined, number, where
from deep5.networks.tracing.promotion import cast, floating, operands
from deep5.networks.tracing.shapes import broadcast_shapes
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS"]

_NUMBERS = ("integer", "float")
# Integer powers up to this are products: exact for integers, and correct for negative bases on every engine.
_MOST_FACTORS = 64


def _remainder(trace: Trace, x1: Any, x2: Any, /) -> Any:
    """The remainder, with the divisor's sign; 0 for an integer modulo 0, as in NumPy, where engines fail."""
    x, y = operands(trace, "remainder", (x1, x2), *_NUMBERS)
    if not floating(x.dtype):
        return joined("Mod", x, _divisor(x, y, x2), x.dtype)
    return _modulo(x, y)[0]


def _modulo(x: TracedArray, y: TracedArray) -> tuple[TracedArray, TracedArray, TracedArray]:
    """The remainder, the result of C's fmod, and whether they differ."""
    trace = x.trace
    shape = broadcast_shapes(x.shape, y.shape)
    left = trace.emit("Mod", [x, y], x.dtype, shape, fmod=1)
    # Engines that compute x - y * trunc(x / y) give NaN for a finite number modulo infinity.
    left = where(trace, trace.namespace.isinf(y) & trace.namespace.isfinite(x), x, left)
    moved = (left != 0) & ((left < 0) ^ (y < 0))
    return where(trace, moved, left + y, left), left, moved


def _divisor(x: TracedArray, y: TracedArray, given: Any) -> Any:
    """A divisor without the values at which engines fail: 0, and -1, for which the quotient of the smallest integer
    overflows.
    """
    if isinstance(given, int) and given not in (0, -1):
        return y
    bad: Any = y == 0
    if x.dtype.kind == "i":
        bad = bad | (y == -1)
    return where(x.trace, bad, number(y, 1), y)


def _floor_divide(trace: Trace, x1: Any, x2: Any, /) -> Any:
    """As in NumPy: for integers 0 where the divisor is 0; for other numbers the rounded (x - remainder) / y."""
    x, y = operands(trace, "floor_divide", (x1, x2), *_NUMBERS)
    if floating(x.dtype):
        _, left, moved = _modulo(x, y)
        found = trace.namespace.round((x - left) / y) - cast(moved, x.dtype)
        return where(trace, y == 0, x / y, found)
    divisor = _divisor(x, y, x2)
    quotient = joined("Div", x, divisor)
    if x.dtype.kind == "i":
        left = x - quotient * divisor
        moved = (left != 0) & ((left < 0) ^ (divisor < 0))
        quotient = quotient - cast(moved, x.dtype)
    if divisor is y:
        return quotient
    if x.dtype.kind == "i":
        quotient = where(trace, y == -1, -x, quotient)
    return where(trace, y == 0, number(x, 0), quotient)


def _pow(trace: Trace, x1: Any, x2: Any, /) -> Any:
    if isinstance(x2, int) and not isinstance(x2, bool) and 0 <= x2 <= _MOST_FACTORS:
        (x,) = operands(trace, "pow", (x1,), *_NUMBERS)
        return _power(x, x2)
    x, y = operands(trace, "pow", (x1, x2), *_NUMBERS)
    return joined("Pow", x, y)


def _power(x: TracedArray, exponent: int) -> Any:
    """The power by repeated squaring."""
    result: Any = None
    while exponent:
        if exponent % 2:
            result = x if result is None else result * x
        exponent //= 2
        x = x * x if exponent else x
    return x.trace.namespace.ones_like(x) if result is None else result


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor_divide": _floor_divide,
    "pow": _pow,
    "remainder": _remainder,
    "square": lambda trace, x, /: _pow(trace, x, 2),
}
