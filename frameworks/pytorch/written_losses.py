"""The Huber loss written out in nodes, as one call of torch's kernel.

m (|d| - m / 2) with d = a - b and m = min(|d|, delta): d² / 2 up to delta, and delta (|d| - delta / 2) beyond. Together
with its gradient, torch's kernel takes 0.6 ms for 164 thousand elements in float32, the nodes 2.5 ms.

References:
    Huber, Robust estimation of a location parameter, Annals of Mathematical Statistics 35, 1964, section 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.nodes import extents, only_for

__all__ = ["Huber", "find_huber"]

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class Huber(NamedTuple):
    """A Huber loss found in a graph, element by element.

    Attributes:
        first: One of the values whose difference it is of.
        second: The other, of the same shape.
        delta: Where it becomes linear.
        inner: The nodes that it replaces, besides the last.
    """

    first: ir.Value
    second: ir.Value
    delta: float
    inner: set[ir.Node]


def find_huber(node: ir.Node) -> Huber | None:
    """The loss whose last node is this one; None if there is none."""
    if node.op_type != "Mul" or node.domain != "" or node.outputs[0].dtype not in _TYPES:
        return None
    for least, rest in (node.inputs, tuple(node.inputs)[::-1]):
        inner: set[ir.Node] = set()
        below = only_for(rest, ("Sub",), inner)
        half = None if below is None else only_for(below.inputs[1], ("Mul",), inner)
        if below is None or half is None or not _is_half_of(half, least):
            continue
        clip = _only_of(least, "Min", {node, half})
        size = below.inputs[0]
        absolute = None if clip is None or size not in clip.inputs else _only_of(size, "Abs", {clip, below})
        if clip is None or absolute is None:
            continue
        delta = [_number(value) for value in clip.inputs if value is not size]
        difference = only_for(absolute.inputs[0], ("Sub",), inner)
        if difference is None or len(delta) != 1 or delta[0] is None or not 0 < delta[0] < np.inf:
            continue
        first, second = difference.inputs
        sizes = extents(first)
        if first is None or second is None or sizes != extents(second) or None in sizes or not sizes:
            continue
        return Huber(first, second, delta[0], {*inner, clip, absolute})
    return None


def _is_half_of(node: ir.Node, value: ir.Value | None) -> bool:
    others = [other for other in node.inputs if other is not value]
    return len(others) == 1 and _number(others[0]) == 0.5


def _only_of(value: ir.Value | None, op_type: str, readers: set[ir.Node]) -> ir.Node | None:
    """The node of this type that makes a value which exactly these nodes read."""
    node = None if value is None else value.producer()
    if node is None or value is None or node.op_type != op_type or node.domain != "" or value.is_graph_output():
        return None
    return node if {use.node for use in value.uses()} == readers else None


def _number(value: ir.Value | None) -> float | None:
    """A constant of one element."""
    array = constant_value(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None
