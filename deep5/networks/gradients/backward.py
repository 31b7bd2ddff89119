"""`Backward`: the builder with which gradient rules add nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported

__all__ = ["Backward", "Extents", "Gradients", "Rule", "extents", "operands", "refuse"]

Extents = tuple[int | str | None, ...]
Gradients = Sequence[ir.Value | None]


def extents(value: ir.Value) -> Extents:
    """Dimensions of a value: integers, names of symbolic dimensions, None for unknown ones.

    Raises:
        Unsupported: The rank is unknown.
    """
    if value.shape is None:
        raise Unsupported(
            f"the value {value.name!r} has no known rank, got no shape; remedy: infer or declare its shape"
        )
    return tuple(extent if isinstance(extent, int) else extent.value for extent in value.shape)


def refuse(node: ir.Node, reason: str) -> Unsupported:
    """The error to raise for a node that has no gradient rule."""
    return Unsupported(f"no gradient for node {node.name!r} ({node.op_type}): {reason}")


def operands(node: ir.Node, count: int) -> tuple[ir.Value, ...]:
    """The first inputs of a node, none of which may be omitted."""
    values = tuple(value for value in node.inputs[:count] if value is not None)
    if len(values) < count:
        raise refuse(node, f"got {len(values)} inputs; allowed: at least {count}")
    return values


class Backward:
    """The backward pass under construction: adds nodes to a graph and names their values.

    Args:
        graph: The graph that receives the nodes.
        wanted: Values whose gradient is needed; rules skip the others.
        before: The node before which nodes are inserted; None: at the end of the graph.
        prefix: Prefix of the new nodes' names.
        rules: The rules of other operators, for rules composed of them.
        around: The builder of the enclosing graph, or another of this graph; new names are unique in both.

    Attributes:
        graph: As given.
        rules: As given.
        prefix: As given; gradient nodes are prefixed with the name of their layer, to which their time is attributed.
    """

    def __init__(
        self,
        graph: ir.Graph,
        wanted: Collection[ir.Value] = (),
        *,
        before: ir.Node | None = None,
        prefix: str = "backward",
        rules: Mapping[str, Rule] | None = None,
        around: Backward | None = None,
    ) -> None:
        self.graph, self._before, self.prefix, self.rules = graph, before, prefix, rules or {}
        self._wanted = wanted
        self._taken: set[str | None] = set() if around is None else around._taken
        if around is None or around.graph is not graph:
            for node in graph.all_nodes():
                self._taken.update(value.name for value in (*node.inputs, *node.outputs) if value is not None)
            self._taken.update(value.name for value in graph.inputs)
            self._taken.update(graph.initializers)
        self._count = 0
        self._shapes: dict[ir.Value, ir.Value] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def want(self, values: Collection[ir.Value]) -> None:
        """Set the values whose gradient is needed, if they were not known at construction."""
        self._wanted = values

    def wants(self, value: ir.Value | None) -> bool:
        """Whether the gradient of this value is needed."""
        return value is not None and value in self._wanted

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node with one output; returns that output."""
        (value,) = self.ops(op_type, 1, *inputs, **attributes)
        return value

    def ops(
        self, op_type: str, outputs: int, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """Add a node; returns its outputs."""
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs)
        self._count += 1
        node.name = f"{self.prefix}_{self._count}_{op_type}"
        for index, value in enumerate(node.outputs):
            value.name = self.fresh(f"{node.name}_output" + (f"_{index}" if index else ""))
        if self._before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self._before, node)
        return node.outputs

    def fresh(self, name: str) -> str:
        """The name, with underscores appended until it is unused."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def ints(self, *values: int) -> ir.Value:
        """A vector of int64, such as axes or a shape."""
        return self._constant(np.array(values, dtype=np.int64))

    def integer(self, value: int) -> ir.Value:
        """A scalar of int64."""
        return self._constant(np.array(value, dtype=np.int64))

    def floats(self, *values: float) -> ir.Value:
        """A vector of float32, such as scales, regardless of the network's element type."""
        return self._constant(np.array(values, dtype=np.float32))

    def like(self, number: float | Sequence[float], value: ir.Value) -> ir.Value:
        """A number, or a vector of numbers, of the element type of `value`."""
        if value.dtype is None:
            raise Unsupported(f"the value {value.name!r} has no known element type; remedy: infer or declare it")
        return self._constant(np.array(number, dtype=value.dtype.numpy()))

    def _constant(self, array: np.ndarray) -> ir.Value:
        # A Constant node, not an initializer: a network treats float initializers as parameters. One per content.
        content = array.dtype.name, array.shape, array.tobytes()
        if content not in self._constants:
            self._constants[content] = self.op("Constant", value=ir.AttrTensor("value", ir.Tensor(array)))
        return self._constants[content]

    def shape(self, value: ir.Value | None) -> ir.Value:
        """The shape of a value at run time, int64; one Shape node per value."""
        if value is None:
            raise Unsupported("the shape of a value that is left out; allowed: a value")
        if value not in self._shapes:
            self._shapes[value] = self.op("Shape", value)
        return self._shapes[value]

    def zeros(self, value: ir.Value) -> ir.Value:
        """Zeros of the shape and element type of a value."""
        return self.op("Expand", self.like(0.0, value), self.shape(value))

    def scaled(self, value: ir.Value | None, factor: float, like: ir.Value) -> ir.Value | None:
        """`factor * value`, or the value itself if the factor is 1; `like` gives the element type."""
        return value if factor == 1.0 else self.op("Mul", value, self.like(factor, like))

    def output(self, node: ir.Node, index: int, shape: ir.Shape | None, dtype: ir.DataType | None) -> ir.Value:
        """An optional output of a node, added if the node does not have it."""
        if len(node.outputs) <= index:
            node.resize_outputs(index + 1)
        value = node.outputs[index]
        if not value.name:
            value.name = self.fresh(f"{node.outputs[0].name}_{index}")
            value.shape = shape
            value.type = None if dtype is None else ir.TensorType(dtype)
        return value

    def unbroadcast(self, gradient: ir.Value | None, shape: Extents, target: ir.Value) -> ir.Value | None:
        """Sum a gradient over the axes along which `target` was broadcast.

        Args:
            gradient: The gradient of the broadcast value.
            shape: Its dimensions.
            target: The value that was broadcast; the result is its gradient, of its own shape.

        References:
            ONNX, Broadcasting in ONNX: the adjoint of repeating along an axis is the sum over it.
        """
        goal = extents(target)
        lead = len(shape) - len(goal)
        axes, known = list(range(lead)), True
        for axis, (got, want) in enumerate(zip(shape[lead:], goal, strict=True), start=lead):
            if want == 1:
                if got != 1:
                    axes.append(axis)
            elif not isinstance(want, int) and (want is None or want != got):
                known = False  # a symbolic dimension that may be 1 when the network runs
        if not known:
            return self._unbroadcast_at_run_time(gradient, lead, target)
        if not axes:
            return gradient
        if len(axes) == lead:
            return self.op("ReduceSum", gradient, self.ints(*axes), keepdims=0)
        total = self.op("ReduceSum", gradient, self.ints(*axes), keepdims=1)
        return self.op("Squeeze", total, self.ints(*range(lead))) if lead else total

    def _unbroadcast_at_run_time(self, gradient: ir.Value | None, lead: int, target: ir.Value) -> ir.Value:
        goal = self.shape(target)
        aligned = self.op("Concat", self.ints(*[1] * lead), goal, axis=0) if lead else goal
        # If the target's dimension is 1, the sum is correct whether or not it was repeated: a sum over one element is
        # itself.
        ones = self.op("NonZero", self.op("Equal", aligned, self.ints(1)))
        axes = self.op("Reshape", ones, self.ints(-1))
        total = self.op("ReduceSum", gradient, axes, keepdims=1, noop_with_empty_axes=1)
        return self.op("Reshape", total, goal)


Rule = Callable[[Backward, ir.Node, Gradients], Gradients]
"""A rule takes a node and the gradients of its outputs, and returns the gradients of its inputs in order. None marks an
output that the loss does not depend on, and an input whose gradient is not needed.
"""
