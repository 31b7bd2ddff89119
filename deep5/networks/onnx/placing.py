"""Puts the tensors of a file where decisions want them: what training changes in initial values, others in nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from deep5.networks.constants import constant_tensor
from deep5.networks.onnx.folding import lift
from deep5.networks.onnx.initial_values import initial_value
from deep5.networks.onnx.parameters import Tensor, Use
from deep5.networks.slots import slot_of

__all__ = ["lift_statistics", "place"]


def place(model: ir.Model, tensors: Iterable[Tensor], kept: Collection[str]) -> list[str]:
    """Turn trained tensors and statistics into initial values of the graph, and other ones into Constant nodes.

    A tensor whose uses disagree is copied; the parameter keeps its name. Settings that are constants in every network
    stay as they are.

    Args:
        model: The model; changed in place.
        tensors: Its floating-point tensors, with their uses by outcome.
        kept: Names of the initial values that a caller may feed: they stay, as one, even if they are constants.

    Returns:
        The kept ones that no use trains: a frozen parameter is constant, and may be fed.
    """
    frozen = list[str]()
    taken = Counter(str(value.name) for value in _values(model.graph))
    for tensor in tensors:
        if tensor.value.name in kept and tensor.value.is_initializer() and tensor.value.graph is model.graph:
            if "trained" not in tensor.uses and any(not _constant(*use) for use in tensor.uses.get("constant", ())):
                frozen.append(str(tensor.value.name))
            continue
        # A statistic that another operator passes on becomes an initial value when that operator is folded.
        owned = [*tensor.uses.get("trained", ()), *filter(_statistic, tensor.uses.get("statistic", ()))]
        if tensor.value.is_initializer() and tensor.value.graph is model.graph:
            _settle(model, tensor, owned, taken)
        elif owned:
            _lift(model.graph, tensor, owned, taken)
        for node, position in tensor.uses.get("trained", ()):
            if _constant(node, position):
                _detach(model.graph, node, position, taken)
    return frozen


def lift_statistics(model: ir.Model) -> None:
    """Turn Constant nodes that are statistics, after folding what passed them on, into initial values."""
    for node in list(model.graph):
        if node.domain == "" and node.op_type == "Constant" and not node.outputs[0].is_graph_output():
            uses, tensor = node.outputs[0].uses(), constant_tensor(node.outputs[0])
            if tensor is not None and uses and all(_statistic((use.node, use.idx)) for use in uses):
                lift(model.graph, node, tensor)


def _settle(model: ir.Model, tensor: Tensor, owned: Sequence[Use], taken: Counter[str]) -> None:
    """Move the other uses of an initial value, except constant slots, to a Constant node."""
    graph, value = model.graph, tensor.value
    uses = [use for group in tensor.uses.values() for use in group]
    kept = set(owned)
    moved = [use for use in uses if use not in kept and not _constant(*use)]
    if not moved:
        return
    name = str(value.name)
    # In memory: an attribute cannot refer to an external file.
    content = ir.Tensor(initial_value(model, name), tensor.content.dtype)
    constant = ir.node("Constant", [], {"value": content})
    made = constant.outputs[0]
    made.shape, made.type = ir.Shape(tensor.content.shape.numpy()), ir.TensorType(tensor.content.dtype)
    for node, position in moved:
        node.replace_input_with(position, made)
    if value.uses() or value.is_graph_output():
        made.name = _unused(f"{name}/constant", taken)
    else:
        del graph.initializers[name]
        made.name = name
    _first(graph, constant)


def _lift(graph: ir.Graph, tensor: Tensor, uses: list[Use], taken: Counter[str]) -> None:
    """Move these uses of a node's output, or of a body's initial value, to an initial value of the graph."""
    value, name = tensor.value, str(tensor.value.name)
    new = _initial(name, tensor.content)
    for node, position in uses:
        node.replace_input_with(position, new)
    maker = value.producer()
    if not value.uses() and not value.is_graph_output():
        taken[name] -= 1
        if maker is not None and maker.graph is not None:
            maker.graph.remove(maker, safe=True)
        elif isinstance(value.graph, ir.Graph):
            del value.graph.initializers[name]
    elif maker is not None and not value.is_graph_output():
        taken[name] -= 1
        value.name = _unused(f"{name}/constant", taken)
    # The branches of an If may use one name twice.
    new.name = name if not taken[name] else _unused(f"{name}/parameter", taken)
    taken[new.name] = 1
    graph.initializers[new.name] = new


def _statistic(use: Use) -> bool:
    slot = slot_of(*use)
    return slot is not None and slot.kind == "statistic"


def _constant(node: ir.Node, position: int) -> bool:
    slot = slot_of(node, position)
    return slot is not None and slot.constant


def _detach(graph: ir.Graph, node: ir.Node, position: int, taken: Counter[str]) -> None:
    """Let a node read a parameter as a computed value: an initial value in this slot would be a constant."""
    value = node.inputs[position]
    if value is None:
        return
    copied = ir.node("Identity", [value])
    made = copied.outputs[0]
    made.shape, made.type = value.shape, value.type
    made.name = _unused(f"{value.name}/live", taken)
    _first(graph, copied)
    node.replace_input_with(position, made)


def _first(graph: ir.Graph, node: ir.Node) -> None:
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _initial(name: str, content: ir.TensorProtocol) -> ir.Value:
    content.name = name
    kind = ir.TensorType(content.dtype)
    return ir.Value(name=name, shape=ir.Shape(content.shape.numpy()), type=kind, const_value=content)


def _values(graph: ir.Graph) -> list[ir.Value]:
    found = [*graph.inputs, *graph.initializers.values()]
    for body in graph.subgraphs():
        found += [*body.inputs, *body.initializers.values()]
    return found + [value for node in graph.all_nodes() for value in node.outputs]


def _unused(name: str, taken: Counter[str]) -> str:
    while taken[name] > 0:
        name += "'"
    taken[name] += 1
    return name
