"""A network as Python source that TensorFlow traces: straight-line code of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import onnx_ir as ir
import tensorflow as tf

from deep5.core.operator import Operator
from deep5.frameworks.tensorflow.emitter import Emitter
from deep5.frameworks.tensorflow.operators import OPERATORS
from deep5.frameworks.tensorflow.operators_custom import emit_custom
from deep5.frameworks.tensorflow.order import Order, kernel_order, onnx_order
from deep5.frameworks.tensorflow.scopes import Scopes
from deep5.frameworks.tensorflow.traced import cause
from deep5.networks.custom import is_custom
from deep5.networks.diagnostics.failures import failed, is_own, places_of
from deep5.networks.network import Network
from deep5.networks.nodes import extents, key

__all__ = ["Program", "compile_forward", "preferred_orders"]


class Program(NamedTuple):
    """A network as a pure function.

    Attributes:
        call: Takes the inputs in the network's order, then the live values in the order of `live`; returns a tuple of
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
    """The preferred axis order of each parameter and buffer, by name: ONNX's, except for convolution weights."""
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


class _Writer(Emitter):
    """Writes the whole source of a network."""

    def nested(self, graph: ir.Graph) -> str:
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

    def program(self, scopes: Scopes | None) -> Program:
        """The whole function, compiled; with scopes, operations are named after layers."""
        network = self._network
        for node in network.nodes:
            before = len(self._lines)
            self._write(node)
            if scopes is not None:
                self._enclose(before, scopes.scope(network, node))
        results = ", ".join(self.name(value) for value in network.model.graph.outputs)
        arguments = ", ".join(self._names[value, self._home[value]] for value in (*self._inputs, *self._live))
        source = "\n    ".join([f"def forward({arguments}):", *self._lines, f"return ({results},)"])
        # The source consists of the fixed strings of the operator table, generated identifiers and numbers; it contains
        # nothing from the model file.
        names = {value: name for (value, _), name in self._names.items()}
        exec(compile(source, f"<deep5 {len(network.nodes)} nodes>", "exec"), self.bound)  # noqa: S102
        self.bound |= places_of(source, names)
        live = tuple(str(value.name) for value in self._live)
        return Program(_reporting(self.bound["forward"]), live, source, self.forward_only)

    def _write(self, node: ir.Node) -> None:
        if is_custom(node):
            emit_custom(self, node)
        else:
            OPERATORS[key(node)](self, node)

    def _enclose(self, start: int, scope: str | None) -> None:
        """Put the lines from `start` on into a scope."""
        if scope is not None and len(self._lines) > start:
            self.bound["scope"] = tf.name_scope
            self._lines[start:] = [f"with scope({scope!r}):", *(f"    {line}" for line in self._lines[start:])]


def compile_forward(
    network: Network,
    live: Mapping[str, Order],
    *,
    device: str,
    xla: bool,
    gradients: bool,
    route: Callable[[Operator], Callable[..., tuple[Any, ...]]],
    batch_norm: Callable[..., Any] | None = None,
    scopes: Scopes | None = None,
) -> Program:
    """Generate and compile the forward function.

    Args:
        network: The network; all its operators are in the table.
        live: The axis order of each parameter and buffer, by name.
        device: The device to run on, as TensorFlow names it.
        xla: Whether XLA will compile it.
        gradients: Whether gradients will be computed.
        route: Same as for `Emitter`.
        batch_norm: Same as for `Emitter`.
        scopes: Names operations after layers; None: operations keep their names.
    """
    writer = _Writer(network, live, device=device, xla=xla, gradients=gradients, route=route, batch_norm=batch_norm)
    return writer.program(scopes)


def _reporting(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The function, raising deep5 errors for values that do not fit during tracing or execution."""

    def reporting(*given: Any) -> Any:
        try:
            return forward(*given)
        except tf.errors.OpError:  # the caller handles TensorFlow's own errors
            raise
        except Exception as error:  # TensorFlow raises various types for values that do not fit
            if is_own(error):
                raise
            raise failed(error, "tensorflow", None if isinstance(error, MemoryError) else cause(error)) from error

    return reporting
