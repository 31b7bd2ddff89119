"""Times, sizes, rates and shares as strings: one function per kind, so that each has one spelling of its unit.

Memory and files have binary units (KiB, MiB, GiB, TiB); rates and counts of operations have decimal ones (GB/s,
GFLOP/s), as in data sheets and in the literature; times have s, ms, us and ns, in ASCII. Values have three significant
digits.
"""

from __future__ import annotations

__all__ = [
    "count",
    "counts_time",
    "digits",
    "duration",
    "percent",
    "rate",
    "ratio",
    "seconds",
    "seconds_between",
    "size",
    "time_unit",
    "ulps",
]

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_DECIMAL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_BINARY = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))

_Units = tuple[tuple[str, float], ...]


def seconds(value: float | None) -> str:
    """A time in the unit that fits.

    Args:
        value: Seconds; None: there is no value.

    >>> seconds(1.234e-5), seconds(2.5), seconds(0.9999), seconds(0.0), seconds(None)
    ('12.3 us', '2.5 s', '1 s', '0 s', '-')
    """
    if value is None:
        return "-"
    unit, factor = time_unit(value)
    return f"{digits(value / factor)} {unit}"


def seconds_between(low_s: float | None, high_s: float | None, most: int = 3) -> str:
    """Both ends of an interval, in the unit that fits the upper one.

    Args:
        low_s: The lower end in seconds; None: there is no interval.
        high_s: The upper end.
        most: Number of significant digits; all digits before the point are shown.

    >>> seconds_between(4.734e-4, 1.284e-3), seconds_between(4.734e-4, 1.284e-3, 2), seconds_between(None, None)
    ('0.473-1.28 ms', '0.47-1.3 ms', '-')
    """
    if low_s is None or high_s is None:
        return "-"
    unit, factor = time_unit(high_s)
    return f"{digits(low_s / factor, most)}-{digits(high_s / factor, most)} {unit}"


def time_unit(value_s: float) -> tuple[str, float]:
    """The unit that fits a time, and its length in seconds.

    >>> time_unit(1.234e-5)
    ('us', 1e-06)
    """
    return _fitting(value_s, _TIMES) if value_s else _TIMES[0]


def size(value_bytes: float) -> str:
    """The size of memory, of a file or of a message.

    >>> size(4), size(1023.9 * 1024), size(170_052_171), size(1 << 30)
    ('4 B', '1 MiB', '162 MiB', '1 GiB')
    """
    unit, factor = _fitting(value_bytes, _BINARY)
    return f"{digits(value_bytes / factor)} {unit}"


def rate(value: float, unit: str = "B/s") -> str:
    """An amount per second.

    Args:
        value: The rate, without a prefix.
        unit: Its unit: "B/s", "FLOP/s", "samples/s".

    >>> rate(8.114e3), rate(0.5014e9), rate(38e9), rate(0.1), rate(2.5e12, "FLOP/s")
    ('8.11 kB/s', '501 MB/s', '38 GB/s', '0.1 B/s', '2.5 TFLOP/s')
    """
    prefix, factor = _fitting(value, _DECIMAL)
    return f"{digits(value / factor)} {prefix}{unit}"


def count(value: float, unit: str = "") -> str:
    """A large count, such as one of operations.

    Args:
        value: The count.
        unit: What is counted, after the prefix: "FLOP".

    >>> count(4_111_000_000, "FLOP"), count(999), count(1_500)
    ('4.11 GFLOP', '999', '1.5 k')
    """
    return rate(value, unit).rstrip()


def percent(share: float, decimals: int = 0, *, signed: bool = False) -> str:
    """A fraction as a percentage.

    Args:
        share: The fraction.
        decimals: Number of decimals.
        signed: Whether a positive one has a sign.

    >>> percent(0.5), percent(0.0312, 1), percent(0.2, signed=True)
    ('50 %', '3.1 %', '+20 %')
    """
    return f"{100 * share:{'+' if signed else ''}.{decimals}f} %"


def duration(value_s: float) -> str:
    """A time to wait, in words.

    >>> duration(12.3), duration(200), duration(9000)
    ('12 s', '3 min', '2 h 30 min')
    """
    if value_s < 90:
        return f"{max(value_s, 0):.0f} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def digits(value: float, most: int = 3) -> str:
    """A number with three significant digits, or another number of them, and with all digits before the point.

    >>> digits(1234.5), digits(0.12345), digits(204.3, 2)
    ('1234', '0.123', '204')
    """
    return f"{value:.0f}" if 10**most - 0.5 <= abs(value) < 1e6 else f"{value:.{most}g}"


def ratio(value: float, most: int = 3, *, decimals: int | None = None, one: float = 1.0) -> str:
    """A ratio: only one that is exactly 1 prints as 1, because a verdict depends on the side on which it lies.

    Args:
        value: The ratio.
        most: Number of significant digits; a ratio close to 1 has as many as distinguish it.
        decimals: Number of decimals instead, for a column of equal ones.
        one: What 1 is in its unit; 100 in percent.

    >>> ratio(0.936), ratio(0.99996), ratio(1.0), ratio(0.9, decimals=2), ratio(99.998, decimals=1, one=100)
    ('0.936', '0.99996', '1', '0.90', '99.998')
    """
    shown = digits(value, most) if decimals is None else f"{value:.{decimals}f}"
    while float(shown) == one != value:
        most += 1
        shown = f"{value:.{most}g}"
    return shown


def ulps(value: float, most: int = 3) -> str:
    """An error in units in the last place, without an exponent up to a billion.

    Args:
        value: The error.
        most: Number of significant digits.

    >>> ulps(9.96), ulps(16_837.2), ulps(1e-3), ulps(16_837.2, 2), ulps(3e12)
    ('9.96', '16,800', '0.001', '17,000', '3e+12')
    """
    shown = f"{value:.{most}g}"
    return f"{float(shown):,.0f}" if 10**most <= float(shown) < 1e9 else shown


def _fitting(value: float, units: _Units) -> tuple[str, float]:
    """The largest unit in which the rounded value is at least 1, otherwise the smallest one."""
    return next(((unit, factor) for unit, factor in units if abs(float(f"{value / factor:.3g}")) >= 1), units[-1])


def counts_time(unit: str) -> bool:
    """Whether a quantity with this unit is a time, or an amount per second, and so depends on the machine.

    >>> counts_time("ms"), counts_time("samples/s"), counts_time("%")
    (True, True, False)
    """
    return unit in ("s", "ms", "us", "ns") or unit.endswith("/s")
