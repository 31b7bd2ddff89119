"""Units of time, of size and of amounts per second: which of them convert into each other, and by which factor."""

from __future__ import annotations

from fractions import Fraction

__all__ = ["convert", "units_like"]

_TIMES = {
    "h": Fraction(3600),
    "min": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_SIZES = {
    **{unit: Fraction(1 << 10 * power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{unit: Fraction(10 ** (3 * power)) for power, unit in enumerate(("kB", "MB", "GB", "TB"), 1)},
}
_RATES = {f"{unit}/s": factor for unit, factor in _SIZES.items()}


def units_like(unit: str) -> tuple[str, ...]:
    """All units that convert into this one, itself among them; empty if there is no other.

    >>> units_like("ms")
    ('h', 'min', 's', 'ms', 'us', 'ns')
    >>> units_like("%")
    ()
    """
    return tuple(next((units for units in (_TIMES, _SIZES, _RATES) if unit in units), ()))


def convert(number: str, unit: str, wanted: str) -> float:
    """A number in another unit, as the nearest float to the exact product.

    Args:
        number: A decimal number, such as "1.5" or "2e-3", which is finite as a float.
        unit: Its unit.
        wanted: The unit of the result, one of `units_like(unit)`.

    Returns:
        The number; infinite if it is too large for a float.

    >>> convert("0.1", "s", "ms"), convert("2", "GiB", "MiB"), convert("90", "min", "h")
    (100.0, 2048.0, 1.5)
    """
    factors = next(units for units in (_TIMES, _SIZES, _RATES) if unit in units)
    given = float(number)
    if not given:  # also one that is too small for a float
        return given
    try:
        return float(Fraction(number) * factors[unit] / factors[wanted])
    except OverflowError:
        return float("inf")
