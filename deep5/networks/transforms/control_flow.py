"""Inline nested graphs whose execution is known ahead of time: a constant branch, a loop of known length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.nodes import origin
from deep5.networks.onnx.attributes import attribute

__all__ = ["CONTROL", "never_stops", "written_out"]

CONTROL = frozenset({"If", "Loop", "Scan"})
"""The operators that can be inlined."""

# Limit on the nodes that a graph is inlined into: beyond it, compiling is slower than running the loop.
_MOST_NODES = 20_000


def never_stops(node: ir.Node) -> bool:
    """Whether the condition of a Loop always holds: then only an iteration count can end it."""
    condition = node.inputs[1] if len(node.inputs) > 1 else None
    body: ir.Graph = node.attributes["body"].as_graph()
    return (condition is None or _holds(condition)) and _stays(body)


def written_out(node: ir.Node, counts: Mapping[str, int] | None = None) -> bool:
    """Inline an If with a constant condition, or a Loop or Scan with a known number of steps.

    The condition of another If becomes a scalar, if it is one element of an array with axes, which OpenVINO rejects.

    Args:
        node: The node, with inferred shapes; its graph is changed in place.
        counts: How often each name stands in the model: of an If, values whose name stands there once keep it. None:
            all get new names.

    Returns:
        Whether anything changed. A node stays if the branch or the number of steps is known only at run time.

    References:
        ONNX operator specifications If-19, Loop-19, Scan-19.
    """
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "If":
        return _branch(node, counts or {})
    write = {"Loop": _loop, "Scan": _scan}.get(node.op_type)
    return write is not None and write(node)


def _stays(body: ir.Graph) -> bool:
    """Whether a loop's body returns a true condition or the one that it gets."""
    after = origin(body.outputs[0], {"Identity"})
    return after is body.inputs[1] or (after is not None and _holds(after))


def _holds(value: ir.Value) -> bool:
    known = constant_value(value)
    return known is not None and known.size == 1 and bool(known.reshape(()))


def _branch(node: ir.Node, counts: Mapping[str, int]) -> bool:
    known = constant_value(node.inputs[0])
    if known is None or known.size != 1:
        return _with_scalar(node)
    branch = node.attributes["then_branch" if bool(known.reshape(())) else "else_branch"].as_graph()
    writer = _Writer(node)
    writer.finish(writer.taken(branch, [], counts))
    return True


def _with_scalar(node: ir.Node) -> bool:
    """Make the condition of an If a scalar; returns whether it was none."""
    condition, graph = node.inputs[0], node.graph
    if condition is None or condition.shape is None or not len(condition.shape) or graph is None:
        return False
    writer = _Writer(node)
    scalar = writer.op("Reshape", condition, writer.constant(np.zeros(0, np.int64)))
    scalar.shape, scalar.type = ir.Shape([]), condition.type
    graph.insert_before(node, writer.made)
    node.replace_input_with(0, scalar)
    return True


def _loop(node: ir.Node) -> bool:
    body: ir.Graph = node.attributes["body"].as_graph()
    given: list[ir.Value | None] = [*node.inputs, *[None] * (2 - len(node.inputs))]
    count, condition, state = given[0], given[1], given[2:]
    trips = constant_value(count)
    if trips is None or trips.size != 1 or not (condition is None or constant_value(condition) is not None):
        return False
    if not _stays(body) or len(state) != len(body.inputs) - 2:
        return False
    steps = int(trips.reshape(())) if condition is None or _holds(condition) else 0
    if steps < 0 or steps * max(len(body), 1) > _MOST_NODES:
        return False
    writer, kept = _Writer(node), [list[ir.Value]() for _ in body.outputs[1 + len(state) :]]
    now: Sequence[ir.Value | None] = state
    if kept and not steps and not all(map(_fixed_shape, body.outputs[1 + len(state) :])):
        return False
    for step in range(steps):
        counted = [writer.constant(np.array(step, np.int64)), writer.constant(np.array(True))]
        results = writer.run(body, [*counted, *now])
        now = results[1 : 1 + len(state)]
        for stack, value in zip(kept, results[1 + len(state) :], strict=True):
            stack.append(value)
    ends = [writer.stacked(stack, like, 0) for stack, like in zip(kept, body.outputs[1 + len(state) :], strict=True)]
    writer.finish([*now, *ends])
    return True


def _scan(node: ir.Node) -> bool:
    body: ir.Graph = node.attributes["body"].as_graph()
    scanned = int(attribute(node, "num_scan_inputs", 0))
    state = len(node.inputs) - scanned
    arrays = list(node.inputs[state:])
    axes = attribute(node, "scan_input_axes", None) or [0] * scanned
    backward = attribute(node, "scan_input_directions", None) or [0] * scanned
    stacked = body.outputs[state:]
    into = attribute(node, "scan_output_axes", None) or [0] * len(stacked)
    reverse = attribute(node, "scan_output_directions", None) or [0] * len(stacked)
    lengths = {_extent(array, axis) for array, axis in zip(arrays, axes, strict=True)}
    steps = lengths.pop() if len(lengths) == 1 else None
    if steps is None or steps * max(len(body), 1) > _MOST_NODES:
        return False
    if not steps and not all(map(_fixed_shape, stacked)):
        return False
    writer, kept = _Writer(node), [list[ir.Value]() for _ in stacked]
    now: Sequence[ir.Value | None] = node.inputs[:state]
    for step in range(steps):
        slices = [
            writer.picked(array, steps - 1 - step if flip else step, axis)
            for array, axis, flip in zip(arrays, axes, backward, strict=True)
        ]
        results = writer.run(body, [*now, *slices])
        now = results[:state]
        for stack, value in zip(kept, results[state:], strict=True):
            stack.append(value)
    ends = [
        writer.stacked(stack[::-1] if flip else stack, like, axis)
        for stack, like, axis, flip in zip(kept, stacked, into, reverse, strict=True)
    ]
    writer.finish([*now, *ends])
    return True


def _extent(value: ir.Value | None, axis: int) -> int | None:
    extent = None if value is None or value.shape is None else value.shape[axis]
    return extent if isinstance(extent, int) else None


def _fixed_shape(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static() and value.dtype is not None


class _Writer:
    """Creates the nodes that replace a node, and inserts them before it."""

    def __init__(self, node: ir.Node) -> None:
        self.node, self.made, self.runs = node, list[ir.Node](), 0

    def run(self, body: ir.Graph, given: Sequence[ir.Value | None]) -> list[ir.Value]:
        """Copy a graph's nodes, with the given values as its inputs; returns the values of its outputs."""
        return self.taken(body.clone(allow_outer_scope_values=True), given)

    def taken(
        self, body: ir.Graph, given: Sequence[ir.Value | None], counts: Mapping[str, int] = MappingProxyType({})
    ) -> list[ir.Value]:
        """Take a graph's nodes out of it, with the given values as its inputs; returns the values of its outputs."""
        stands = dict(zip(body.inputs, given, strict=True))
        prefix = f"{self.node.name}/{self.runs}"
        self.runs += 1
        outputs = list(body.outputs)
        results: list[ir.Value] = []
        for value in body.initializers.values():
            assert value.const_value is not None  # noqa: S101 - an initial value of a nested graph
            stands[value] = self.constant(value.const_value.numpy())
        for value in outputs:
            known = stands.get(value)
            if value not in stands:
                results.append(value)
            elif known is None:
                results.append(self.op("Identity", value))  # omitted; a node that reads it is rejected
            else:
                results.append(known)
        body.outputs.clear()
        for value, stand in stands.items():
            if stand is not None:
                value.replace_all_uses_with(stand)
            else:
                for use in list(value.uses()):
                    use.node.replace_input_with(use.idx, None)
        nodes = list(body)
        body.remove(nodes)
        for inner in nodes:
            inner.name = f"{prefix}/{inner.name or inner.op_type}"
            for value in inner.outputs:
                if value.name and counts.get(value.name) != 1:
                    value.name = f"{prefix}/{value.name}"
        self.made += nodes
        return results

    def constant(self, array: np.ndarray) -> ir.Value:
        value = self.op("Constant", value=ir.tensor(array))
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
        return value

    def picked(self, array: ir.Value | None, step: int, axis: int) -> ir.Value:
        """One slice of an array, with the axis removed."""
        return self.op("Gather", array, self.constant(np.array(step, np.int64)), axis=axis)

    def stacked(self, values: list[ir.Value], like: ir.Value, axis: int) -> ir.Value:
        """The values stacked along a new axis; without values, an empty array of that shape."""
        if not values:
            assert like.shape is not None  # noqa: S101 - checked before
            assert like.dtype is not None  # noqa: S101
            shape = list(like.shape.numpy())
            shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
            return self.constant(np.empty(shape, like.dtype.numpy()))
        at = self.constant(np.array([axis], np.int64))
        parts = [self.op("Unsqueeze", value, at) for value in values]
        return self.op("Concat", *parts, axis=axis)

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        name = f"{self.node.name}/{op_type}_{len(self.made)}"
        made = ir.node(op_type, inputs, attributes, num_outputs=1, name=name)
        made.outputs[0].name = f"{name}_0"
        self.made.append(made)
        return made.outputs[0]

    def finish(self, results: Sequence[ir.Value | None]) -> None:
        """Replace the original node by the new nodes."""
        graph = self.node.graph
        assert graph is not None  # noqa: S101 - the node is in one
        # Every output needs a separate value: a result may be an input, or be used twice.
        ends = [self.op("Identity", value) for value in results]
        outputs = self.node.outputs
        for old, new in zip(outputs, ends, strict=True):
            new.shape, new.type = old.shape, old.type
        ir.convenience.replace_nodes_and_values(graph, self.node, [self.node], self.made, outputs, ends)
