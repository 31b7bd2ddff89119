"""The table of operators, ONNX's name -> a small function that emits a call of torch, and what its entries share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.networks.gradients.window import attribute
from deep5.networks.nodes import computed, fixed, is_whole, rank, spare

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


def number(value: float) -> str:
    """A number as source text; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def extents(node: ir.Node, position: int = 0) -> list[int | None]:
    """The extents of an input; None where one is symbolic."""
    shape = node.inputs[position].shape  # type: ignore[union-attr]
    return [extent if isinstance(extent, int) else None for extent in shape]  # type: ignore[union-attr]


def axis(node: ir.Node, default: int, name: str = "axis") -> int:
    """An attribute that names an axis of the first input, counted from the first."""
    chosen: int = attribute(node, name, default)
    return chosen + rank(node) if chosen < 0 else chosen
