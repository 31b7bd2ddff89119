"""Extract a part of a model as a separate model, up to other outputs or between values; and add a loss."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.core.errors import NetworkError, brief, suggestion
from deep5.networks.edit.edited import (
    drop,
    edited,
    free_name,
    known,
    listed,
    made_node,
    name_of,
    names_of,
    nodes_of,
    unused,
    values_of,
)
from deep5.networks.onnx.fitting import shown, unlike

__all__ = ["add_loss", "subnetwork", "with_outputs"]


def add_loss(model: ir.Model, scores: str, kind: str, label: str, name: str) -> ir.Model:
    """See `Network.add_loss`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        graph, nodes, values = copy.graph, nodes_of(copy), values_of(copy)
        source = known(scores, values, "value", "add_loss")
        if kind not in ("cross_entropy", "mean_squared_error"):
            raise NetworkError(f"add_loss: unknown loss {kind!r}; allowed: cross_entropy, mean_squared_error")
        unused(name, values, "value", "add_loss")
        if source.shape is None or source.dtype is None or (kind == "cross_entropy" and len(source.shape) < 2):
            raise NetworkError(
                f"add_loss: {scores!r} is {shown(source) if source.shape is not None else 'of unknown rank'}; allowed: "
                "a value of known rank, for cross_entropy (N, classes, …); remedy: declare its shape in the file, or "
                "name another value"
            )
        extents = list(source.shape) if kind == "mean_squared_error" else [source.shape[0], *source.shape[2:]]
        kept = ir.Shape([one if isinstance(one, int) else one.value for one in extents])
        if not isinstance(label, str) or not label:
            raise NetworkError(f"add_loss: got {brief(label)} as the label; allowed: a name")
        target = values.get(label)
        dtypes = (source.dtype,) if kind == "mean_squared_error" else (ir.DataType.INT64, ir.DataType.INT32)
        declared = ir.Value(name=label, shape=kept, type=ir.TensorType(dtypes[0]))
        if target is None:
            target = declared
            graph.inputs.append(target)
        elif unlike(target.shape, kept) or target.dtype not in dtypes:
            raise NetworkError(
                f"add_loss: the label {label!r} is {shown(target)}, and the scores {scores!r} {shown(source)}; allowed"
                f": {shown(declared)}; remedy: label={_free_target(values)!r}, which declares such an input, or an "
                "input that fits"
            )
        elif target not in graph.inputs:
            what = "an initial value" if target.is_initializer() else "computed by the network itself"
            raise NetworkError(
                f"add_loss: the label {label!r} is {what}; allowed: an input, or a name that no value has; remedy: "
                f"label={_free_target(values)!r}, which declares such an input"
            )
        if kind == "cross_entropy":
            chain: list[tuple[str, list[ir.Value], dict[str, Any]]] = [
                ("SoftmaxCrossEntropyLoss", [source, target], {"reduction": "mean"})
            ]
        else:
            chain = [("Sub", [source, target], {}), ("Mul", [], {}), ("ReduceMean", [], {"keepdims": 0})]
        made: list[ir.Node] = []
        for op_type, begin, attributes in chain:
            given = begin or [made[-1].outputs[0]] * (2 if op_type == "Mul" else 1)
            called = free_name(op_type, nodes)
            output = name if op_type == chain[-1][0] else f"{called}_output"
            made.append(made_node(copy, op_type, given, [output], called, "", attributes, "add_loss"))
            graph.append(made[-1])
        graph.outputs.append(made[-1].outputs[0])
        return made

    return edited(model, f"the network after add_loss({scores!r})", change)


def _free_target(values: Container[str]) -> str:
    """A name for a label that no value has."""
    names = itertools.chain(["target"], (f"target_{number}" for number in itertools.count(2)))
    return next(one for one in names if one not in values)


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
