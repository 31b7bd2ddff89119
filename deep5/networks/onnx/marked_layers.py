"""Layers that a converter passed through as marks become single ONNX operators: batch normalization and dropout.

A converter writes what a layer computes in one mode, in many nodes. So the library's tracer calls a stand-in instead,
which marks the values that enter the layer and the one that leaves it. Between the marks may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.errors import Unsupported

__all__ = ["DOMAIN", "NORMALIZED", "RESULT", "SOURCE", "MarkedLayer", "in_order", "mark", "with_marked_layers"]

DOMAIN = "deep5.marks"
"""The domain of the nodes that mark a value; each has one input, one output and the attribute `mark`."""

SOURCE, RESULT = "source", "result"
"""Roles of the array that enters a layer, and of the one that leaves it."""

NORMALIZED: Mapping[str, float | None] = {"scale": 1.0, "offset": 0.0, "mean": None, "variance": None}
"""Roles of the vectors of a batch normalization, in ONNX's order, with the value of one that is absent."""


@dataclass(frozen=True, kw_only=True)
class MarkedLayer:
    """A call of a layer.

    Attributes:
        op_type: `"BatchNormalization"`, with the channels on axis 1, or `"Dropout"`.
        name: The layer, for messages.
        dtype: The element type of the array.
        numbers: Of a batch normalization `epsilon` and `momentum`, of a dropout `ratio`.
        channels: Of a batch normalization, their number.
        shared: Axes along which a dropout drops all elements or none.
    """

    op_type: str
    name: str
    dtype: str
    numbers: Mapping[str, float]
    channels: int = 0
    shared: tuple[int, ...] = ()


def mark(number: int, role: str) -> str:
    """The attribute `mark` of a role in a call.

    >>> mark(2, RESULT)
    '2 result'
    """
    return f"{number} {role}"


def with_marked_layers(proto: Any, layers: Sequence[MarkedLayer]) -> Any:
    """The model with one operator for each call of a layer, in the order of the calls.

    Args:
        proto: An `onnx.ModelProto` whose nodes are in topological order; it is changed.
        layers: The calls; the number of a call is its position.

    Returns:
        `proto`, without nodes that no output needs.

    Raises:
        Unsupported: A mark is missing, or lies in a nested graph such as a loop.
    """
    import onnx

    graph = proto.graph
    marked = {_mark_of(node): node for node in graph.node if node.domain == DOMAIN}
    constants: list[tuple[str, np.ndarray]] = []
    made: dict[str, list[Any]] = {}
    for number, layer in enumerate(layers):
        found = {role: marked.pop(mark(number, role), None) for role in (SOURCE, RESULT, *NORMALIZED)}
        if found[SOURCE] is None or found[RESULT] is None:
            raise Unsupported(
                f"the layer {layer.name} is called in a loop or a branch, or its result is not used; allowed: layers "
                "outside of these"
            )
        values = {role: node.input[0] for role, node in found.items() if node is not None}
        result = found[RESULT].output[0]
        made[result] = list(_operators(f"{DOMAIN}/{number}", layer, values, result, constants))
    if marked or any(_has_marks(inner) for node in graph.node for inner in _nested(node)):
        raise Unsupported("a layer is called in a loop or a branch; allowed: layers outside of these")
    nodes = [new for node in graph.node for new in made.get(node.output[0], [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants)
    kept = [each for each in proto.opset_import if each.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    return in_order(proto, list(made))


def _operators(
    name: str, layer: MarkedLayer, values: Mapping[str, str], result: str, constants: list[tuple[str, np.ndarray]]
) -> Iterator[Any]:
    """The nodes of a call; adds the constants that they read."""
    import onnx

    source = values[SOURCE]

    def constant(role: str, array: Any) -> str:
        constants.append((f"{name}/{role}", np.asarray(array)))
        return constants[-1][0]

    def node(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
        return onnx.helper.make_node(op_type, inputs, [output], f"{name}/{op_type}", **attributes)

    if layer.op_type == "BatchNormalization":
        vectors = [
            values[role] if role in values else constant(role, np.full(layer.channels, number, layer.dtype))
            for role, number in NORMALIZED.items()
        ]
        yield node("BatchNormalization", [source, *vectors], result, **layer.numbers)
        return
    given = [constant("ratio", np.float32(layer.numbers["ratio"])), constant("training", np.bool_(True))]
    if not layer.shared:
        yield node("Dropout", [source, *given], result)
        return
    axes = len(layer.shared)
    bounds = [constant("starts", np.zeros(axes, np.int64)), constant("ends", np.ones(axes, np.int64))]
    first, shape, ones, kept = (f"{name}/{part}" for part in ("first", "shape", "ones", "kept"))
    yield node("Slice", [source, *bounds, constant("axes", np.array(layer.shared, np.int64))], first)
    yield node("Shape", [first], shape)
    one = onnx.numpy_helper.from_array(np.ones(1, layer.dtype), "one")
    yield node("ConstantOfShape", [shape], ones, value=one)
    yield node("Dropout", [ones, *given], kept)
    yield node("Mul", [source, kept], result)


def in_order(proto: Any, values: Sequence[str] = ()) -> Any:
    """The model with nodes and initial values in an order that follows from what it computes.

    Args:
        proto: An `onnx.ModelProto`; it is changed.
        values: Of these values, each is computed before the next.

    Returns:
        `proto`, without the nodes and initial values that no output needs.
    """
    graph = proto.graph
    makers = {name: node for node in graph.node for name in node.output if name}
    initial = {value.name: value for value in graph.initializer}
    nodes: dict[int, Any] = {}
    used: dict[str, Any] = {}
    # A value is taken twice: first its node's inputs are added, then the node.
    waiting = [(name, False) for name in reversed([*values, *(value.name for value in graph.output)])]
    while waiting:
        name, again = waiting.pop()
        node = makers.get(name)
        if name in initial:
            used[name] = initial[name]
        elif node is not None and again:
            nodes[id(node)] = node
        elif node is not None and id(node) not in nodes:
            waiting += [(name, True), *((each, False) for each in reversed(_read(node)))]
    ordered, kept = [_copied(node) for node in nodes.values()], [_copied(value) for value in used.values()]
    for stored, new in ((graph.node, ordered), (graph.initializer, kept)):
        del stored[:]
        stored.extend(new)
    return proto


def _copied(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _read(node: Any) -> list[str]:
    """The values that a node reads, those of the graphs in it included."""
    names = list(node.input)
    for graph in _nested(node):
        names += [value.name for value in graph.output]
        for inner in graph.node:
            names += _read(inner)
    return names


def _nested(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _has_marks(graph: Any) -> bool:
    return any(node.domain == DOMAIN or any(map(_has_marks, _nested(node))) for node in graph.node)


def _mark_of(node: Any) -> str:
    return str(next(attribute.s.decode() for attribute in node.attribute if attribute.name == "mark"))
