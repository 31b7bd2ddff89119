"""The nodes, graphs and declared values of a model in protobuf, nested graphs included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

__all__ = ["declared_values", "graphs_inside", "graphs_of", "nested_nodes", "without_shapes"]


def nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of nested graphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for graph in graphs_inside(node):
            waiting += graph.node


def graphs_inside(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that the node's attributes hold."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def declared_values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The declared values of the graph, its nested graphs and the functions."""
    graphs = [proto.graph]
    for function in proto.functions:
        yield from function.value_info
        graphs += [graph for node in nested_nodes(function.node) for graph in graphs_inside(node)]
    graphs += [graph for node in nested_nodes(proto.graph.node) for graph in graphs_inside(node)]
    for graph in graphs:
        yield from graph.input
        yield from graph.output
        yield from graph.value_info


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and the graphs inside its nodes."""
    waiting = [proto.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            waiting += graphs_inside(node)


def without_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that declares no shapes but those of inputs."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for graph in graphs_of(bare):
        del graph.value_info[:]
        for value in graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
    return bare
