"""Edits of nodes, edges and names: each works on a copy, and either gives a valid network or raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, brief
from deep5.networks.edit.edited import (
    drop,
    drop_unused,
    edited,
    free_name,
    is_list,
    is_output,
    known,
    listed,
    made_node,
    name_of,
    names_of,
    nodes_of,
    refuse_cycle,
    unused,
    values_of,
)
from deep5.networks.onnx.name_lists import rename_in_lists
from deep5.networks.onnx.signature import check_signature

__all__ = [
    "add_edge",
    "add_node",
    "remove_edge",
    "remove_node",
    "rename",
    "replace_node",
]


def add_node(
    model: ir.Model,
    op_type: str,
    inputs: Sequence[str | None],
    outputs: Sequence[str] | None,
    name: str | None,
    domain: str,
    attributes: dict[str, Any],
) -> ir.Model:
    """See `Network.add_node`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        nodes, values = nodes_of(copy), values_of(copy)
        called = free_name(op_type, nodes) if name is None else unused(name, nodes, "node", "add_node")
        made = [f"{called}_output"] if outputs is None else listed(outputs, "outputs", "add_node")
        for output in made:
            unused(output, values, "value", "add_node")
        if len(set(made)) < len(made):
            raise NetworkError(f"add_node: the outputs {made} clash; allowed: every name once")
        sources = [None if one is None else known(one, values, "value", "add_node") for one in inputs]
        node = made_node(copy, op_type, sources, made, called, domain, attributes, "add_node")
        copy.graph.append(node)
        return [node]

    listed([one for one in inputs if one is not None] if is_list(inputs) else inputs, "inputs", "add_node")
    return edited(model, f"the network after add_node({op_type!r}, …)", change)


def remove_node(model: ir.Model, name: str, bypass: str | None) -> ir.Model:
    """See `Network.remove_node`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        graph = copy.graph
        node = known(name, nodes_of(copy), "node", "remove_node")
        source = None
        if bypass is not None:
            source = next((value for value in node.inputs if value is not None and value.name == bypass), None)
            if source is None:
                raise NetworkError(
                    f"remove_node: node {name!r} has no input {bypass!r}; allowed as bypass: {names_of(node.inputs)}"
                )
            if len(node.outputs) > 1 and any(value.uses() or is_output(graph, value) for value in node.outputs[1:]):
                raise NetworkError(
                    f"remove_node: of node {name!r} more than one output is used, and one value cannot replace them "
                    "all; remedy: add_edge gives their users other sources first"
                )
        touched: list[ir.Node] = []
        for value in node.outputs:
            users = [use.node for use in value.uses()]
            if source is None and users:
                raise NetworkError(
                    f"remove_node: {value.name!r} of node {name!r} goes to node {users[0].name!r}, which would dangle; "
                    f"remedy: bypass= one of {names_of(node.inputs)}, or add_edge to give it another source first"
                )
            if source is None and is_output(graph, value):
                raise NetworkError(_output_remedy(graph, node, value))
            if source is not None:
                touched += users
                _redirect(graph, value, source, name)
        drop(graph, [node])
        return touched

    return edited(model, f"the network after remove_node({name!r})", change)


def add_edge(model: ir.Model, value: str, node: str, position: int | None) -> ir.Model:
    """See `Network.add_edge`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        source = known(value, values_of(copy), "value", "add_edge")
        target = known(node, nodes_of(copy), "node", "add_edge")
        at = len(target.inputs) if position is None else position
        if not is_whole(at) or not 0 <= at < 1 << 10:
            raise NetworkError(f"add_edge: got position {brief(position)}; allowed: None, or a number of at least 0")
        refuse_cycle(source, target)
        before = target.inputs[at] if at < len(target.inputs) else None
        if at >= len(target.inputs):
            target.resize_inputs(at + 1)
        target.replace_input_with(at, source)
        if not target.domain:
            check_signature(target, copy.graph.opset_imports[""], f"add_edge at position {at}")
        drop_unused(copy.graph, [before])
        return [target]

    return edited(model, f"the network after add_edge({value!r}, {node!r}, {position})", change)


def remove_edge(model: ir.Model, node: str, position: int) -> ir.Model:
    """See `Network.remove_edge`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        target = known(node, nodes_of(copy), "node", "remove_edge")
        inputs = list(target.inputs)
        if not is_whole(position) or not 0 <= position < len(inputs) or inputs[position] is None:
            there = [index for index, value in enumerate(inputs) if value is not None]
            raise NetworkError(
                f"remove_edge: node {node!r} has no input {brief(position)}; allowed: {', '.join(map(str, there))}"
            )
        gone, option = inputs[position], _option(copy, target, position)
        if option == "required":
            raise NetworkError(
                f"remove_edge: {target.op_type} node {node!r} needs its input {position}, {name_of(gone)!r}; remedy: "
                "add_edge puts another value in its place, remove_node takes the node away"
            )
        if option == "variadic":
            del inputs[position]
        else:
            inputs[position] = None
        while inputs and inputs[-1] is None:
            inputs.pop()
        target.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            target.replace_input_with(index, value)
        drop_unused(copy.graph, [gone])
        return [target]

    return edited(model, f"the network after remove_edge({node!r}, {position})", change)


def rename(model: ir.Model, old: str, new: str) -> ir.Model:
    """See `Network.rename`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        graph, nodes, values = copy.graph, nodes_of(copy), values_of(copy)
        known(old, {**values, **nodes}, "value or node", "rename")
        if new == old:
            return []
        if old in values:
            unused(new, values, "value", "rename")
            value = values[old]
            if value.is_initializer():
                del graph.initializers[old]
                value.name = new
                graph.initializers[new] = value
                rename_in_lists(copy, old, new)
            else:
                value.name = new
        else:
            nodes[old].name = unused(new, nodes, "node", "rename")
        return []

    return edited(model, f"the network after rename({old!r}, {new!r})", change)


def replace_node(
    model: ir.Model,
    name: str,
    op_type: str,
    inputs: Sequence[str | None] | None,
    domain: str,
    attributes: dict[str, Any],
) -> ir.Model:
    """See `Network.replace_node`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        graph, values = copy.graph, values_of(copy)
        old = known(name, nodes_of(copy), "node", "replace_node")
        if inputs is None:
            sources = list(old.inputs)
        else:
            sources = [None if one is None else known(one, values, "value", "replace_node") for one in inputs]
        for source in sources:
            if source is not None:
                refuse_cycle(source, old)
        made = made_node(
            copy, op_type, sources, [name_of(each) for each in old.outputs], name, domain, attributes, "replace_node"
        )
        graph.insert_before(old, made)
        for before, after in zip(old.outputs, made.outputs, strict=True):
            before.replace_all_uses_with(after, replace_graph_outputs=True)
        drop(graph, [old])
        return [made]

    return edited(model, f"the network after replace_node({name!r}, {op_type!r})", change)


def _output_remedy(graph: ir.Graph, node: ir.Node, value: ir.Value) -> str:
    """Explain why a node that computes a network output cannot be removed, and what to do instead."""
    others = [name_of(output) for output in graph.outputs if output not in node.outputs]
    free = [each for each in node.inputs if _stands_in(graph, each)]
    ways = [f"bypass= one of {names_of(free)}"] if free and len(node.outputs) == 1 else []
    ways.insert(0, f"with_outputs({others}), which takes the node out, too" if others else "with_outputs of others")
    return (
        f"remove_node: {value.name!r} of node {node.name!r} goes to the network, whose output it is; remedy: "
        f"{', or '.join(ways)}"
    )


def _stands_in(graph: ir.Graph, value: ir.Value | None) -> bool:
    """Whether a value can take over an output's name: a node computes it, and it is not an output itself."""
    return value is not None and value.producer() is not None and not is_output(graph, value)


def _redirect(graph: ir.Graph, value: ir.Value, source: ir.Value, node: str) -> None:
    """Replace a value by another one in all its users; a network output keeps its name."""
    if is_output(graph, value):
        if not _stands_in(graph, source):
            raise NetworkError(
                f"remove_node: {value.name!r} of node {node!r} is an output of the network, and {source.name!r} "
                "cannot take its name; allowed: a value that a node computes, and that is not an output"
            )
        value.name, source.name = f"{value.name}/removed", value.name
    value.replace_all_uses_with(source, replace_graph_outputs=True)


def _option(model: ir.Model, node: ir.Node, position: int) -> str:
    """Whether an operator's input is "required", "optional" or "variadic"."""
    if node.domain:
        return "required"
    schema = onnx.defs.get_schema(node.op_type, model.graph.opset_imports[""], "")
    formal = schema.inputs[min(position, len(schema.inputs) - 1)]
    option = onnx.defs.OpSchema.FormalParameterOption
    if formal.option == option.Variadic:
        return "variadic" if len(node.inputs) > len(schema.inputs) - 1 + formal.min_arity else "required"
    return "optional" if formal.option == option.Optional else "required"
