"""The operator table, from ONNX's name to a small function that emits a TensorFlow call; helpers of its entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.core.python_source import number
from deep5.networks.nodes import axis, computed, extents, fixed, is_whole, rank, ranked, spare, subgraphs
from deep5.networks.onnx.attributes import attribute

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = [
    "CHECKS",
    "CONTROL",
    "OPERATORS",
    "OVERRIDES",
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
    "ranked",
    "spare",
]

Emit = Callable[["Emitter", ir.Node], None]
Check = Callable[[ir.Node], str | None]

OPERATORS: dict[str, Emit] = {}
CHECKS: dict[str, Check] = {}
"""Why a node cannot run, or None; operators without an entry always can run."""
OVERRIDES: dict[str, str] = {}
"""Operators of `deep5.networks.kernels` that are written here again, and why."""
HOST: dict[str, Check] = {}
"""The values that an operator needs on the host when it is called, but that are not known before; or None."""
RANKLESS: set[str] = set()
"""Operators whose source does not depend on the rank of their values."""
CONTROL: set[str] = set()
"""Operators of control flow, sequences and optional values, which run in Python."""


def operator(
    op_type: str,
    check: Check | None = None,
    *,
    host: tuple[int, ...] | Check = (),
    rankless: bool = False,
    override: str = "",
) -> Callable[[Emit], Emit]:
    """Register a function in the table.

    Args:
        op_type: ONNX's name.
        check: Why a node cannot run, or None.
        host: Positions of inputs that must be known on the host when the operator is called; or a function that returns
            which values of a node must be known, but are not known before.
        rankless: Whether its source does not depend on the rank of its values.
        override: Why the table does not use the operator of `deep5.networks.kernels`.
    """

    def register(emit: Emit) -> Emit:
        if override:
            OVERRIDES[op_type] = override
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
    """Why a node cannot be traced and makes its network run operator by operator; None if it can be traced."""
    if node.op_type in CONTROL or subgraphs(node):
        return "control flow and lists"
    if node.op_type in HOST and (reason := HOST[node.op_type](node)) is not None:
        return reason
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    unknown = next((value for value in values if value.shape is None), None)
    return None if unknown is None else f"the rank of {unknown.name!r} is unknown"


def elementwise(emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str) -> None:
    """Emit output = function(inputs …, further arguments), in the axis order of the inputs."""
    order = emitter.common_order(node.inputs)
    inputs = [emitter.aligned(value, order) for value in node.inputs]
    emitter.assign(node, f"{emitter.function(function)}({', '.join([*inputs, *arguments])})", order)


def axes_of(node: ir.Node, position: int) -> list[int] | None:
    """An input that lists axes of the first input, converted to nonnegative values; None if it is omitted."""
    given = fixed(node, position)
    return None if given is None else [int(entry) % rank(node) for entry in given.reshape(-1)]
