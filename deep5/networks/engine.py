"""Networks, and single nodes, in the form that an engine reads: ONNX models in memory, without weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.framework import Support
from deep5.core.memo import remember
from deep5.core.tensors import TensorSpec
from deep5.networks.network import Network
from deep5.networks.nodes import captures, subgraphs
from deep5.networks.onnx.light import light_proto

__all__ = ["answered", "engine_model", "node_key", "node_model"]

# Engines that read the newest opset read this IR version.
_IR_VERSION = 10
# The opset of a node outside any graph.
_OPSET = 20
# Kinds of nodes whose answers are cached: enough for some large networks.
_KINDS = 4096
_PLAIN = {
    ir.AttributeType.FLOAT,
    ir.AttributeType.FLOATS,
    ir.AttributeType.INT,
    ir.AttributeType.INTS,
    ir.AttributeType.STRING,
    ir.AttributeType.STRINGS,
}


def engine_model(network: Network, *, fixed: bool = False, newest: int | None = None) -> bytes:
    """The network as a serialized model whose parameters and buffers are inputs, after the network's own inputs.

    An engine reads its inputs in place: it does not copy a weight or fold it into a constant, and sees the writes of an
    update rule.

    Args:
        network: The network.
        fixed: Parameters and buffers are initializers instead, with external data that does not exist: the engine
            receives their values in memory.
        newest: The newest opset that the engine reads; None: any. A newer network is labeled with this opset. Its nodes
            are valid in it if the engine runs their `node_model` of the same opset.
    """
    graph, live = network.model.graph, {**network.parameter_specs, **network.buffer_specs}
    inputs, initial = list(graph.inputs), list[ir.Value]()
    known = set(inputs)
    for name, value in graph.initializers.items():
        content = value.const_value
        if name in live:
            initial += [_with(value, _elsewhere(name, live[name]))] if fixed else []
        elif isinstance(content, ir.ExternalTensor):
            initial.append(_with(value, ir.Tensor(content.numpy().copy(), name=name)))
        else:
            initial.append(value)
    if not fixed:
        inputs += [graph.initializers[name] for name in live if graph.initializers[name] not in known]
    proto = light_proto(network.model, inputs, initial)
    if newest is not None and network.opset > newest:
        for entry in proto.opset_import:
            entry.version = entry.version if entry.domain else newest
        proto.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", newest)])
    data: bytes = proto.SerializeToString()
    return data


def _with(value: ir.Value, content: ir.TensorProtocol) -> ir.Value:
    """A value of the same name, shape and type with other contents."""
    return ir.Value(name=value.name, shape=value.shape, type=value.type, const_value=content)


def _elsewhere(name: str, spec: TensorSpec) -> ir.ExternalTensor:
    """A tensor whose numbers the engine receives in memory."""
    dtype = np.dtype(spec.dtype)
    length, kind = spec.size * dtype.itemsize, ir.DataType.from_numpy(dtype)
    return ir.ExternalTensor("memory", 0, length, kind, name=name, shape=ir.Shape(spec.shape), base_dir="")


def node_key(node: ir.Node) -> Hashable | None:
    """A key that is equal for two nodes whose `node_model` is equal, at a tenth of its cost.

    Returns:
        Operator, opset, attributes, element types and ranks of inputs, sizes of vectors; None if a node contains a
        graph.
    """
    if node.op_type == "Constant" and not node.domain:
        return "Constant", tuple(node.attributes), node.outputs[0].dtype  # the value does not matter
    attributes = []
    for name, attribute in node.attributes.items():
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = value.dtype, tuple(value.shape.numpy()), value.tobytes()
        elif attribute.type not in _PLAIN:
            return None
        attributes.append((name, value))
    inputs: dict[ir.Value | None, int] = {}
    for given in node.inputs:
        inputs.setdefault(given, len(inputs))
    return (
        node.domain,
        node.op_type,
        _opset(node),
        tuple(sorted(attributes)),
        tuple(inputs[value] for value in node.inputs),
        tuple(_kind(value) for value in inputs),
        tuple(value.name == "" for value in node.outputs),
    )


def answered(known: dict[Hashable, Support], node: ir.Node, ask: Callable[[ir.Node], Support]) -> Support:
    """An engine's answer for a node, requested once per kind of node.

    Args:
        known: Earlier answers, by `node_key`.
        node: The node.
        ask: Makes the engine try the node.
    """
    key = node_key(node)
    if key is None:
        return ask(node)
    found = known.get(key)
    return found if found is not None else remember(known, key, ask(node), room=_KINDS)


def node_model(node: ir.Node, newest: int | None = None) -> bytes | None:
    """A single node as a serialized model, its inputs declared as `node_key` describes them, or else in full.

    Args:
        node: The node.
        newest: The newest opset that the engine reads; see `engine_model`.

    Returns:
        The model; None if the element type of an input is unknown.
    """
    graph, whole = onnx.GraphProto(name="node"), bool(subgraphs(node))
    names = {value: str(value.name) for value in captures(node)}  # nested graphs use these names
    taken = set(names.values()) | _names_inside(node)
    free = (name for number in itertools.count() if (name := f"x{number}") not in taken)
    free_outputs = (name for number in itertools.count() if (name := f"y{number}") not in taken)
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    for value in node.inputs:
        if value is not None and value not in names:
            names[value] = next(free)
        proto.input.append("" if value is None else names[value])
    for value, name in names.items():
        info = _info(value, name, whole)
        if not info.HasField("type"):
            return None
        graph.input.append(info)
    for value in node.outputs:
        proto.output.append("" if value.name == "" else next(free_outputs))
        if proto.output[-1]:
            graph.output.append(_info(value, proto.output[-1], whole))
    graph.node.append(proto)
    versions = {"": _OPSET, **dict([_opset(node)])}
    versions[""] = min(versions[""], newest or versions[""])
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=opsets)
    data: bytes = model.SerializeToString()
    return data


def _names_inside(node: ir.Node) -> set[str]:
    """The names that the graphs inside a node give to values: a name means one value in a node and what is inside."""
    names, waiting = set[str](), [*subgraphs(node).values()]
    while waiting:
        graph = waiting.pop()
        names.update(str(value.name) for value in (*graph.inputs, *graph.initializers.values()))
        for inner in graph:
            names.update(str(value.name) for value in inner.outputs)
            waiting += subgraphs(inner).values()
    return names


def _opset(node: ir.Node) -> tuple[str, int]:
    """A node's domain, and the version of its operator set."""
    imports = node.graph.opset_imports if node.graph is not None else {}
    return node.domain, node.version or imports.get(node.domain, 1 if node.domain else _OPSET)


def _kind(value: ir.Value | None) -> Hashable:
    """Type and rank; for vectors and scalars (axes, pads, a shape) the dimensions."""
    return None if value is None else (value.type, _extents(value))


def _extents(value: ir.Value) -> tuple[int | None, ...] | None:
    if value.shape is None:
        return None
    small = len(value.shape) < 2
    return tuple(extent if small and isinstance(extent, int) else None for extent in value.shape)


def _info(value: ir.Value, name: str, whole: bool) -> onnx.ValueInfoProto:
    extents = _extents(value)
    shape = value.shape if whole or extents is None else ir.Shape(extents)
    info: onnx.ValueInfoProto = ir.to_proto(ir.Value(name=name, type=value.type, shape=shape))
    return info
