"""The operator table, from ONNX's name to a small function that emits JAX calls, and helpers of its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.core import python_source
from deep5.networks.nodes import axis, fixed, rank, ranked, spare
from deep5.networks.onnx.attributes import attribute

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = [
    "CHECKS",
    "HOST",
    "OPERATORS",
    "OVERRIDES",
    "RANKED",
    "attribute",
    "axis",
    "call",
    "fixed",
    "given",
    "number",
    "operator",
    "pointwise",
    "rank",
    "ranked",
    "results",
    "spare",
]

Emit = Callable[["Emitter", ir.Node], None]
Check = Callable[[ir.Node], str | None]
Known = Callable[[ir.Node], Iterable[ir.Value | None]]

OPERATORS: dict[str, Emit] = {}
CHECKS: dict[str, Check] = {}
"""Why a node cannot run, or None; operators without an entry always can run."""
OVERRIDES: dict[str, str] = {}
"""Operators of `deep5.networks.kernels` that are written here again, and why."""
RANKED: set[str] = set()
"""Further operators whose source depends on the rank of their inputs."""
HOST: dict[str, Known] = {}
"""Values that must be known when the function of a network is traced: they determine shapes or control flow."""


def operator(
    op_type: str, check: Check | None = None, host: tuple[int, ...] | Known = (), *, override: str = ""
) -> Callable[[Emit], Emit]:
    """Register a function in the table.

    Args:
        op_type: ONNX's name.
        check: Same as in `CHECKS`.
        host: Same as in `HOST`; or the positions of these inputs.
        override: Why the table does not use the operator of `deep5.networks.kernels`.
    """

    def register(emit: Emit) -> Emit:
        if override:
            OVERRIDES[op_type] = override
        OPERATORS[op_type] = emit
        if check is not None:
            CHECKS[op_type] = check
        if host:
            HOST[op_type] = host if callable(host) else lambda node: (given(node, position) for position in host)
        return emit

    return register


def given(node: ir.Node, position: int) -> ir.Value | None:
    """An input of a node; None if it is omitted."""
    return node.inputs[position] if position < len(node.inputs) else None


def call(
    emitter: Emitter,
    node: ir.Node,
    function: Callable[..., Any],
    *arguments: str,
    settings: tuple[int, ...] = (),
) -> None:
    """Emit output = function(inputs …, further arguments), all in ONNX's axis order.

    Args:
        emitter: Collects the source.
        node: The node.
        function: The function to call; it gets None for omitted inputs that precede others.
        arguments: Further arguments, as source.
        settings: Positions of inputs to pass as tuples of Python numbers.
    """
    inputs = [
        emitter.setting(value) if position in settings else emitter.plain(value)
        for position, value in enumerate(node.inputs)
    ]
    emitter.assign(node.outputs[0], f"{emitter.bind(function)}({', '.join([*inputs, *arguments])})")


def results(emitter: Emitter, node: ir.Node, text: str, last: Sequence[bool] = ()) -> None:
    """Emit the lines that compute a node's outputs from a tuple; `last`: which have their channels last."""
    made = emitter.new()
    emitter.line(f"{made} = {text}")
    for index, value in enumerate(node.outputs):
        if value.name:
            emitter.assign(value, f"{made}[{index}]", last=bool(last) and last[index])


def pointwise(
    emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str, count: int | None = None
) -> None:
    """Same as `call`, for an element-wise function: in the axis order of the inputs.

    The function takes the first `count` inputs.
    """
    values = node.inputs[:count]
    last = any(emitter.is_last(value) for value in values) and node.outputs[0].shape is not None
    axes = len(node.outputs[0].shape or ())
    inputs = [emitter.last(value, axes) if last else emitter.plain(value) for value in values]
    emitter.assign(node.outputs[0], f"{emitter.bind(function)}({', '.join([*inputs, *arguments])})", last=last)


def number(node: ir.Node, name: str, default: float) -> str:
    """A number from an attribute as source; infinities and NaN have no literal."""
    return python_source.number(attribute(node, name, default))
