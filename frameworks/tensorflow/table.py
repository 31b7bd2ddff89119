"""The table of operators, ONNX's name -> a small function that emits a call of TensorFlow; what its entries share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.core.python_source import number
from deep5.networks.nodes import axis, computed, extents, fixed, is_whole, rank, spare, subgraphs
from deep5.networks.onnx.attributes import attribute

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = [
    "CHECKS",
    "CONTROL",
    "OPERATORS",
    "attribute",
    "axes_of",
    "axis",
    "computed",
    "elementwise",
    "extents",
    "fixed",
    "is_whole",
    "needs_host",
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
HOST: dict[str, Check] = {}
"""What must be known where the operator is called, so that no tensor will do, and is not beforehand; or None."""
RANKLESS: set[str] = set()
"""Operators that are written without asking how many axes their values have."""
CONTROL: set[str] = set()
"""Operators of control flow, lists and optional values, which run as Python's own."""


def operator(
    op_type: str,
    check: Check | None = None,
    *,
    host: tuple[int, ...] | Check = (),
    rankless: bool = False,
) -> Callable[[Emit], Emit]:
    """Enter a function into the table.

    Args:
        op_type: ONNX's name.
        check: Why a node cannot run, or None.
        host: Positions of inputs that must be known where the operator is called; or what tells of a node what must be
            and is not known before.
        rankless: Whether it is written without asking how many axes its values have.
    """

    def register(emit: Emit) -> Emit:
        OPERATORS[op_type] = emit
        if check is not None:
            CHECKS[op_type] = check
        if host:
            HOST[op_type] = host if callable(host) else lambda node: computed(node, *host)
        if rankless:
            RANKLESS.add(op_type)
        return emit

    return register


def needs_host(node: ir.Node) -> str | None:
    """Why a node cannot be traced, and runs where its network runs operator by operator; None where it can be."""
    if node.op_type in CONTROL or subgraphs(node):
        return "control flow and lists"
    if node.op_type in HOST and (reason := HOST[node.op_type](node)) is not None:
        return reason
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    unknown = next((value for value in values if value.shape is None), None)
    return None if unknown is None else f"how many axes {unknown.name!r} has is not known"


def elementwise(emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str) -> None:
    """Emit output = function(inputs …, further arguments), in whatever order the inputs lie."""
    order = emitter.common_order(node.inputs)
    inputs = [emitter.aligned(value, order) for value in node.inputs]
    emitter.assign(node, f"{emitter.function(function)}({', '.join([*inputs, *arguments])})", order)


def axes_of(node: ir.Node, position: int) -> list[int] | None:
    """An input that lists axes of the first input, each counted from the first; None where it is left out."""
    given = fixed(node, position)
    return None if given is None else [int(entry) % rank(node) for entry in given.reshape(-1)]
