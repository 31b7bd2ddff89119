"""The attributes of a node: read from it, and made into what a file holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief

__all__ = ["attribute", "stored_attribute"]

# Half a step above the largest float32: what is smaller rounds to that one, and what is not to infinity.
_OVERFLOW = 2.0**128 - 2.0**103


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of a node's attribute, or the default where the node does not carry it.

    A default that is a floating-point number is rounded to float32, as ONNX's specification and files hold it: to a
    float64 network an attribute of 0.2 is the same number whether or not it is written out.
    """
    found = node.attributes.get(name)
    if found is not None:
        return found.value
    return float(np.float32(default)) if isinstance(default, float) else default


def stored_attribute(op_type: str, name: str, value: Any) -> Any:
    """An attribute as a file would hold it: whole numbers have 64 bits, other numbers are float32.

    A list with one float in it is a list of floats. NumPy's numbers, and arrays of one axis, are taken too.

    Raises:
        NetworkError: No file can hold it.
    """

    def refused(reason: str) -> NetworkError:
        return NetworkError(
            f"{op_type} got an attribute that no file can hold ({name}={brief(value)}{reason}); allowed: numbers, "
            "texts, tensors, graphs, and lists of one kind of them"
        )

    if value is None:
        raise refused("; remedy: leave it out")
    if isinstance(value, bytes):
        raise refused("; remedy: a text")
    given = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    several = isinstance(given, (list, tuple))
    parts = [part.item() if isinstance(part, np.generic) else part for part in (given if several else [given])]
    if not parts:
        return ir.AttrInt64s(name, [])  # nothing says of which kind; whole numbers are the commonest
    if all(isinstance(part, (bool, int)) for part in parts):
        if not all(-(1 << 63) <= part < 1 << 63 for part in parts):
            raise refused(", which takes more than 64 bits; remedy: a text, or a float")
        parts = [int(part) for part in parts]
    elif all(isinstance(part, (int, float)) for part in parts):
        if any(_OVERFLOW <= abs(part) < math.inf for part in parts):
            raise refused(", which float32 does not hold: the largest is 3.4028235e+38; remedy: a text")
        parts = [float(np.float32(part)) for part in parts]
    try:
        return ir.convenience.convert_attribute(name, parts if several else parts[0])
    except TypeError:
        raise refused("") from None
