"""The table of operators, ONNX's name -> a small function that emits calls of JAX, and what its entries share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.networks.gradients.window import attribute
from deep5.networks.nodes import computed, fixed, is_whole, rank, spare

if TYPE_CHECKING:
    from deep5.frameworks.jax.emit import Emitter

__all__ = [
    "CHECKS",
    "OPERATORS",
    "attribute",
    "axis",
    "call",
    "computed",
    "fixed",
    "is_whole",
    "number",
    "operator",
    "pointwise",
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
    """Emit output = function(inputs …, further arguments), all in ONNX's order of axes."""
    inputs = [emitter.plain(value) for value in node.inputs]
    emitter.assign(node.outputs[0], f"{emitter.bind(function)}({', '.join([*inputs, *arguments])})")


def pointwise(emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str) -> None:
    """As `call`, of a function that works element by element: in the order of axes that its inputs have."""
    last = any(emitter.is_last(value) for value in node.inputs)
    axes = len(node.outputs[0].shape or ())
    inputs = [emitter.last(value, axes) if last else emitter.plain(value) for value in node.inputs]
    emitter.assign(node.outputs[0], f"{emitter.bind(function)}({', '.join([*inputs, *arguments])})", last=last)


def number(node: ir.Node, name: str, default: float) -> str:
    """A number of an attribute as source text; infinities and NaN have no literal."""
    value: float = attribute(node, name, default)
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def axis(node: ir.Node, default: int) -> int:
    """The attribute `axis`, counted from the first."""
    chosen: int = attribute(node, "axis", default)
    return chosen + rank(node) if chosen < 0 else chosen
