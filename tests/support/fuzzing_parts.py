"""Sources of the mutations of models: extreme values, and the parts of a model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto

__all__ = [
    "DTYPES",
    "EXTENTS",
    "FLOATS",
    "INTS",
    "NUMBERS",
    "PATHS",
    "SCHEMAS",
    "TEXTS",
    "UNARY",
    "Inapplicable",
    "Mutation",
    "attributes_of",
    "feed_into",
    "graphs_of",
    "infos_of",
    "names_of",
    "nodes_of",
    "opset_of",
    "pick",
    "readable",
    "tensor_types_of",
    "tensors_of",
]

INTS = (0, 1, -1, 2, 3, 7, -3, 255, 1 << 31, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 - (1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 3e38, -3e38, 1e39, math.inf, -math.inf, math.nan)
TEXTS = (
    "",
    "\0",
    "a\0b",
    "..",
    "../x",
    "x" * 5000,
    "NOTSET",
    "linear",
    "SAME_UPPER",
    "äöü\u202e",
    "import os",
    "%s{}",
)
EXTENTS = (0, 1, 2, 3, 5, 17, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -1)
DTYPES = sorted(set(TensorProto.DataType.values()) | {99})
PATHS = (
    "../outside/secret.bin", "sub/../../outside/secret.bin", "link.bin", "linked/secret.bin", "{outside}/secret.bin",
    "/etc/passwd", "/dev/zero", "fifo", "hard.bin", "weights.bin\0", "a\0b", "\0", "", ".", "..", "sub",
    "~/x", "x" * 5000, "weights.bin/", "./weights.bin", "./sub/../weights.bin", "nothing.bin", "file://weights.bin",
)  # fmt: skip
NUMBERS = ("0", "48", "-1", "-48", "1", "16", str(1 << 40), str(1 << 62), str(1 << 63), str(1 << 64), "1e3", "x", "",
            "0x10", " 4", "٣", "9" * 5000, "nan")  # fmt: skip

SCHEMAS = sorted(
    (schema for schema in onnx.defs.get_all_schemas() if not schema.deprecated and schema.domain in ("", "ai.onnx.ml")),
    key=lambda schema: (schema.domain, schema.name),
)
UNARY = ("Relu", "Neg", "Identity", "Shape", "Size", "NonZero", "Transpose", "Flatten", "Not", "Round", "Sqrt", "Cast",
          "Dropout", "Softmax", "Unique", "ReduceSum", "Squeeze", "Exp", "Det", "SequenceConstruct")  # fmt: skip

Mutation = Callable[[random.Random, onnx.ModelProto], None]


class Inapplicable(Exception):
    """The mutation does not apply to the model."""


def pick(rng: random.Random, things: Sequence[Any] | Any) -> Any:
    held = list(things)
    if not held:
        raise Inapplicable
    return rng.choice(held)


def graphs_of(model: onnx.ModelProto) -> list[Any]:
    """The graph, those inside nodes, and functions."""
    found: list[Any] = [model.graph, *model.functions]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    found.append(attribute.g)
                found += attribute.graphs
    return found


def opset_of(model: onnx.ModelProto) -> int:
    return next((each.version for each in model.opset_import if not each.domain), 20)


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in graphs_of(model):
        yield from graph.node


def attributes_of(model: onnx.ModelProto) -> list[AttributeProto]:
    return [attribute for node in nodes_of(model) for attribute in node.attribute]


def tensors_of(model: onnx.ModelProto) -> list[TensorProto]:
    found = [tensor for graph in graphs_of(model) for tensor in getattr(graph, "initializer", ())]
    return found + [each.t for each in attributes_of(model) if each.type == AttributeProto.TENSOR]


def infos_of(model: onnx.ModelProto) -> list[Any]:
    graphs = [graph for graph in graphs_of(model) if isinstance(graph, onnx.GraphProto)]
    return [info for graph in graphs for info in (*graph.input, *graph.output, *graph.value_info)]


def tensor_types_of(model: onnx.ModelProto) -> list[Any]:
    found = []
    for info in infos_of(model):
        inner = info.type
        if inner.HasField("optional_type"):
            inner = inner.optional_type.elem_type
        if inner.HasField("sequence_type"):
            inner = inner.sequence_type.elem_type
        if inner.HasField("tensor_type"):
            found.append(inner.tensor_type)
    return found


def names_of(model: onnx.ModelProto) -> list[str]:
    found = [name for node in nodes_of(model) for name in (*node.input, *node.output)]
    return found + [info.name for info in infos_of(model)] + [tensor.name for tensor in model.graph.initializer]


# Attributes.


def readable(model: onnx.ModelProto) -> list[str]:
    """The inputs and initial values that the graph's nodes read: a node before all others may read them, too."""
    return [info.name for info in (*model.graph.input, *model.graph.initializer)]


def feed_into(rng: random.Random, model: onnx.ModelProto, name: str, node: onnx.NodeProto) -> None:
    """Insert a node at the beginning, and have one reader of a value read its output instead."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    new = f"{made.output[0]}_{rng.randrange(1 << 30)}"
    made.output[0] = new
    readers = [other for other in model.graph.node if name in other.input] or [
        other for other in model.graph.node if other.input
    ]
    reader = pick(rng, [other for other in readers if other is not node])
    at = list(reader.input).index(name) if name in reader.input else rng.randrange(len(reader.input))
    reader.input[at] = new
    rest = [other for other in model.graph.node if other is not node]
    copies = []
    for other in (made, *rest):
        copy = onnx.NodeProto()
        copy.CopyFrom(other)
        copies.append(copy)
    del model.graph.node[:]
    model.graph.node.extend(copies)
