"""Convert a model of an older opset to a newer one: every node, also those of nested graphs, by one table of steps."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from deep5.core.errors import Deep5Error
from deep5.networks.custom import standing_in

__all__ = ["WRITTEN", "Place", "Step", "converted"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a step writes its nodes: what is known of the values there, and names that are free.

    Attributes:
        types: Types of the values that a node there can read, by name; omitted where nothing is known.
        tensors: The constants that a node there can read, by name.
        taken: All names of values of the model; new ones are added.
        made: Nodes that compute the constants of a step, before the nodes that it returns.
    """

    types: Mapping[str, onnx.TypeProto]
    tensors: Mapping[str, onnx.TensorProto]
    taken: set[str]
    made: list[onnx.NodeProto] = field(default_factory=list)

    def shape(self, name: str) -> list[int | None] | None:
        """The dimensions of a value, None for each unknown one; None if the rank is unknown."""
        kind = self.types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        return [each.dim_value if each.HasField("dim_value") else None for each in kind.tensor_type.shape.dim]

    def rank(self, name: str) -> int | None:
        """The number of dimensions of a value, None if unknown."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def element_type(self, name: str) -> int | None:
        """The element type of a value as a number of `onnx.TensorProto`, None if unknown."""
        kind = self.types.get(name)
        return None if kind is None else kind.tensor_type.elem_type or None

    def value(self, name: str) -> np.ndarray | None:
        """The array of a constant; None for other values and for external ones."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        array: np.ndarray = onnx.numpy_helper.to_array(tensor)
        return array

    def name(self, base: str) -> str:
        """A name that no value of the model has, equal to `base` if possible."""
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def constant(self, base: str, array: np.ndarray) -> str:
        """The name of a new constant, which a Constant node before the step's nodes holds."""
        name = self.name(base)
        self.made.append(onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array)))
        return name

    def number_like(self, base: str, number: float, like: str) -> str:
        """The name of a new scalar of a value's element type.

        Args:
            base: The name, if it is free.
            number: A float32, as attributes hold it.
            like: The value whose element type the scalar has.
        """
        single = self.constant(base, np.array(number, np.float32))
        kind = self.element_type(like)
        if kind == onnx.TensorProto.FLOAT:
            return single
        typed = self.name(f"{base}/typed")
        if kind is None:
            self.made.append(onnx.helper.make_node("CastLike", [single, like], [typed]))
        else:
            self.made.append(onnx.helper.make_node("Cast", [single], [typed], to=kind))
        return typed

    def compute(self, operator: str, inputs: Iterable[str], base: str, **attributes: object) -> str:
        """The name of the output of a new node before the step's nodes."""
        name = self.name(base)
        self.made.append(onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name


Step = Callable[[onnx.NodeProto, Place], list[onnx.NodeProto]]
"""Changes a node of the version before, which it may modify, into nodes of a version; `Place` puts others before."""


WRITTEN = "deep5.opset"
"""Metadata of a node that is written in another opset than its model: the version."""


def converted(
    proto: onnx.ModelProto,
    steps: Mapping[str, Mapping[int, Step]],
    opset: int,
    goal: int,
    *,
    keep_opset: bool = False,
) -> onnx.ModelProto:
    """A model in another version of ONNX's own operators; nested graphs are converted too.

    Names, documentation and metadata of nodes and values, and the bits of initial values, do not change. Operators of
    other domains remain as they are.

    Args:
        proto: The model, without functions; it is not changed.
        steps: By operator, and by the opset that changed it, the function that converts a node to that opset.
        opset: The version that nodes are written in, except those whose metadata names another one.
        goal: The version to convert to.
        keep_opset: Whether the model still states `opset`: the steps replace operators by others of it.

    Raises:
        NetworkError: A node that cannot be converted.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    walk = _Walk(steps=steps, opset=opset, goal=goal, taken=_names(made.graph))
    if walk.changes(made.graph):
        # Steps that keep the opset need no types, and their models may have large initial values.
        walk.graph(made.graph, made.graph if keep_opset else _inferred(proto).graph, ChainMap(), ChainMap())
    for entry in made.opset_import:
        if not entry.domain and not keep_opset:
            entry.version = goal
    return made


@dataclass(frozen=True, kw_only=True)
class _Walk:
    steps: Mapping[str, Mapping[int, Step]]
    opset: int
    goal: int
    taken: set[str]

    def changes(self, graph: onnx.GraphProto) -> bool:
        """Whether any node changes, or has metadata to remove."""
        return any(
            self._pending(node, self._version(node))
            or any(entry.key == WRITTEN for entry in node.metadata_props)
            or any(self.changes(inner) for inner in _nested_graphs(node))
            for node in graph.node
        )

    def graph(
        self,
        graph: onnx.GraphProto,
        known: onnx.GraphProto,
        outer: ChainMap[str, onnx.TypeProto],
        constants: ChainMap[str, onnx.TensorProto],
    ) -> None:
        """Convert a graph in place.

        Args:
            graph: The graph.
            known: The same graph with inferred types.
            outer: The types of the values of the graphs around it.
            constants: The constants of the graphs around it.
        """
        types, tensors = outer.new_child(_types(graph, known)), constants.new_child(_constants(graph))
        nodes: list[onnx.NodeProto] = []
        for node, same in zip(list(graph.node), list(known.node), strict=True):
            for inner, inner_known in zip(_nested_graphs(node), _nested_graphs(same), strict=True):
                self.graph(inner, inner_known, types, tensors)
            nodes += self._node(node, types, tensors)
        del graph.node[:]
        graph.node.extend(nodes)

    def _version(self, node: onnx.NodeProto) -> int:
        return next((int(entry.value) for entry in node.metadata_props if entry.key == WRITTEN), self.opset)

    def _pending(self, node: onnx.NodeProto, version: int) -> list[int]:
        if node.domain:
            return []
        return sorted(each for each in self.steps.get(node.op_type, ()) if version < each <= self.goal)

    def _node(
        self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], tensors: Mapping[str, onnx.TensorProto]
    ) -> list[onnx.NodeProto]:
        first = onnx.NodeProto()
        first.CopyFrom(node)
        del first.metadata_props[:]
        first.metadata_props.extend(entry for entry in node.metadata_props if entry.key != WRITTEN)
        waiting, done = [(first, self._version(node))], list[onnx.NodeProto]()
        while waiting:
            first, version = waiting.pop(0)
            pending = self._pending(first, version)
            if not pending:
                done.append(first)
                continue
            place = Place(types=types, tensors=tensors, taken=self.taken)
            nodes = self.steps[first.op_type][pending[0]](first, place)
            waiting[:0] = [(each, pending[0]) for each in (*place.made, *nodes)]
        return done


def _nested_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def _names(graph: onnx.GraphProto) -> set[str]:
    held = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        held.update(node.output)
        for inner in _nested_graphs(node):
            held |= _names(inner)
    return held


def _types(graph: onnx.GraphProto, known: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """The types of a graph's values; a declared one only where none with a shape is inferred: it may be stale."""
    held = {value.name: value.type for value in (*graph.output, *graph.value_info)}
    for value in (*known.output, *known.value_info, *known.input):
        if value.type.tensor_type.HasField("shape") or not held.get(value.name, onnx.TypeProto()).WhichOneof("value"):
            held[value.name] = value.type
    for tensor in graph.initializer:
        held[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return held


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    held = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        held.pop(value.name, None)  # may be fed
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            held.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
    return held


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types that follow from its inputs, as far as ONNX infers them; its nodes are the same."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _strip(copy.graph)
    try:
        with standing_in(copy):
            return onnx.shape_inference.infer_shapes(copy)
    except Deep5Error:
        raise
    except Exception:  # onnx raises its own private classes; the model is checked later
        return proto


def _strip(graph: onnx.GraphProto) -> None:
    """Remove what a graph and the graphs in it declare of computed values."""
    del graph.value_info[:]
    for value in graph.output:
        value.ClearField("type")
    for node in graph.node:
        for inner in _nested_graphs(node):
            _strip(inner)
