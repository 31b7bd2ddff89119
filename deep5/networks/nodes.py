"""What the operator tables of the back-ends ask of a node before they write its code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import onnx_ir as ir

from deep5.backend import Support
from deep5.networks.constants import constant_value

__all__ = ["computed", "fixed", "is_whole", "rank", "spare", "supported"]


def supported(
    node: ir.Node,
    back_end: str,
    operators: Collection[str],
    checks: Mapping[str, Callable[[ir.Node], str | None]],
    dtypes: Collection[ir.DataType],
    floating: Collection[str] = (),
) -> Support:
    """Whether a back-end's table has a node, with its element types and attributes.

    Args:
        node: The node.
        back_end: Its name for a reader.
        operators: What the table has.
        checks: By operator, why a node cannot run, or None.
        dtypes: Element types that the framework computes with; others it can at most store.
        floating: Operators that it has for floating-point numbers alone.
    """
    if node.domain not in ("", "ai.onnx"):
        return Support(False, f"the domain {node.domain!r} is not ONNX's own")
    if node.op_type not in operators:
        return Support(False, f"the {back_end} back-end has no such operator")
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.dtype is None or value.shape is None:
            return Support(
                False, f"the value {value.name!r} has no shape or element type; shape inference did not reach it"
            )
        if value.dtype not in dtypes:
            return Support(False, f"the element type {value.dtype.name} of {value.name!r}")
    first = node.inputs[0] if node.inputs else None
    if node.op_type in floating and first is not None and first.dtype is not None and first.dtype.is_integer():
        return Support(False, f"whole numbers ({first.dtype.name})")
    reason = checks[node.op_type](node) if node.op_type in checks else None
    return Support(reason is None, reason or "")


def fixed(node: ir.Node, position: int) -> Any:
    """The value of an input as a NumPy array; None where it is left out or computed."""
    return constant_value(node.inputs[position]) if position < len(node.inputs) else None


def computed(node: ir.Node, *positions: int) -> str | None:
    """Why the node cannot run where one of these inputs is not known before anything runs."""
    for position in positions:
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None and constant_value(value) is None:
            return f"the input {value.name!r} is computed; a constant is supported"
    return None


def spare(node: ir.Node) -> str | None:
    """Why the node cannot run where more than its first output is asked for."""
    named = [value.name for value in node.outputs[1:] if value.name]
    return f"the further outputs {', '.join(map(str, named))}" if named else None


def rank(node: ir.Node, position: int = 0) -> int:
    """How many axes an input has."""
    return len(node.inputs[position].shape)  # type: ignore[union-attr,arg-type]  # shapes were inferred


def is_whole(value: ir.Value | None) -> bool:
    """Whether a value holds whole numbers."""
    return value is not None and value.dtype is not None and value.dtype.is_integer()
