"""The parts of every edit of a network: copy the model, look up names, insert and remove nodes, check the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief, suggestion
from deep5.networks.diagnostics.refusals import unknown_operator, unregistered
from deep5.networks.onnx.attributes import stored_attribute
from deep5.networks.onnx.axes import check_axes
from deep5.networks.onnx.element_types import check_element_types
from deep5.networks.onnx.fitting import check_extents, check_fit
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.onnx.signature import check_signature
from deep5.operators.registry import registered_operator

__all__ = [
    "Change",
    "drop",
    "drop_unused",
    "edited",
    "free_name",
    "is_list",
    "is_output",
    "known",
    "listed",
    "made_node",
    "name_of",
    "names_of",
    "nodes_of",
    "refuse_cycle",
    "unused",
    "values_of",
]

Change = Callable[[ir.Model], Iterable[ir.Node]]
"""Changes a copied model, and returns the nodes whose results may have other shapes than before."""


def edited(model: ir.Model, what: str, change: Change) -> ir.Model:
    """Apply a change to a copy of the model, and infer shapes again where they may differ.

    Args:
        model: The model; it is not changed.
        what: Name of the result in messages.
        change: Changes the copy; returns the nodes whose results may have other shapes than before.

    Raises:
        NetworkError: The result is not a valid network.
    """
    model = model.clone()
    touched = change(model)
    others = _forget_shapes(touched)
    try:
        model.graph.sort()
    except ValueError as error:  # through a nested graph, which captures outer values
        raise NetworkError(f"{what} has a cycle; allowed: values that do not depend on the node they go to") from error
    infer_shapes(model, what)
    check_element_types(model, what)
    check_axes(model, what)
    # Nodes that the edit does not affect are only checked as when a file is read.
    affected = [node for node in model.graph.all_nodes() if node in others]
    check_extents(affected, what)
    check_fit(affected, what)
    return model


def _forget_shapes(touched: Iterable[ir.Node]) -> set[ir.Node]:
    """Forget the shapes that may have changed; nodes that do not depend on these nodes keep their declared shapes.

    Returns:
        These nodes and all that depend on them.
    """
    ahead: deque[ir.Node] = deque(touched)
    seen: set[ir.Node] = set()
    while ahead:
        node = ahead.popleft()
        if node in seen:
            continue
        seen.add(node)
        for value in node.outputs:
            value.shape = value.type = None
            ahead += [use.node for use in value.uses()]
    return seen


def refuse_cycle(source: ir.Value, target: ir.Node) -> None:
    """Reject an edge to a node that the value depends on."""
    ahead, seen = deque([source.producer()]), set()
    while ahead:
        node = ahead.popleft()
        if node is None or node in seen:
            continue
        if node is target:
            raise NetworkError(
                f"{source.name!r} depends on node {target.name!r}: to feed it there would make a cycle; allowed: "
                "values that do not depend on it"
            )
        seen.add(node)
        ahead += [value.producer() for value in node.inputs if value is not None]


def made_node(
    model: ir.Model,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[str],
    name: str,
    domain: str,
    attributes: dict[str, Any],
    what: str,
) -> ir.Node:
    """Create a node with named outputs.

    Raises:
        NetworkError: An unknown operator, inputs, outputs or attributes that it does not have, or an attribute that a
            file cannot store.
    """
    if not isinstance(op_type, str) or not op_type:
        raise NetworkError(f"{what}: got {brief(op_type)} as an operator; allowed: the name of one, such as 'Relu'")
    if domain:
        if registered_operator(domain, op_type) is None:
            raise NetworkError(f"{what}: {unregistered(domain, op_type)}")
        model.graph.opset_imports[domain] = 1
    else:
        opset = model.graph.opset_imports[""]
        if not onnx.defs.has(op_type, opset, ""):
            raise NetworkError(f"{what}: {unknown_operator(op_type, opset)}")
    stored = {key: stored_attribute(op_type, key, value) for key, value in attributes.items()}
    node = ir.node(op_type, inputs, stored, domain=domain, num_outputs=len(outputs), name=name)
    for value, called in zip(node.outputs, outputs, strict=True):
        value.name = called
    if not domain:
        check_signature(node, opset, what)
    return node


def drop(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Remove nodes, and initial values that are no longer used."""
    given = [value for node in nodes for value in node.inputs]
    graph.remove(nodes, safe=False)
    for node in nodes:
        node.resize_inputs(0)
    drop_unused(graph, given)


def drop_unused(graph: ir.Graph, values: Iterable[ir.Value | None]) -> None:
    """Remove initial values that are no longer used."""
    for value in values:
        if value is not None and value.is_initializer() and not value.uses():
            graph.initializers.pop(name_of(value), None)


def nodes_of(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes by name."""
    return {str(node.name): node for node in model.graph}


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    """Inputs, initial values and computed values, by name."""
    graph = model.graph
    made = {name_of(value): value for node in graph for value in node.outputs if value.name}
    return {**{name_of(value): value for value in graph.inputs}, **dict(graph.initializers), **made}


def is_output(graph: ir.Graph, value: ir.Value) -> bool:
    """Whether a value is an output of the graph."""
    return any(output is value for output in graph.outputs)


def is_list(given: Any) -> bool:
    """Whether the argument is a sequence other than a string."""
    return isinstance(given, Sequence) and not isinstance(given, str)


def listed(given: Any, which: str, what: str) -> list[str]:
    """The names, as a list.

    Raises:
        NetworkError: The argument is not a sequence of names.
    """
    if not is_list(given) or not all(isinstance(name, str) and name for name in given):
        raise NetworkError(f"{what}: got {brief(given)} as {which}; allowed: a list of names")
    return list(given)


def known(name: Any, among: dict[str, Any], kind: str, what: str) -> Any:
    """The object with a name.

    Raises:
        NetworkError: The name is unknown.
    """
    if not isinstance(name, str) or name not in among:
        shown = ", ".join(list(among)[:10]) + (", …" if len(among) > 10 else "")
        raise NetworkError(
            f"{what}: no {kind} {brief(name)} in the network; allowed: {shown}{suggestion(str(name), among)}"
        )
    return among[name]


def unused(name: Any, among: dict[str, Any], kind: str, what: str) -> str:
    """The name, if it is free.

    Raises:
        NetworkError: The name is taken, or is not a nonempty string.
    """
    if not isinstance(name, str) or not name:
        raise NetworkError(f"{what}: got {brief(name)} as a name; allowed: a string")
    if name in among:
        raise NetworkError(f"{what}: the name {name!r} is taken by another {kind}; remedy: another name")
    return name


def free_name(op_type: Any, taken: dict[str, ir.Node]) -> str:
    """A free name for a node, which is then marked as taken."""
    number = 1
    while f"{op_type}_{number}" in taken:
        number += 1
    taken[f"{op_type}_{number}"] = None  # type: ignore[assignment]  # reserves the name
    return f"{op_type}_{number}"


def names_of(values: Iterable[ir.Value | None]) -> str:
    """The names of values, for a message."""
    return ", ".join(repr(value.name) for value in values if value is not None) or "nothing"


def name_of(value: ir.Value | None) -> str:
    """The name of a value; an empty string for None."""
    return str(value.name) if value is not None else ""
