"""`Emitter`: the writer through which the operator table generates a network's source.

Every value has a home, the axis order in which it was computed. Images are computed channels last; a reader that needs
another order gets a transposed copy, created once. So transposes occur only where image layers begin and end.
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
from deep5.networks.narrow_results import miscomputed
from deep5.networks.network import Network
from deep5.networks.nodes import extents, fixed

__all__ = ["Emitter"]


class Emitter(ABC):
    """Collects the source, which contains no names of the model file: every value gets a generated identifier.

    Args:
        network: The network to write.
        live: The axis order of each parameter and buffer, by name.
        device: The device to run on, as TensorFlow names it.
        xla: Whether XLA compiles it.
        gradients: Whether gradients will be computed.
        batch_norm: Replaces batch normalization in training; None: TensorFlow's own.
        route: From a registered operator to the function that runs it on TensorFlow.

    Attributes:
        device: As given.
        xla: As given.
        gradients: As given.
        batch_norm: As given.
        route: As given.
        forward_only: Whether the source contains code that is slow to differentiate.
        bound: The objects that the source refers to by name: constants, functions, dtypes.
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
        """The identifier of a value in ONNX's axis order; `None` for an omitted input."""
        if value is None:
            return "None"
        return self.ordered(value, onnx_order(len(self._home.get(value, ())) or len(extents(value))))

    def ordered(self, value: ir.Value | None, order: Order) -> str:
        """The identifier of a value in an axis order; writes a transpose if the value has another order."""
        assert value is not None  # noqa: S101 - required by the operator's definition
        if value not in self._home:
            self._constant(value)
        if (value, order) not in self._names:
            home = self._home[value]
            target = self._names[value, order] = self._fresh()
            self.line(f"{target} = {self.function(_permuted)}({self._names[value, home]}, {between(home, order)})")
        return self._names[value, order]

    def order(self, value: ir.Value | None) -> Order:
        """The axis order of a value."""
        return onnx_order(len(extents(value))) if value not in self._home else self._home[value]

    def common_order(self, values: Sequence[ir.Value | None]) -> Order:
        """The axis order in which to compute an element-wise operation."""
        present = [value for value in values if value is not None]
        most = max(len(extents(value)) for value in present)
        found = {self.order(value) for value in present if len(extents(value)) == most}
        if any(value.shape is None for value in present):
            return onnx_order(0)  # unknown rank: ONNX's order
        if most > 2 and channels_last(most) in found:
            return channels_last(most)
        return found.pop() if len(found) == 1 else onnx_order(most)

    def aligned(self, value: ir.Value | None, order: Order) -> str:
        """The identifier of a value prepared for broadcasting with values in the given axis order."""
        axes = 0 if value is None else len(extents(value))
        if axes == len(order):
            return self.ordered(value, order)
        text = self.name(value)
        if axes == 0 or not order or order == onnx_order(len(order)):
            return text
        return f"{self.function(_broadcastable)}({text}, {order})"

    def setting(self, node: ir.Node, position: int) -> str:
        """The source of integers that must be known when the operator is called: a list, or a read of the tensor."""
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is None:
            return "None"
        known = fixed(node, position)
        if known is not None:
            return f"{known.reshape(-1).tolist()}"
        return f"{self.function(_read)}({self.name(value)})"

    @abstractmethod
    def nested(self, graph: ir.Graph) -> str:
        """Write a subgraph as a function of its inputs that returns a tuple of its outputs."""

    def function(self, function: Callable[..., Any]) -> str:
        """The identifier of a function."""
        name = f"f_{function.__name__.lstrip('_')}"
        while self.bound.setdefault(name, function) is not function:
            name += "_"
        return name

    def product(self, node: ir.Node, function: Callable[..., Any]) -> str:
        """The identifier of a function that computes a node's product, in float32 if a kernel sums in a short type."""
        kind = node.outputs[0].dtype
        wide = kind is not None and through_float32(str(kind.numpy()), self.device, xla=self.xla)
        wide = wide or ("CPU" in self.device.upper() and not self.xla and miscomputed(node))
        return self.function(in_float32(function) if wide else function)

    def bind(self, value: Any) -> str:
        """An identifier for an object that a function takes unchanged."""
        name = f"a{len(self.bound)}"
        self.bound[name] = value
        return name

    def dtype(self, value: ir.Value | None) -> str:
        """The identifier of a value's dtype."""
        name = str(value.dtype.numpy())  # type: ignore[union-attr]  # types were inferred
        self.bound[f"t_{name}"] = tf.as_dtype(name)
        return f"t_{name}"

    def assign(self, node: ir.Node, text: str, order: Order | None = None) -> None:
        """Append the line that computes a node's first output, which has the given axis order, by default ONNX's."""
        self.line(f"{self.output(node, 0, order)} = {text}")

    def output(self, node: ir.Node, position: int, order: Order | None = None) -> str:
        """The identifier to assign an output to; the caller must write that line next."""
        value = node.outputs[position]
        return self._settle(value, order or onnx_order(len(extents(value))))

    def alias(self, node: ir.Node, permutation: Order) -> None:
        """Define a node's output as its input with permuted axes: computes nothing, only the axis order changes."""
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
        """Append the line that assigns all outputs of a node from the tuple that the source text evaluates to."""
        targets = [
            self.output(node, index, orders[index] if index < len(orders) else None) if value.name else "_"
            for index, value in enumerate(node.outputs)
        ]
        self.line(f"{', '.join(targets)}, *_ = {text}")

    def line(self, text: str) -> None:
        """Append a line to the body."""
        self._lines.append(text)

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _settle(self, value: ir.Value, order: Order) -> str:
        self._home[value] = order
        name = self._names[value, order] = self._fresh()
        return name

    def _constant(self, value: ir.Value | None) -> None:
        """Bind a constant and write the line that converts it to a tensor, so that TensorFlow can fold constants."""
        array = constant_value(value)
        if array is None:  # a number in a subgraph, which is not trained
            array = constant_tensor(value).numpy()  # type: ignore[arg-type,union-attr]  # otherwise it has a home
        name = self._settle(value, onnx_order(len(extents(value))))  # type: ignore[arg-type]
        self.bound[f"c_{name}"] = array
        self.line(f"{name} = {self.function(tf.constant)}(c_{name})")


def _read(x: Any) -> Any:
    """The values of a tensor, when the network runs operator by operator."""
    return x.numpy().reshape(-1).tolist()


def _permuted(x: Any, permutation: Order) -> Any:
    """Permutes the axes; by a reshape if no data has to move."""
    shape = x.shape.as_list()
    if keeps_memory(shape, permutation) and shape.count(None) <= 1:
        return tf.reshape(x, [-1 if shape[axis] is None else shape[axis] for axis in permutation])
    return tf.transpose(x, permutation)


def _broadcastable(x: Any, order: Order) -> Any:
    """A value of lower rank, with leading dimensions of 1, in the given axis order."""
    for _ in range(len(order) - x.shape.rank):
        x = tf.expand_dims(x, 0)
    return tf.transpose(x, order)
