"""A network as Python source: straight-line code of calls, which JAX traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

import jax
import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.core.operator import Operator
from deep5.frameworks.jax.emitter import Emitter
from deep5.frameworks.jax.host import EXTENTS, HostValues, find_host_values, graphs_of
from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.operators import OPERATORS
from deep5.frameworks.jax.program import Function
from deep5.frameworks.jax.storage import Storage
from deep5.frameworks.jax.table import HOST
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.diagnostics.failures import failed, is_own, places_of
from deep5.networks.kernels.drawing import draws
from deep5.networks.network import Network

__all__ = ["RunsOperator", "write"]

RunsOperator = Callable[[Operator], Callable[..., tuple[Any, ...]]]
"""From an operator to a function of arrays that returns a tuple of arrays."""


class _Writer(Emitter):
    """Writes the whole source of a network.

    Args:
        operators: From a registered operator to the function that runs it on arrays.
        stored: Same as for `Emitter`.
        flat: Same as for `Emitter`.
        batch_norm: Same as for `Emitter`.
        host: The values that must be known while JAX traces.
    """

    def __init__(
        self,
        operators: RunsOperator,
        stored: Container[str],
        flat: Container[str],
        batch_norm: Callable[..., Any],
        host: HostValues,
    ) -> None:
        super().__init__(stored, flat, batch_norm, host.traced, bool(host.reason))
        self._operators = operators

    def _custom(self, node: ir.Node) -> None:
        """Append the line that runs a registered operator, all in ONNX's axis order.

        Raises:
            Unsupported: It is a native operator of another framework.
        """
        operator = operator_of(node)
        if operator is None:
            raise Unsupported(f"no operator {node.op_type!r} of the domain {node.domain!r} is registered")
        inputs = ", ".join(self.plain(value) for value in node.inputs)
        # A node may have fewer outputs than its operator.
        made = self.new()
        self.line(f"{made} = {self.bind(self._operators(operator))}({inputs})")
        for number, value in enumerate(node.outputs):
            if value.name:
                self.assign(value, f"{made}[{number}]")

    def nested(self, graph: ir.Graph) -> str:
        kept = dict(self._weights), dict(self._plain), dict(self._last)
        outer, self._lines = self._lines, []
        name, inputs = self.new(), self.arguments([str(value.name) for value in graph.inputs])
        self._nodes(graph)
        returned = "".join(f"{self.plain(value)}, " for value in graph.outputs)  # which may append lines
        body = [*self._lines, f"return ({returned})"]
        self._lines = [*outer, f"def {name}({inputs}):", *(f"    {line}" for line in body)]
        # Values computed inside the subgraph do not exist outside.
        self._weights, self._plain, self._last = kept
        return name

    def _nodes(self, graph: ir.Graph) -> None:
        """Append the lines of a graph's nodes."""
        for node in graph:
            if is_custom(node):
                self._custom(node)
            elif node.domain not in ("", "ai.onnx"):
                OPERATORS[f"{node.domain}.{node.op_type}"](self, node)
            elif not self.eager and node.op_type not in EXTENTS and self._is_known(node):
                self._at_once(node)
            else:
                OPERATORS[node.op_type](self, node)

    def _is_known(self, node: ir.Node) -> bool:
        """Whether a node is computed while JAX traces: settings depend on it, or it can be and its inputs are known."""
        if any(value.name in self._traced for value in node.outputs):
            return True
        if node.op_type not in HOST or any(True for _ in graphs_of(node)):
            return False
        return all(value is None or self.is_traced(value) for value in node.inputs)

    def _at_once(self, node: ir.Node) -> None:
        """Append the lines of a node that is computed while JAX traces."""
        outer, self._lines = self._lines, []
        OPERATORS[node.op_type](self, node)
        if self._lines:
            outer += [f"with {self.bind(jax.ensure_compile_time_eval)}():", *(f"    {line}" for line in self._lines)]
        self._lines = outer

    def source(self, network: Network, fresh: Mapping[str, str], names: tuple[Sequence[str], ...]) -> str:
        """The whole function; same arguments as `write`."""
        outputs = {str(value.name): value for value in network.model.graph.outputs}
        parameters, buffers, given = names
        fed = [str(value.name) for value in network.model.graph.inputs if value.name in network.inputs]
        for kind, own in (("parameters", parameters), ("buffers", buffers), ("inputs", fed)):
            drawn = kind == "inputs" and draws(network)
            if own or drawn:
                self._key = self.new() if drawn else ""
                self.line(f"{self.arguments(own)}{self._key}{', ' if drawn else ''}= {kind}")
        self._nodes(network.model.graph)
        returned = "".join(f"{self.plain(outputs[name])}, " for name in given)
        changed = "".join(
            f"{self.plain(outputs[fresh[name]]) if name in fresh else self._plain[name]}, " for name in buffers
        )
        body = [*self._lines, f"return ({returned}), ({changed})"]
        return "\n    ".join(["def run(parameters, buffers, inputs):", *body])


def write(
    network: Network,
    fresh: Mapping[str, str],
    stored: Mapping[str, Storage],
    flat: Collection[str],
    *names: Sequence[str],
    operators: RunsOperator,
    batch_norm: Callable[..., Any] = layers.batch_normalization_in_training,
) -> Function:
    """Generate and compile the function of a network.

    Args:
        network: The network; all its operators are in the table.
        fresh: The output that is a buffer's new value, by the buffer's name.
        stored: Parameters that are not stored in ONNX's axis order.
        flat: Values that are images flattened to vectors, channels last.
        names: Names of parameters, buffers and outputs, each in the order of the function's tuples.
        operators: From a registered operator to the function that runs it on arrays.
        batch_norm: Same as for `Emitter`.
    """
    emitter = _Writer(operators, stored, flat, batch_norm, find_host_values(network))
    source = emitter.source(network, fresh, names)
    scope = {**emitter.bound, **places_of(source, emitter.names)}
    # The source consists of the fixed strings of the operator table, generated identifiers and numbers; it contains
    # nothing from the model file.
    exec(compile(source, f"<deep5 {len(network.nodes)} nodes>", "exec"), scope)  # noqa: S102
    return Function(_reporting(scope.pop("run")), source)


def _reporting(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, raising deep5 errors for values that do not fit while it is traced or runs by operators."""

    def reporting(*given: Any) -> Any:
        try:
            return run(*given)
        except (jax.errors.JaxRuntimeError, jax.errors.UnexpectedTracerError):  # the caller handles these
            raise
        except Exception as error:  # JAX raises various types for values that do not fit
            if is_own(error):
                raise
            raise failed(error, "jax") from error

    return reporting
