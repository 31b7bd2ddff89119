"""Node attributes: read them from a node, and convert values to the form that a file stores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief

__all__ = ["attribute", "stored_attribute"]

# Half a step above the largest float32: smaller values round to that float32, the others to infinity.
_OVERFLOW = 2.0**128 - 2.0**103


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of a node's attribute, or the default if the node does not set it.

    A floating-point default is rounded to float32, as ONNX's specification and files store it: in a float64 network
    an attribute of 0.2 has the same value whether or not it is written out.
    """
    found = node.attributes.get(name)
    if found is not None:
        return found.value
    return float(np.float32(default)) if isinstance(default, float) else default


def stored_attribute(op_type: str, name: str, value: Any) -> Any:
    """An attribute as a file stores it: integers have 64 bits, other numbers are float32.

    A list that contains a float is a list of floats. NumPy scalars and one-dimensional arrays are accepted.

    Raises:
        NetworkError: A file cannot store the value.
    """

    def refused(reason: str) -> NetworkError:
        return NetworkError(
            f"{op_type} got an attribute that no file can hold ({name}={brief(value)}{reason}); allowed: numbers, "
            "strings, tensors, graphs, and lists of one kind of them"
        )

    if value is None:
        raise refused("; remedy: leave it out")
    if isinstance(value, bytes):
        raise refused("; remedy: a string")
    given = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    several = isinstance(given, (list, tuple))
    parts = [part.item() if isinstance(part, np.generic) else part for part in (given if several else [given])]
    if not parts:
        return ir.AttrInt64s(name, [])  # the element type is unknown; integers are the most common
    if all(isinstance(part, (bool, int)) for part in parts):
        if not all(-(1 << 63) <= part < 1 << 63 for part in parts):
            raise refused(", which takes more than 64 bits; remedy: a string, or a float")
        parts = [int(part) for part in parts]
    elif all(isinstance(part, (int, float)) for part in parts):
        if any(_OVERFLOW <= abs(part) < math.inf for part in parts):
            raise refused(", which float32 does not hold: the largest is 3.4028235e+38; remedy: a string")
        parts = [float(np.float32(part)) for part in parts]
    try:
        return ir.convenience.convert_attribute(name, parts if several else parts[0])
    except TypeError:
        raise refused("") from None
