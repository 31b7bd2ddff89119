"""Queries of nodes for the operator tables of the back-ends, before they generate code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from deep5.core.framework import Support
from deep5.networks.constants import FLOATS, constant_value
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.contributed_types import CONTRIBUTED
from deep5.networks.strings import elsewhere

__all__ = [
    "RESHAPING",
    "axis",
    "captured",
    "captures",
    "computed",
    "extents",
    "fixed",
    "inside",
    "is_whole",
    "key",
    "nested",
    "of_shapes",
    "only_for",
    "origin",
    "outside",
    "poisonless",
    "rank",
    "ranked",
    "reads",
    "spare",
    "subgraphs",
    "supported",
]


RESHAPING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that return the numbers of their first input."""


def origin(value: ir.Value | None, operators: Collection[str]) -> ir.Value | None:
    """The value from which nodes of these operators make another one by their first inputs, or that one itself."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type in operators:
        value = maker.inputs[0]
    return value


# Domains whose operators other back-ends have.
_ELSEWHERE = ("ai.onnx.ml", CONTRIBUTED)


def supported(
    node: ir.Node,
    back_end: str,
    operators: Collection[str],
    checks: Mapping[str, Callable[[ir.Node], str | None]],
    dtypes: Collection[ir.DataType],
    floating: Collection[str] = (),
    shapeless: Callable[[ir.Node], bool] = lambda node: False,
) -> Support:
    """Whether a back-end's table has a node's operator, and supports its element types and attributes.

    Args:
        node: The node.
        back_end: The back-end's display name.
        operators: Operators in the table; one outside ONNX's own domain as `domain.operator`.
        checks: By operator, a function that returns why a node cannot run, or None.
        dtypes: Element types that the framework computes with; it can at most store others.
        floating: Operators that it supports for floating-point numbers only.
        shapeless: Whether it runs a node without knowing the shapes of its values.
    """
    own = node.domain in ("", "ai.onnx")
    if not own and f"{node.domain}.{node.op_type}" not in operators:
        if node.domain in _ELSEWHERE:
            return Support(
                False,
                f"the {back_end} back-end has no operators of the domain {node.domain!r}; allowed: ONNX's own, and "
                f"registered ones; remedy: {elsewhere(node)}",
            )
        return Support(
            False,
            f"the domain {node.domain!r} is not ONNX's own, and no operator {node.op_type!r} of it is registered; "
            "allowed: ONNX's operators, and registered ones; remedy: import the module that registers it, or "
            f"d5.register_operator({node.op_type!r}, domain={node.domain!r})",
        )
    if own and node.op_type not in operators:
        return Support(
            False,
            f"the {back_end} back-end has no such operator; allowed: those in docs/reference/onnx_operators.md; "
            f"remedy: {elsewhere(node)}",
        )
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.dtype is None:
            declared = "declare it in the file's value_info"
            return Support(
                False,
                f"the value {value.name!r} has no element type; shape inference did not reach it; allowed: types that "
                f"are declared, or that ONNX infers; remedy: {elsewhere(node, declared)}",
            )
        if value.shape is None and not shapeless(node):
            return Support(
                False,
                f"only a run determines the rank of {value.name!r}; allowed for this operator on the {back_end} "
                "back-end: a known rank; remedy: framework 'onnxruntime' or 'reference', or inputs of fixed size",
            )
        if value.dtype not in dtypes:
            return Support(
                False,
                f"the element type {value.dtype.name} of {value.name!r}; allowed: "
                f"{', '.join(sorted(dtype.name for dtype in dtypes))}; remedy: {elsewhere(node, 'a Cast in the file')}",
            )
    first = node.inputs[0] if node.inputs else None
    if node.op_type in floating and first is not None and first.dtype is not None and first.dtype.is_integer():
        return Support(False, f"integers ({first.dtype.name})")
    reason = checks[node.op_type](node) if node.op_type in checks else None
    return Support(reason is None, reason or "")


def subgraphs(node: ir.Node) -> dict[str, ir.Graph]:
    """The graphs inside a node (the branches of an If, the body of a Loop or Scan), by attribute."""
    if not node.attributes:
        return {}
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }


def nested(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes of the graphs inside a node, at any depth."""
    for graph in subgraphs(node).values():
        yield from graph.all_nodes()


def captured(graph: ir.Graph) -> list[ir.Value]:
    """The values of outer graphs that a nested graph, or any graph inside it, reads."""
    own = {*graph.inputs, *graph.initializers.values()}
    found: dict[ir.Value, None] = {}
    for node in graph:
        found.update((value, None) for value in reads(node) if value not in own)
        own.update(node.outputs)
    found.update((value, None) for value in graph.outputs if value not in own)
    return list(found)


def captures(node: ir.Node) -> list[ir.Value]:
    """The outer values that the graphs inside a node read."""
    return list(dict.fromkeys(value for graph in subgraphs(node).values() for value in captured(graph)))


def reads(node: ir.Node) -> list[ir.Value]:
    """The values that a node reads: its inputs, and the outer values that its nested graphs read."""
    return list(dict.fromkeys([*(value for value in node.inputs if value is not None), *captures(node)]))


def only_for(value: ir.Value | None, op_types: tuple[str, ...], inner: set[ir.Node]) -> ir.Node | None:
    """The node of one of these types that produces a value whose only reader is one node of the same graph.

    It and the Identity nodes in between (a dropout in evaluation) are added to `inner`.
    """
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        node = value.producer()
        if node is None or node.domain != "" or node.op_type not in (*op_types, "Identity"):
            return None
        if any(use.node.graph is not node.graph for use in value.uses()):
            return None
        inner.add(node)
        if node.op_type in op_types:
            return node
        value = node.inputs[0]
    return None


def fixed(node: ir.Node, position: int) -> Any:
    """The value of an input as a NumPy array; None if it is omitted or computed."""
    return constant_value(node.inputs[position]) if position < len(node.inputs) else None


def computed(node: ir.Node, *positions: int) -> str | None:
    """Why the node cannot run if one of these inputs is unknown before the run."""
    for position in positions:
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None and constant_value(value) is None:
            return f"the input {value.name!r} is computed; allowed: a constant; remedy: export it with fixed shapes"
    return None


def key(node: ir.Node) -> str:
    """The table key of a node's operator: its name, prefixed by the domain if that is not ONNX's main one."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def spare(node: ir.Node) -> str | None:
    """Why the node cannot run if more than its first output is used."""
    named = [value.name for value in node.outputs[1:] if value.name]
    return f"the further outputs {', '.join(map(str, named))}" if named else None


def rank(node: ir.Node, position: int = 0) -> int:
    """The rank of an input."""
    return len(node.inputs[position].shape)  # type: ignore[union-attr,arg-type]  # shapes were inferred


def ranked(node: ir.Node) -> bool:
    """Whether the rank of the first input is known."""
    return node.inputs[0] is not None and node.inputs[0].shape is not None


def axis(node: ir.Node, default: int, name: str = "axis") -> int:
    """An axis attribute for the first input, converted to a nonnegative index if the rank is known."""
    chosen: int = attribute(node, name, default)
    return chosen + rank(node) if chosen < 0 and ranked(node) else chosen


def is_whole(value: ir.Value | None) -> bool:
    """Whether a value is of an integer type."""
    return value is not None and value.dtype is not None and value.dtype.is_integer()


def inside(node: ir.Node) -> bool:
    """Whether all indices of a Gather are known before the run, and within an axis of known size."""
    return fixed(node, 1) is not None and _extent(node) is not None and outside(node) is None


def outside(node: ir.Node) -> str | None:
    """Why a Gather cannot run: one of its constant indices is out of bounds; else None."""
    indices, extent = fixed(node, 1), _extent(node)
    if indices is None or extent is None:
        return None
    wrong = indices[(indices < -extent) | (indices >= extent)]
    return f"the index {wrong.flat[0]} is outside its axis; allowed: {-extent} to {extent - 1}" if wrong.size else None


def poisonless(node: ir.Node) -> str | None:
    """Why a Gather whose out-of-bounds indices raise no error cannot run: integers have no NaN to mark the result."""
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    if kind in FLOATS or inside(node):
        return None
    return (
        f"an index outside its axis would give a number, since {kind.name if kind else 'this type'} has no NaN; "
        "allowed: a table of floating-point numbers, or constant indices"
    )


def of_shapes(value: ir.Value | None) -> bool:
    """Whether a value is computed from shapes and constants only; chains longer than 64 nodes are not followed."""
    return _of_shapes(value, {}, 64)


def _of_shapes(value: ir.Value | None, known: dict[ir.Value, bool], depth: int) -> bool:
    if value is None or constant_value(value) is not None:
        return True
    node = value.producer()
    if node is None or depth == 0:
        return False
    if value not in known:
        known[value] = node.op_type in ("Shape", "Size") or (
            bool(node.inputs) and all(_of_shapes(own, known, depth - 1) for own in node.inputs)
        )
    return known[value]


def _extent(node: ir.Node) -> int | None:
    """The size of a Gather's axis, if it is known."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    extent = None if shape is None else shape[attribute(node, "axis", 0)]
    return extent if isinstance(extent, int) else None


def extents(value: ir.Value | None) -> list[int | str | None]:
    """The dimensions of a value: integers, names, or None for unnamed ones; empty if the rank is unknown."""
    shape = value.shape or ()  # type: ignore[union-attr]  # the value exists
    return [extent if isinstance(extent, int) else extent.value for extent in shape]
