"""Limits on what a file may request: a few bytes must not exhaust memory or start an endless computation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.core.time_limit import MOST_ITERATIONS, current_limit, too_many
from deep5.networks.constants import constant_value
from deep5.networks.nodes import RESHAPING, nested, origin, subgraphs
from deep5.networks.onnx.protos import declared_values, nested_nodes
from deep5.networks.transforms.control_flow import never_stops

__all__ = [
    "Count",
    "beyond_limits",
    "check_calls",
    "check_declared",
    "drop_uncalled",
    "fed_counts",
    "followable",
]

# Limit on the nodes that inlined function calls expand to: reading this many takes about fifteen seconds.
_MOST_NODES = 100_000
# Limit on the vector elements whose values ONNX's inference propagates: eight million take it a second.
_MOST_FOLLOWED = 1 << 22
# Limit on the size of an array: more than the memory of any single machine that runs a network.
_MOST_BYTES = 1 << 40
# An array of more bytes than this cannot be addressed.
_MOST_ELEMENTS = 1 << 62


def check_calls(what: str, proto: onnx.ModelProto) -> None:
    """Reject recursive functions, and functions whose nested calls expand to too many nodes to inline.

    Args:
        what: Name of the model in messages.
        proto: The model.

    Raises:
        NetworkError: The functions that call themselves, or the number of nodes that the calls expand to.
    """
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    if not functions:
        return
    sizes: dict[tuple[str, str, str], int] = {}
    for start in functions:
        waiting = [start]  # iterative: a file may have any number of functions
        while waiting:
            key = waiting[-1]
            if key in sizes:
                waiting.pop()
                continue
            called = {_key(node) for node in nested_nodes(functions[key].node)} & functions.keys()
            missing = [each for each in called if each not in sizes]
            if not missing:
                sizes[key] = _size(functions[key].node, sizes)
                waiting.pop()
            elif circle := [each for each in missing if each in waiting]:
                raise NetworkError(
                    f"{what} is not valid ONNX: the function {_called(circle[0])} calls itself, directly or by way of "
                    "others; allowed: functions that do not"
                )
            else:
                waiting.append(missing[0])
    count = _size(proto.graph.node, sizes)
    own = sum(1 for _ in nested_nodes(proto.graph.node))
    if count - own > _MOST_NODES + sum(len(each.node) for each in proto.functions):
        raise NetworkError(
            f"{what} has function calls that expand to {count:,} nodes; allowed: {_MOST_NODES:,} beyond "
            "those in the file; remedy: export it without functions"
        )


def drop_uncalled(proto: onnx.ModelProto) -> None:
    """Remove functions that no node of the graph calls, directly or indirectly: no later step reads them."""
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    called: set[tuple[str, str, str]] = set()
    waiting = [proto.graph.node]
    while waiting:
        found = {_key(node) for node in nested_nodes(waiting.pop())} & functions.keys() - called
        called |= found
        waiting += [functions[key].node for key in found]
    kept = [each for key, each in functions.items() if key in called]
    if len(kept) < len(proto.functions):
        copies = [onnx.FunctionProto.FromString(each.SerializeToString()) for each in kept]
        del proto.functions[:]
        proto.functions.extend(copies)


def check_declared(what: str, proto: onnx.ModelProto) -> None:
    """Reject negative dimensions, and shapes that exceed any memory, wherever a graph declares them.

    ONNX's own inference crashes the process on some of the former, and exhausts memory on some of the latter.

    Args:
        what: Name of the model in messages.
        proto: The model.

    Raises:
        NetworkError: The value and its shape.
    """
    for name, shape in (*((value.name, _shape(value.type)) for value in declared_values(proto)), *_sparse(proto)):
        if wrong := [extent for extent in shape if extent < 0]:
            raise NetworkError(
                f"{what}: the value {name!r} has the dimension {wrong[0]}; allowed: at least 0, or -1 if it is "
                "unknown; remedy: a name, such as 'N', where a dimension varies"
            )
        elements = 1
        for extent in shape:
            elements *= extent or 1
        if elements > _MOST_ELEMENTS:
            raise NetworkError(f"{what}: the value {name!r} has the shape {shape}, which exceeds any memory")


def beyond_limits(nodes: Sequence[ir.Node]) -> list[str]:
    """One line per node that no machine can run: its output exceeds any memory, or nothing ends its loop in time."""
    return [*_beyond_memory(nodes), *_without_end(nodes), *(_too_long(nodes) if current_limit() is None else ())]


def _beyond_memory(nodes: Iterable[ir.Node]) -> list[str]:
    """One line per node whose output exceeds the memory of any machine, as far as shapes are known."""
    refused = []
    for node in nodes:
        for value in node.outputs:
            if value.shape is None or value.dtype in (None, ir.DataType.STRING) or not value.shape.is_static():
                continue
            size = math.prod(value.shape.numpy()) * value.dtype.itemsize
            if size > _MOST_BYTES:
                refused.append(
                    f"{node.name or node.op_type} ({node.op_type}): {value.name!r} of shape "
                    f"{list(value.shape.numpy())} takes {size:.2g} bytes; allowed: {_MOST_BYTES:.2g}"
                )
    return refused


def _without_end(nodes: Iterable[ir.Node]) -> list[str]:
    """One line per loop, nested or not, that neither a count nor a condition ends."""
    return [
        f"{node.name or node.op_type} (Loop): no count, and a condition that always holds; allowed: a loop that ends"
        for outer in nodes
        for node in (outer, *nested(outer))
        if _is_loop(node) and (not node.inputs or node.inputs[0] is None) and never_stops(node)
    ]


def _too_long(nodes: Iterable[ir.Node], outer: int = 1) -> Iterator[str]:
    """One line per loop of a known length that only its length ends, and which is too long; `outer` is how often the
    nodes run."""
    for node in nodes:
        known = constant_value(node.inputs[0]) if _is_loop(node) and node.inputs else None
        steps = 1
        if known is not None and known.size == 1 and never_stops(node):
            steps = int(known.reshape(()))
        if steps > 1 and outer * steps > MOST_ITERATIONS:
            yield f"{node.name or node.op_type} (Loop): {too_many(outer * steps)}"
            continue
        for graph in subgraphs(node).values():
            yield from _too_long(graph, outer * max(steps, 1))


@dataclass(frozen=True, kw_only=True)
class Count:
    """A network input that sets the iterations of a loop that nothing else ends.

    Attributes:
        position: Index of the input among the network's inputs.
        name: Its name.
        most: The largest number of rows that fits into a machine's memory; None: the loop makes no rows.
    """

    position: int
    name: str
    most: int | None

    def check(self, value: np.ndarray) -> None:
        """Check a count before the loop runs.

        Raises:
            NetworkError: The loop's rows would exceed any memory, or it is too long without a time limit.
        """
        count = int(value.max()) if value.size else 0
        if self.most is not None and count > self.most:
            raise NetworkError(
                f"input {self.name!r}: got {count:,} iterations of a loop whose rows exceed any memory; allowed: at "
                f"most {self.most:,}"
            )
        if count > MOST_ITERATIONS and current_limit() is None:
            raise NetworkError(f"input {self.name!r}: got {too_many(count)}")


def fed_counts(inputs: Iterable[str], nodes: Iterable[ir.Node]) -> list[Count]:
    """The inputs that set the number of iterations of loops that nothing else ends.

    Args:
        inputs: Names of the network's inputs.
        nodes: Its nodes.
    """
    positions = {name: position for position, name in enumerate(inputs)}
    found = []
    for node in nodes:
        if not _is_loop(node) or not never_stops(node):
            continue
        count = origin(node.inputs[0] if node.inputs else None, RESHAPING)
        rows = node.attributes["body"].as_graph().outputs[len(node.inputs) - 1 :]
        name = "" if count is None else str(count.name)
        if name in positions:
            most = _MOST_BYTES // max(map(_least_bytes, rows)) if rows else None
            found.append(Count(position=positions[name], name=name, most=most))
    return found


def followable(proto: onnx.ModelProto) -> bool:
    """Whether ONNX's inference may propagate the values of vectors: it visits each element of vectors of known size.

    Args:
        proto: The model, with the shapes inferred without value propagation.
    """
    shapes = ((value.name, _shape(value.type)) for value in declared_values(proto))
    extents = {name: shape[0] for name, shape in shapes if len(shape) == 1}
    extents |= {tensor.name: tensor.dims[0] for tensor in proto.graph.initializer if len(tensor.dims) == 1}
    if not extents:
        return True
    read = (name for node in nested_nodes(proto.graph.node) for name in node.input)
    return sum(extents.get(name, 0) for name in read) <= _MOST_FOLLOWED


def _is_loop(node: ir.Node) -> bool:
    return node.op_type == "Loop" and not node.domain


def _least_bytes(row: ir.Value) -> int:
    """The least bytes that a row takes, at least 1: unknown dimensions count as 1."""
    extents = [extent for extent in row.shape or () if isinstance(extent, int)]
    kind = row.dtype
    return max(1, math.prod(extents) * (1 if kind in (None, ir.DataType.STRING) else math.ceil(kind.itemsize)))


def _key(node: onnx.NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _called(key: tuple[str, str, str]) -> str:
    return repr(f"{key[0]}.{key[1]}" if key[0] else key[1])


def _size(nodes: Iterable[onnx.NodeProto], sizes: dict[tuple[str, str, str], int]) -> int:
    return sum(sizes.get(_key(node), 1) for node in nested_nodes(nodes))


def _sparse(proto: onnx.ModelProto) -> Iterator[tuple[str, list[int]]]:
    """Sparse constants and their shapes."""
    bodies = [proto.graph.node, *(function.node for function in proto.functions)]
    for node in (node for nodes in bodies for node in nested_nodes(nodes)):
        for attribute in node.attribute:
            for tensor in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield next(iter(node.output), node.name), list(tensor.dims)


def _shape(kind: onnx.TypeProto) -> list[int]:
    """The declared dimensions; a symbolic dimension counts as 1."""
    while (form := kind.WhichOneof("value")) in ("optional_type", "sequence_type"):
        kind = getattr(kind, form).elem_type
    if form not in ("tensor_type", "sparse_tensor_type"):
        return []
    own = getattr(kind, form)
    return [extent.dim_value if extent.HasField("dim_value") else 1 for extent in own.shape.dim]
