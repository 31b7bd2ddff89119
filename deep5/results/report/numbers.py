"""Numbers in readable form: few digits, exponents for large values, words for non-numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from deep5.core import quantities
from deep5.measuring.scheme import Scheme
from deep5.results.comparison_table import sentence

__all__ = ["as_float", "number", "percent", "rate", "ratio", "seconds", "size", "verdict"]

_HUGE, _SMALL = 1e6, 1e-3


def as_float(value: Any) -> float | None:
    """A number, or one of the strings "nan", "inf" and "-inf", which represent values that JSON lacks; else None.

    >>> as_float("inf"), as_float(True), as_float("none"), as_float(10**400)
    (inf, None, None, inf)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and value not in {"nan", "inf", "-inf"}:
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if int(value) > 0 else -math.inf


def _word(value: float) -> str:
    return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"


def number(value: Any, digits: int = 4) -> str:
    """A number, bool or None as a string.

    >>> number(0.12345), number(18961.5), number(1e-9), number(123456789), number(None), number(False), number(10**400)
    ('0.1235', '18,960', '1e-09', '1.235e+08', '-', 'no', 'about 1e400')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10**300:
        return f"about {'-' * (value < 0)}1e{len(str(abs(value))) - 1}"
    parsed = as_float(value)
    if parsed is None:
        return str(value)
    if not math.isfinite(parsed):
        return _word(parsed)
    if isinstance(value, int) and abs(value) < _HUGE:
        return str(value)
    if 10**digits <= abs(parsed) < _HUGE:
        return f"{float(f'{parsed:.{digits}g}'):,.0f}"
    if not parsed or _SMALL <= abs(parsed) < _HUGE:
        return f"{parsed:.{digits}g}"
    mantissa, _, exponent = f"{parsed:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def ratio(value: Any, digits: int = 4) -> str:
    """A ratio; one that is close to 1 has as many digits as distinguish it from 1.

    >>> ratio(0.99996), ratio(1.0), ratio(0.5), ratio(None), ratio("inf")
    ('0.99996', '1', '0.5', '-', 'infinite')
    """
    shown = number(value, digits)
    return quantities.ratio(float(value), digits) if shown == "1" else shown


def seconds(value: Any) -> str:
    """Seconds with a suitable unit.

    >>> seconds(0.00123), seconds(1e300), seconds("inf"), seconds(None)
    ('1.23 ms', '1e+300 s', 'infinite', '-')
    """
    parsed = as_float(value)
    if parsed is None or not math.isfinite(parsed):
        return number(value)
    return quantities.seconds(parsed) if not parsed or 1e-12 <= parsed < _HUGE else f"{number(parsed)} s"


def percent(value: Any) -> str:
    """A fraction as percent.

    >>> percent(0.0312), percent(1e9)
    ('3.1 %', '1e+11 %')
    """
    parsed = as_float(value)
    if parsed is None or not math.isfinite(parsed):
        return number(value)
    return quantities.percent(parsed, 1) if abs(parsed) < 1e4 else f"{number(100 * parsed)} %"


def size(value: Any) -> str:
    """A number of bytes with a suitable unit.

    >>> size(3 << 29), size(12), size("nan"), size(None)
    ('1.5 GiB', '12 B', 'not a number', '-')
    """
    return _shown(value, quantities.size)


def rate(value: Any, unit: str) -> str:
    """An amount per second with a suitable prefix.

    >>> rate(1.5e9, "B/s"), rate(None, "FLOP/s")
    ('1.5 GB/s', '-')
    """
    return _shown(value, lambda parsed: quantities.rate(parsed, unit))


def _shown(value: Any, how: Callable[[float], str]) -> str:
    parsed = as_float(value)
    return number(value) if parsed is None or not math.isfinite(parsed) else how(parsed)


def verdict(row: dict[str, Any], scheme: Scheme) -> str:
    """A verdict of a comparison in words, under its scheme; implausible bounds are omitted."""
    sensible = all(row[key] is None or row[key] < _HUGE for key in ("smallest", "floor", "p", "rounds"))
    return sentence(row, scheme) if sensible else str(row["word"])
