"""A network as Python source that TensorFlow traces: one straight line of calls, each value in the order that is best.

Every value has a home, the order of axes in which it was computed. Images are computed with channels last; whoever
needs another order gets a transposed copy, made once. So transposes stand only where images begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.operators import OPERATORS
from deep5.frameworks.tensorflow.operators_custom import emit_custom
from deep5.frameworks.tensorflow.order import Order, between, channels_last, keeps_memory, kernel_order, onnx_order
from deep5.frameworks.tensorflow.scopes import Scopes
from deep5.frameworks.tensorflow.short import in_float32, through_float32
from deep5.frameworks.tensorflow.table import extents, fixed
from deep5.frameworks.tensorflow.traced import cause
from deep5.networks.constants import constant_tensor, constant_value
from deep5.networks.custom import is_custom
from deep5.networks.diagnostics.failures import failed, is_own, places_of
from deep5.networks.network import Network

__all__ = ["Emitter", "Program", "compile_forward", "preferred_orders"]


class Program(NamedTuple):
    """A network as a pure function.

    Attributes:
        call: Takes the inputs in the network's order, then the live values in the order of `live`; gives a tuple of
            the outputs.
        live: Names of the parameters and buffers that it takes.
        source: Its generated source.
        forward_only: Whether it would be slow to differentiate.
    """

    call: Callable[..., tuple[Any, ...]]
    live: tuple[str, ...]
    source: str
    forward_only: bool = False


def preferred_orders(network: Network) -> dict[str, Order]:
    """The order in which each parameter and buffer should lie, by name: ONNX's, but for the weights of convolutions."""
    orders = {
        name: onnx_order(len(spec.shape)) for name, spec in {**network.parameter_specs, **network.buffer_specs}.items()
    }
    for node in network.nodes:
        weight = node.inputs[1] if node.op_type == "Conv" and not is_custom(node) else None
        while weight is not None and (cast := weight.producer()) is not None and cast.op_type == "Cast":
            weight = cast.inputs[0]
        if weight is not None and weight.name in orders:
            orders[weight.name] = kernel_order(len(orders[weight.name]))
    return orders


class Emitter:
    """Collects the source. Names of the model file never enter it: every value gets a generated identifier.

    Args:
        network: What is written.
        live: The order in which each parameter and buffer lies, by name.
        device: Where the network runs, as TensorFlow names it.
        xla: Whether XLA compiles it.
        gradients: Whether gradients will be taken.
        batch_norm: What stands for batch normalisation in training; None: TensorFlow's own.
        scopes: Names operations after layers; None: nothing does.

    Attributes:
        device: As given.
        xla: As given.
        gradients: As given.
        batch_norm: As given.
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
        batch_norm: Callable[..., Any] | None = None,
        scopes: Scopes | None = None,
    ) -> None:
        self._scopes = scopes
        self._network, self.device, self.xla = network, device, xla
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

    def nested(self, graph: ir.Graph) -> str:
        """Write a graph inside a node as a function of its inputs, which gives a tuple of its outputs."""
        around, self._lines = self._lines, []
        homes, names = dict(self._home), dict(self._names)
        arguments = [self._settle(value, onnx_order(len(extents(value)))) for value in graph.inputs]
        for node in graph:
            self._write(node)
        results = "".join(f"{self.name(value)}, " for value in graph.outputs)
        body, self._lines = [*self._lines, f"return ({results})"], around
        self._home, self._names = homes, names
        target = f"g{self._fresh()}"
        self.line(f"def {target}({', '.join(arguments)}):")
        for line in body:
            self.line(f"    {line}")
        return target

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

    def program(self) -> Program:
        """The whole function, compiled."""
        network = self._network
        for node in network.nodes:
            before = len(self._lines)
            self._write(node)
            if self._scopes is not None:
                self._enclose(before, self._scopes.scope(network, node))
        results = ", ".join(self.name(value) for value in network.model.graph.outputs)
        arguments = ", ".join(self._names[value, self._home[value]] for value in (*self._inputs, *self._live))
        source = "\n    ".join([f"def forward({arguments}):", *self._lines, f"return ({results},)"])
        # The source is made of the fixed texts of the operator table, generated identifiers and numbers; nothing of the
        # model file's own text is in it.
        names = {value: name for (value, _), name in self._names.items()}
        exec(compile(source, f"<deep5 {len(network.nodes)} nodes>", "exec"), self.bound)  # noqa: S102
        self.bound |= places_of(source, names)
        live = tuple(str(value.name) for value in self._live)
        return Program(_told(self.bound["forward"]), live, source, self.forward_only)

    def _write(self, node: ir.Node) -> None:
        if is_custom(node):
            emit_custom(self, node)
        else:
            OPERATORS[node.op_type](self, node)

    def _enclose(self, start: int, scope: str | None) -> None:
        """Put the lines from a number on into a scope."""
        if scope is not None and len(self._lines) > start:
            self.bound["scope"] = tf.name_scope
            self._lines[start:] = [f"with scope({scope!r}):", *(f"    {line}" for line in self._lines[start:])]

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


def compile_forward(
    network: Network,
    live: Mapping[str, Order],
    *,
    device: str,
    xla: bool,
    gradients: bool,
    batch_norm: Callable[..., Any] | None = None,
    scopes: Scopes | None = None,
) -> Program:
    """Generate and compile the forward function.

    Args:
        network: The network, of operators of the table.
        live: The order in which each parameter and buffer lies, by name.
        device: Where it will run, as TensorFlow names it.
        xla: Whether XLA will compile it.
        gradients: Whether gradients will be taken.
        batch_norm: As for `Emitter`.
        scopes: As for `Emitter`.
    """
    return Emitter(
        network, live, device=device, xla=xla, gradients=gradients, batch_norm=batch_norm, scopes=scopes
    ).program()


def _told(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function that tells what does not fit, while it is traced or run, as deep5 tells it."""

    def told(*given: Any) -> Any:
        try:
            return forward(*given)
        except tf.errors.OpError:  # who calls knows what TensorFlow means
            raise
        except Exception as error:  # whatever else TensorFlow raises of values that do not fit
            if is_own(error):
                raise
            raise failed(error, "tensorflow", None if isinstance(error, MemoryError) else cause(error)) from error

    return told


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
