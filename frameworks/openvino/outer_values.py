"""A Scan whose body reads outer values, which OpenVINO does not read: they become states that do not change."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.draft import Draft
from deep5.networks.nodes import captured, nested, subgraphs
from deep5.networks.onnx.attributes import attribute

__all__ = ["pass_as_states", "reads_outer_values"]


def reads_outer_values(node: ir.Node) -> bool:
    """Whether the body of a Scan reads values that are not its inputs."""
    return bool(captured(node.attributes["body"].as_graph()))


def pass_as_states(draft: Draft, node: ir.Node) -> None:
    """Each step returns the value that it got; the last one is not used."""
    body, count = node.attributes["body"].as_graph(), int(attribute(node, "num_scan_inputs", 0))
    outer, held = captured(body), len(node.inputs) - count
    inside = {value: _given(f"{node.name}/outer_{number}", value) for number, value in enumerate(outer)}
    bodies = [body, *(graph for inner in nested(node) for graph in subgraphs(inner).values())]
    for inner in nested(node):
        for position, value in enumerate(inner.inputs):
            if value in inside:
                inner.replace_input_with(position, inside[value])
    for graph in bodies:
        outputs = [inside.get(value, value) for value in graph.outputs]
        graph.outputs.clear()
        graph.outputs.extend(outputs)
    returned = [
        ir.node("Identity", [given], outputs=[_given(f"{given.name}/kept", given)]) for given in inside.values()
    ]
    body.extend(returned)
    inputs, outputs = list(body.inputs), list(body.outputs)
    body.inputs.clear()
    body.inputs.extend([*inputs[:held], *inside.values(), *inputs[held:]])
    body.outputs.clear()
    body.outputs.extend([*outputs[:held], *(each.outputs[0] for each in returned), *outputs[held:]])
    settings = {name: value.value for name, value in node.attributes.items()}
    given = [*node.inputs[:held], *outer, *node.inputs[held:]]
    made = draft.ops("Scan", given, len(node.outputs) + len(outer), **settings)
    kept = [*made[:held], *made[held + len(outer) :]]
    draft.replace(*(new if old.name else None for old, new in zip(node.outputs, kept, strict=True)))


def _given(name: str, like: ir.Value) -> ir.Value:
    return ir.Value(name=name, shape=like.shape, type=like.type)
