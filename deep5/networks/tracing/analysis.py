"""Elementary functions: those of ONNX, and numerically accurate compositions of them.

References:
    expm1(x) = tanh(x / 2) (exp(x) + 1), which avoids cancellation: addition theorem of tanh.
    log1p: Goldberg, What every computer scientist should know about floating-point arithmetic, ACM Computing Surveys
        23(1), 1991, theorem 4: log(1 + x) x / ((1 + x) - 1) is as accurate as the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.promotion import operands
from deep5.networks.tracing.trace import Trace

__all__ = ["FUNCTIONS"]


def _elementary(name: str, op_type: str) -> Callable[..., TracedArray]:
    def function(trace: Trace, x: Any, /) -> Any:
        (x,) = operands(trace, name, (x,), "float")
        return trace.emit(op_type, [x], x.dtype, x.shape)

    return function


def _expm1(trace: Trace, x: Any, /) -> Any:
    xp, (x,) = trace.namespace, operands(trace, "expm1", (x,), "float")
    return xp.tanh(x / 2) * (xp.exp(x) + 1)


def _log1p(trace: Trace, x: Any, /) -> Any:
    xp, (x,) = trace.namespace, operands(trace, "log1p", (x,), "float")
    above = 1 + x
    rounded = above - 1
    correction = xp.where(rounded == x, 1.0, x / rounded)  # no correction needed, also at infinity
    return xp.where(above == 1, x, xp.log(above) * correction)


def _logarithm(name: str, base: float) -> Callable[..., TracedArray]:
    def function(trace: Trace, x: Any, /) -> Any:
        (x,) = operands(trace, name, (x,), "float")
        return trace.namespace.log(x) / math.log(base)

    return function


def _logaddexp(trace: Trace, x1: Any, x2: Any, /) -> Any:
    xp, (x, y) = trace.namespace, operands(trace, "logaddexp", (x1, x2), "float")
    apart = xp.where(x == y, 0.0, xp.abs(x - y))  # equal infinities have no difference
    return xp.maximum(x, y) + xp.log1p(xp.exp(-apart))


def _hypot(trace: Trace, x1: Any, x2: Any, /) -> Any:
    """The larger times sqrt(1 + (smaller / larger)^2), which does not overflow where the squares do."""
    xp, (x, y) = trace.namespace, operands(trace, "hypot", (x1, x2), "float")
    x, y = xp.abs(x), xp.abs(y)
    large, small = xp.maximum(x, y), xp.minimum(x, y)
    ratio = xp.where(small == large, 1.0, small / large)
    return xp.where(xp.isinf(x) | xp.isinf(y), math.inf, large * xp.sqrt(1 + ratio * ratio))


def _atan2(trace: Trace, x1: Any, x2: Any, /) -> Any:
    """The angle in all four quadrants, also for signed zeros and infinities: atan(smaller / larger), mirrored."""
    xp, (y, x) = trace.namespace, operands(trace, "atan2", (x1, x2), "float")
    across, up = xp.abs(x), xp.abs(y)
    steep = up > across
    large, small = xp.where(steep, up, across), xp.where(steep, across, up)
    # The equal cases include both 0 (the angle is 0) and both infinite (the angle is that of a diagonal).
    ratio = xp.where(small == large, xp.where(large == 0, large, 1.0), small / large)
    angle = xp.atan(ratio)
    angle = xp.where(steep, math.pi / 2 - angle, angle)
    angle = xp.where(xp.signbit(x), math.pi - angle, angle)
    return xp.where(xp.signbit(y), -angle, angle)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _elementary(name, name.capitalize()) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{name: _elementary(name, name.capitalize()) for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    **{name: _elementary(name, name.capitalize()) for name in ("exp", "log", "sqrt")},
    "atan2": _atan2,
    "expm1": _expm1,
    "hypot": _hypot,
    "log10": _logarithm("log10", 10),
    "log1p": _log1p,
    "log2": _logarithm("log2", 2),
    "logaddexp": _logaddexp,
}
