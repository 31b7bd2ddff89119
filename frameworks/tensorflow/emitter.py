"""`Emitter`: what the table of operators writes a network's source with.

Every value has a home, the order of axes in which it was computed. Images are computed with channels last; whoever
needs another order gets a transposed copy, made once. So transposes stand only where images begin and end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import tensorflow as tf

from deep5.core.operator import Operator
from deep5.frameworks.tensorflow.order import Order, between, channels_last, keeps_memory, onnx_order
from deep5.frameworks.tensorflow.short import in_float32, through_float32
from deep5.networks.constants import constant_tensor, constant_value
from deep5.networks.network import Network
from deep5.networks.nodes import extents, fixed

__all__ = ["Emitter"]


class Emitter(ABC):
    """Collects the source. Names of the model file never enter it: every value gets a generated identifier.

    Args:
        network: What is written.
        live: The order in which each parameter and buffer lies, by name.
        device: Where the network runs, as TensorFlow names it.
        xla: Whether XLA compiles it.
        gradients: Whether gradients will be taken.
        batch_norm: What stands for batch normalisation in training; None: TensorFlow's own.
        route: From a registered operator to how TensorFlow runs it there.

    Attributes:
        device: As given.
        xla: As given.
        gradients: As given.
        batch_norm: As given.
        route: As given.
        forward_only: Whether something was written that would be slow to differentiate.
        bound: What the source refers to by name: constants, functions, element types.
    """

    def __init__(
        self,
        network: Network,
        live: Mapping[str, Order],
        *,
        device: str,
        xla: bool,
        gradients: bool,
        route: Callable[[Operator], Callable[..., tuple[Any, ...]]],
        batch_norm: Callable[..., Any] | None = None,
    ) -> None:
        self._network, self.device, self.xla, self.route = network, device, xla, route
        self.gradients, self.forward_only, self.batch_norm = gradients, False, batch_norm
        self._home: dict[ir.Value, Order] = {}
        self._names: dict[tuple[ir.Value, Order], str] = {}
        self._lines: list[str] = []
        self._count = 0
        self.bound: dict[str, Any] = {}
        graph = network.model.graph
        self._inputs = [value for value in graph.inputs if value.name in network.inputs]
        self._live = [value for name, value in graph.initializers.items() if name in live]
        for value in self._inputs:
            self._settle(value, onnx_order(len(extents(value))))
        for value in self._live:
            self._settle(value, live[str(value.name)])

    def name(self, value: ir.Value | None) -> str:
        """The identifier of a value in ONNX's order; `None` for an input left out."""
        if value is None:
            return "None"
        return self.ordered(value, onnx_order(len(self._home.get(value, ())) or len(extents(value))))

    def ordered(self, value: ir.Value | None, order: Order) -> str:
        """The identifier of a value in an order; written as a transpose where it does not lie so already."""
        assert value is not None  # noqa: S101 - told by the operator's definition
        if value not in self._home:
            self._constant(value)
        if (value, order) not in self._names:
            home = self._home[value]
            target = self._names[value, order] = self._fresh()
            self.line(f"{target} = {self.function(_permuted)}({self._names[value, home]}, {between(home, order)})")
        return self._names[value, order]

    def order(self, value: ir.Value | None) -> Order:
        """The order in which a value lies."""
        return onnx_order(len(extents(value))) if value not in self._home else self._home[value]

    def common_order(self, values: Sequence[ir.Value | None]) -> Order:
        """The order in which to compute something element by element."""
        present = [value for value in values if value is not None]
        most = max(len(extents(value)) for value in present)
        found = {self.order(value) for value in present if len(extents(value)) == most}
        if any(value.shape is None for value in present):
            return onnx_order(0)  # nobody knows how many axes there will be: as ONNX has them
        if most > 2 and channels_last(most) in found:
            return channels_last(most)
        return found.pop() if len(found) == 1 else onnx_order(most)

    def aligned(self, value: ir.Value | None, order: Order) -> str:
        """The identifier of a value as it is combined, by broadcasting, with others that lie in an order."""
        axes = 0 if value is None else len(extents(value))
        if axes == len(order):
            return self.ordered(value, order)
        text = self.name(value)
        if axes == 0 or not order or order == onnx_order(len(order)):
            return text
        return f"{self.function(_broadcastable)}({text}, {order})"

    def setting(self, node: ir.Node, position: int) -> str:
        """The source of whole numbers that must be known where the operator is called: a list, or a reading."""
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is None:
            return "None"
        known = fixed(node, position)
        if known is not None:
            return f"{known.reshape(-1).tolist()}"
        return f"{self.function(_read)}({self.name(value)})"

    @abstractmethod
    def nested(self, graph: ir.Graph) -> str:
        """Write a graph inside a node as a function of its inputs, which gives a tuple of its outputs."""

    def function(self, function: Callable[..., Any]) -> str:
        """The identifier of a function."""
        name = f"f_{function.__name__.lstrip('_')}"
        while self.bound.setdefault(name, function) is not function:
            name += "_"
        return name

    def product(self, node: ir.Node, function: Callable[..., Any]) -> str:
        """The identifier of a function that computes a node's product, in float32 where a kernel sums in less."""
        kind = node.outputs[0].dtype
        wide = kind is not None and through_float32(str(kind.numpy()), self.device, xla=self.xla)
        return self.function(in_float32(function) if wide else function)

    def bind(self, value: Any) -> str:
        """An identifier for something that a function takes as it is."""
        name = f"a{len(self.bound)}"
        self.bound[name] = value
        return name

    def dtype(self, value: ir.Value | None) -> str:
        """The identifier of a value's element type."""
        name = str(value.dtype.numpy())  # type: ignore[union-attr]  # types were inferred
        self.bound[f"t_{name}"] = tf.as_dtype(name)
        return f"t_{name}"

    def assign(self, node: ir.Node, text: str, order: Order | None = None) -> None:
        """Append the line that computes a node's first output, which lies in an order, ONNX's where none is told."""
        self.line(f"{self.output(node, 0, order)} = {text}")

    def output(self, node: ir.Node, position: int, order: Order | None = None) -> str:
        """The identifier that an output is assigned to; the line follows at once."""
        value = node.outputs[position]
        return self._settle(value, order or onnx_order(len(extents(value))))

    def alias(self, node: ir.Node, permutation: Order) -> None:
        """Make a node's output its input with the axes permuted: nothing is computed, only the order is another."""
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None or result.shape is None:
            self.assign(node, self.name(source))
            return
        if source not in self._home:
            self._constant(source)
        home = self._home[source]
        self._home[result] = tuple(permutation.index(axis) for axis in home)
        self._names[result, self._home[result]] = self._names[source, home]

    def assign_all(self, node: ir.Node, text: str, *orders: Order | None) -> None:
        """Append the line that computes all outputs that a node has, of the tuple that a source text is."""
        targets = [
            self.output(node, index, orders[index] if index < len(orders) else None) if value.name else "_"
            for index, value in enumerate(node.outputs)
        ]
        self.line(f"{', '.join(targets)}, *_ = {text}")

    def line(self, text: str) -> None:
        """Append a line of the body."""
        self._lines.append(text)

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _settle(self, value: ir.Value, order: Order) -> str:
        self._home[value] = order
        name = self._names[value, order] = self._fresh()
        return name

    def _constant(self, value: ir.Value | None) -> None:
        """Bind a constant and write the line that makes a tensor of it, so that TensorFlow may fold what it enters."""
        array = constant_value(value)
        if array is None:  # a number in a graph inside a node, which nobody trains
            array = constant_tensor(value).numpy()  # type: ignore[arg-type,union-attr]  # or it would have a home
        name = self._settle(value, onnx_order(len(extents(value))))  # type: ignore[arg-type]
        self.bound[f"c_{name}"] = array
        self.line(f"{name} = {self.function(tf.constant)}(c_{name})")


def _read(x: Any) -> Any:
    """What a tensor holds, where the network runs operator by operator."""
    return x.numpy().reshape(-1).tolist()


def _permuted(x: Any, permutation: Order) -> Any:
    """The axes in another order; a change of shape where nothing has to be moved."""
    shape = x.shape.as_list()
    if keeps_memory(shape, permutation) and shape.count(None) <= 1:
        return tf.reshape(x, [-1 if shape[axis] is None else shape[axis] for axis in permutation])
    return tf.transpose(x, permutation)


def _broadcastable(x: Any, order: Order) -> Any:
    """A value of fewer axes, with leading axes of extent 1 and in an order."""
    for _ in range(len(order) - x.shape.rank):
        x = tf.expand_dims(x, 0)
    return tf.transpose(x, order)
