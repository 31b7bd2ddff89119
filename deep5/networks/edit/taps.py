"""Variants of a model for tensors by name: more outputs, fed values in place of computed ones, and perturbations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import common as passes

__all__ = ["with_fed_values", "with_perturbations"]


def with_fed_values(model: ir.Model, outputs: Sequence[str], fed: Mapping[str, int]) -> ir.Model:
    """A copy that returns these values, and in which inputs replace computed values.

    Args:
        model: The model; it is not changed.
        outputs: Names of computed values, none of them fed.
        fed: Names of the computed values that become inputs, after the model's own, with their numbers of dimensions.
    """
    model = model.clone()
    graph = model.graph
    values = _computed(graph)
    taken = set(values)
    for name, rank in fed.items():
        value = values[name]
        shape = ir.Shape([None] * rank) if value.shape is None else value.shape
        outside = ir.Value(name=name, shape=shape, type=value.type)
        value.name = _fresh(f"{name}/computed", taken)
        ir.convenience.replace_all_uses_with(value, outside, replace_graph_outputs=True)
        graph.inputs.append(outside)
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in outputs)
    passes.RemoveUnusedNodesPass()(model)
    return model


def with_perturbations(model: ir.Model, inputs: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """A copy in which inputs are added to computed values: the gradient by such an input is that by the value.

    Args:
        model: The model; it is not changed.
        inputs: For each computed value, an unused name for the input.
        shapes: The shapes of values for which the model does not determine them.
    """
    model = model.clone()
    graph = model.graph
    values = _computed(graph)
    taken = {*values, *inputs.values()}
    for name, perturbation in inputs.items():
        value = values[name]
        shape = ir.Shape(shapes[name]) if name in shapes else value.shape
        added = ir.Value(name=perturbation, shape=shape, type=value.type)
        value.name = _fresh(f"{name}/computed", taken)
        node = ir.node("Add", [added, added], name=_fresh(f"{perturbation}/Add", {str(one.name) for one in graph}))
        made = node.outputs[0]
        made.name, made.shape, made.type = name, value.shape, value.type
        ir.convenience.replace_all_uses_with(value, made, replace_graph_outputs=True)
        node.replace_input_with(0, value)
        producer = value.producer()
        if producer is not None:
            graph.insert_after(producer, node)
        graph.inputs.append(added)
    return model


def _computed(graph: ir.Graph) -> dict[str, ir.Value]:
    return {str(value.name): value for node in graph for value in node.outputs if value.name}


def _fresh(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
