"""The table of operators, ONNX's name -> a small function that emits a call of torch, and what its entries share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.networks.constants import constant_value

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emit import Emitter

__all__ = [
    "CHECKS",
    "OPERATORS",
    "attribute",
    "axis",
    "call",
    "computed",
    "extents",
    "fixed",
    "is_whole",
    "number",
    "operator",
    "rank",
    "spare",
]

Emit = Callable[["Emitter", ir.Node], None]
Check = Callable[[ir.Node], str | None]

OPERATORS: dict[str, Emit] = {}
CHECKS: dict[str, Check] = {}
"""Why a node cannot run, or None; operators without an entry always can."""


def operator(op_type: str, check: Check | None = None) -> Callable[[Emit], Emit]:
    """Enter a function into the table."""

    def register(emit: Emit) -> Emit:
        OPERATORS[op_type] = emit
        if check is not None:
            CHECKS[op_type] = check
        return emit

    return register


def call(emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str) -> None:
    """Emit output = function(inputs …, further arguments)."""
    inputs = [emitter.name(value) for value in node.inputs]
    emitter.assign(node, f"{emitter.function(function)}({', '.join([*inputs, *arguments])})")


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """The value of an attribute."""
    found = node.attributes.get(name)
    return default if found is None else found.value


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


def number(value: float) -> str:
    """A number as source text; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def rank(node: ir.Node, position: int = 0) -> int:
    """How many axes an input has."""
    return len(node.inputs[position].shape)  # type: ignore[union-attr,arg-type]  # shapes were inferred


def extents(node: ir.Node, position: int = 0) -> list[int | None]:
    """The extents of an input; None where one is symbolic."""
    shape = node.inputs[position].shape  # type: ignore[union-attr]
    return [extent if isinstance(extent, int) else None for extent in shape]  # type: ignore[union-attr]


def axis(node: ir.Node, default: int, name: str = "axis") -> int:
    """An attribute that names an axis of the first input, counted from the first."""
    chosen: int = attribute(node, name, default)
    return chosen + rank(node) if chosen < 0 else chosen


def is_whole(value: ir.Value | None) -> bool:
    """Whether a value holds whole numbers."""
    return value is not None and value.dtype is not None and value.dtype.is_integer()
