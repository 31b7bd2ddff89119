"""Extract a part of a model as a separate model, up to other outputs or between values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.core.errors import NetworkError, suggestion
from deep5.networks.edit.edited import (
    drop,
    edited,
    known,
    listed,
    name_of,
    names_of,
    values_of,
)

__all__ = ["subnetwork", "with_outputs"]


def subnetwork(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """See `Network.subnetwork`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        graph, values = copy.graph, values_of(copy)
        begin = [known(name, values, "value", "subnetwork") for name in listed(inputs, "inputs", "subnetwork")]
        end = [known(name, values, "value", "subnetwork") for name in listed(outputs, "outputs", "subnetwork")]
        if not end:
            raise NetworkError("subnetwork: got no outputs; allowed: a list of at least one name of a value")
        for which, named in (("inputs", begin), ("outputs", end)):
            if len(set(named)) < len(named):
                raise NetworkError(f"subnetwork: the {which} {names_of(named)} clash; allowed: every value once")
        for value in begin:
            if value.is_initializer():
                raise NetworkError(
                    f"subnetwork: {value.name!r} is an initial value, which is included where it is used; "
                    "allowed as inputs: computed values and inputs of the network"
                )
        kept = _between(begin, end)
        for value in begin:
            if value in graph.inputs:
                continue
            # A value at the boundary stays outside: an input of the same name, shape and type replaces it.
            if value.shape is None or value.type is None:
                raise NetworkError(f"subnetwork: the shape of {value.name!r} is not known, and an input needs one")
            outside = ir.Value(name=value.name, shape=value.shape, type=value.type)
            for use in list(value.uses()):
                if use.node in kept:
                    use.node.replace_input_with(use.idx, outside)
            value.name = f"{value.name}/outside"
            graph.inputs.append(outside)
            end = [outside if each is value else each for each in end]
        for value in end:
            if value.producer() is None:
                raise NetworkError(f"subnetwork: no node computes {value.name!r}; allowed: what a node computes")
        wanted = [value for value in graph.inputs if value.name in inputs]
        needed = [
            value for value in graph.inputs if value not in wanted and any(use.node in kept for use in value.uses())
        ]
        if needed:
            raise NetworkError(
                f"subnetwork: it also depends on {needed[0].name!r}; remedy: "
                f"inputs={[*map(str, inputs), name_of(needed[0])]}"
            )
        graph.outputs.clear()
        graph.outputs.extend(end)
        graph.inputs.clear()
        graph.inputs.extend(wanted)
        drop(graph, [node for node in graph if node not in kept])
        return []

    return edited(model, "the sub-network", change)


def with_outputs(model: ir.Model, names: Iterable[str]) -> ir.Model:
    """See `Network.with_outputs`."""
    if isinstance(names, str) or not isinstance(names, Iterable) or not (names := list(names)):
        raise NetworkError(f"got {names!r} as outputs; allowed: a list of at least one name")
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    chosen: list[ir.Value] = []
    for name in names:
        if not isinstance(name, str) or name not in values:
            raise NetworkError(
                f"with_outputs: no node computes {name!r}; allowed: {', '.join(map(str, values))}"
                f"{suggestion(str(name), map(str, values))}"
            )
        if values[name] in chosen:
            raise NetworkError(f"with_outputs: got {name!r} twice; allowed: every value once")
        chosen.append(values[name])
    model.graph.outputs.clear()
    model.graph.outputs.extend(chosen)
    passes.RemoveUnusedNodesPass()(model)
    return model


def _between(begin: Sequence[ir.Value], end: Sequence[ir.Value]) -> set[ir.Node]:
    """The nodes that compute the end values from the begin values."""
    ahead, kept = deque(value.producer() for value in end if value not in begin), set()
    while ahead:
        node = ahead.popleft()
        if node is None or node in kept:
            continue
        kept.add(node)
        ahead += [value.producer() for value in node.inputs if value is not None and value not in begin]
    return kept
