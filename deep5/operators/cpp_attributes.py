"""The attributes of a C++ operator: constructor arguments given in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief

__all__ = ["as_attribute", "given_attributes"]


class _Attribute(ctypes.Structure):
    """`deep5::library::Attribute`, which converts to the constructor's parameter type, or reports why it cannot."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("length", ctypes.c_int32),
        ("shown", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
    )


_WHOLE, _NUMBER, _TRUTH, _TEXT, _WHOLES, _NUMBERS = range(6)


def as_attribute(operator: str, name: str, value: Any) -> Any:
    """An attribute in its stored form: a Python number, boolean or string, or a tuple of numbers of one kind.

    Raises:
        UsageError: It is of another type, or an integer of more than 64 bits.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (bool, float, str)):
        return value
    numbers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    numbers = tuple(number.item() if isinstance(number, np.generic) else number for number in numbers)
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers):
        raise UsageError(
            f"{operator}: got {name}={brief(value)}; allowed: an integer, a number, a truth value, a string, or a "
            "list of numbers"
        )
    if not all(isinstance(number, float) or -(1 << 63) <= number < 1 << 63 for number in numbers):
        raise UsageError(f"{operator}: got {name}={brief(value)}; allowed: integers of 64 bits")
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(map(float, numbers)) if any(isinstance(number, float) for number in numbers) else numbers


def given_attributes(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Attributes in the library's form.

    Args:
        attributes: Results of `as_attribute` by name.

    Returns:
        A C array, and the objects that must live as long as it.
    """
    given = (_Attribute * max(1, len(attributes)))()
    kept = []
    for entry, (name, value) in zip(given, attributes.items(), strict=False):
        kind, elements = _in_c(value)
        entry.kind, entry.length, entry.shown = kind, len(elements), f"{name}={brief(value)}".encode()
        entry.data = ctypes.cast(elements, ctypes.c_void_p)
        kept.append(elements)
    return given, kept


def _in_c(value: Any) -> tuple[int, Any]:
    """The kind of an attribute, and its elements as a C array."""
    if isinstance(value, str):
        text = value.encode()
        return _TEXT, (ctypes.c_char * len(text)).from_buffer_copy(text) if text else (ctypes.c_char * 0)()
    if isinstance(value, tuple):
        floating = any(isinstance(number, float) for number in value)
        return (_NUMBERS, (ctypes.c_double * len(value))(*value)) if floating else (_WHOLES, _wholes(*value))
    if isinstance(value, float):
        return _NUMBER, (ctypes.c_double * 1)(value)
    return _TRUTH if isinstance(value, bool) else _WHOLE, _wholes(value)


def _wholes(*numbers: int) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)
