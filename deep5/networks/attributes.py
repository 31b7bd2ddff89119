"""The attributes of a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["attribute"]


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of a node's attribute, or the default where the node does not carry it.

    A default that is a floating-point number is rounded to float32, as ONNX's specification and files hold it: to a
    float64 network an attribute of 0.2 is the same number whether or not it is written out.
    """
    found = node.attributes.get(name)
    if found is not None:
        return found.value
    return float(np.float32(default)) if isinstance(default, float) else default
