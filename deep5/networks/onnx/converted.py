"""Models that a converter wrote as functions of their weights: the weights become initial values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["with_initial_values"]


def with_initial_values(
    proto: Any, name: str, inputs: Sequence[str], values: Mapping[str, Any], outputs: Sequence[str]
) -> Any:
    """The model with the last of its inputs as initial values, and with names that do not depend on the converter.

    Args:
        proto: The model, an `onnx.ModelProto`; it is changed.
        name: Name for the graph.
        inputs: Names for the first inputs.
        values: The other inputs: arrays by name, in order. Those that no node reads are omitted.
        outputs: Names for the outputs, in order.

    Returns:
        `proto`. Each symbolic dimension of its inputs and its outputs is `N`.
    """
    import onnx

    graph = proto.graph
    renamed = dict(zip((value.name for value in graph.input), [*inputs, *values], strict=True))
    renamed |= dict(zip((value.name for value in graph.output), outputs, strict=True))
    graph.name, graph.doc_string = name, ""
    for value in (*graph.input, *graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if not extent.HasField("dim_value"):
                extent.dim_param = "N"
    used = _renamed(graph, renamed)
    kept = [value for value in graph.input if value.name in inputs]
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), each) for each, array in values.items() if each in used
    )
    return proto


def _renamed(graph: Any, names: dict[str, str]) -> set[str]:
    """Rename the values and nodes of a graph and of the graphs in it, in which names are unique too.

    Args:
        graph: The graph.
        names: New names by old ones; those of other values are added.

    Returns:
        The new names of the values that nodes read, or graphs in them return.
    """
    del graph.value_info[:]
    used = set()

    def new(old: str) -> str:
        return names.setdefault(old, f"value_{len(names)}") if old else old

    for constant in graph.initializer:
        constant.name = new(constant.name)
    for value in graph.input:
        value.name = new(value.name)
    for place, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{place}"
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                used |= _renamed(inner, names) | {value.name for value in inner.output}
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        used.update(node.input)
    for value in graph.output:
        value.name = new(value.name)
    return used
