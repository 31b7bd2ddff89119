"""A network as Python source: one straight line of calls, which JAX traces.

Images go through convolutions with their channels last, the order in which XLA is fastest on the processor: a value
keeps that order from operator to operator until somebody needs ONNX's, and weights of layers are stored as XLA reads
them. Who reads parameters sees ONNX's order of axes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.seeds import derive_seed
from deep5.core.tensors import Device
from deep5.frameworks.jax import kernels
from deep5.frameworks.jax.custom import check_operator, is_compiled, on_arrays
from deep5.frameworks.jax.host import EXTENTS, HostValues, find_host_values, graphs_of
from deep5.frameworks.jax.kernels_host import on_host
from deep5.frameworks.jax.operators import OPERATORS
from deep5.frameworks.jax.operators_random import draws
from deep5.frameworks.jax.storage import Storage, find_flat, find_storage
from deep5.frameworks.jax.table import HOST
from deep5.networks.constants import constant_tensor, constant_value
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.diagnostics.failures import failed, is_own, places_of
from deep5.networks.network import Network
from deep5.networks.run_modes import Forms

if TYPE_CHECKING:
    from deep5.core.framework import Framework
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["Emitter", "Function", "GraphProgram", "write"]


class Function(NamedTuple):
    """A network that JAX can trace.

    Attributes:
        call: Takes tuples of parameters, buffers and inputs; gives a tuple of outputs, and one of new buffers.
        source: Its generated source.
    """

    call: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
    source: str


class Emitter:
    """Collects the source. Names of the model file never enter it: every value gets a generated identifier.

    Args:
        stored: Parameters that are not stored in ONNX's order of axes.
        flat: Values that are images made vectors with their channels last.
        batch_norm: What stands for batch normalisation in training.
        host: What must be known while JAX traces; None: nothing.

    Attributes:
        flat: As given.
        batch_norm: As given.
        eager: Whether the network runs operator by operator, so that every value is known.
    """

    def __init__(
        self,
        stored: Container[str],
        flat: Container[str],
        batch_norm: Callable[..., Any] = kernels.batch_normalization_in_training,
        host: HostValues | None = None,
    ) -> None:
        self._stored, self.flat, self.batch_norm = stored, flat, batch_norm
        self._traced, self.eager = (host.traced, bool(host.reason)) if host is not None else (frozenset[str](), False)
        self._key, self._draws = "", 0
        self._weights: dict[str, str] = {}
        self._plain: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._count = 0
        self._lines: list[str] = []
        self.bound: dict[str, Any] = {}
        """What the source refers to by name: constants and functions."""
        self.names: dict[ir.Value, str] = {}
        """The identifiers of what nodes compute."""

    def new(self) -> str:
        """A fresh identifier."""
        self._count += 1
        return f"v{self._count}"

    def plain(self, value: ir.Value | None) -> str:
        """The identifier of a value in ONNX's order of axes; `None` for an input left out."""
        if value is None:
            return "None"
        key = str(value.name)
        if key not in self._plain:
            self._plain[key] = self.new()
            if key in self._last:
                self.line(f"{self._plain[key]} = {self.bind(kernels.channels_first)}({self._last[key]})")
            else:
                self.bound[self._plain[key]] = _constant(value)
        return self._plain[key]

    def setting(self, value: ir.Value | None) -> str:
        """The text of a tuple of the numbers that a value holds, which must be known; `None` for one left out."""
        if value is None:
            return "None"
        known = constant_value(value)
        if known is not None and np.isfinite(known).all():
            return repr(tuple(known.reshape(-1).tolist()))
        return f"{self.bind(on_host)}({self.plain(value)})"

    def last(self, value: ir.Value | None, axes: int) -> str:
        """The identifier of a value with its channels last, broadcast to this many axes."""
        if value is None:
            return "None"
        key = str(value.name)
        if axes < 3:
            return self.plain(value)
        if key not in self._last:
            text = f"{self.bind(kernels.channels_last)}({self.plain(value)}, {axes})"
            self._last[key] = self.new()
            self.line(f"{self._last[key]} = {text}")
        return self._last[key]

    def is_last(self, value: ir.Value | None) -> bool:
        """Whether a value is there with its channels last, and only so."""
        return value is not None and value.name in self._last and value.name not in self._plain

    def is_traced(self, value: ir.Value | None) -> bool:
        """Whether a value is known while JAX traces."""
        return value is not None and (value.name in self._traced or constant_value(value) is not None)

    def is_stored(self, value: ir.Value | None) -> bool:
        """Whether a value is a layer's weight in the order in which parameters are stored."""
        return value is not None and value.name in self._weights

    def weight(self, value: ir.Value | None) -> tuple[str, bool]:
        """The identifier of a layer's weight, and whether that is in the order in which parameters are stored."""
        name = self._weights.get(str(value.name)) if value is not None else None
        return (self.plain(value), False) if name is None else (name, True)

    def assign_weight(self, value: ir.Value, text: str) -> None:
        """Append the line that computes a layer's weight, in the order in which parameters are stored."""
        self._weights[str(value.name)] = name = self.new()
        self.line(f"{name} = {text}")

    def bind(self, what: Any) -> str:
        """The identifier of a function or another object that the source refers to."""
        # The type of an element type that is not NumPy's own is called dtype[bfloat16].
        own = re.sub(r"\W", "_", getattr(what, "__name__", type(what).__name__))
        name = f"f_{own.strip('_')}".lower()
        while self.bound.setdefault(name, what) is not what:
            name += "_"
        return name

    def assign(self, value: ir.Value, text: str, *, last: bool = False) -> None:
        """Append the line that computes a value."""
        (self._last if last else self._plain)[str(value.name)] = self.names[value] = name = self.new()
        self.line(f"{name} = {text}")

    def key(self, seed: float | None) -> str:
        """The text of a random key of a node's own; nodes of one seed draw the same numbers."""
        self._draws += 1
        number = self._draws if seed is None else int(np.float32(seed).view(np.int32)) & 0x7FFFFFFF
        return f"{self.bind(jax.random.fold_in)}({self._key}, {number})"

    def custom(self, node: ir.Node) -> None:
        """Append the line that runs a registered operator, all in ONNX's order of axes.

        Raises:
            Unsupported: It is a framework's own, and another's than JAX.
        """
        operator = operator_of(node)
        if operator is None:
            raise Unsupported(f"no operator {node.op_type!r} of the domain {node.domain!r} is registered")
        inputs = ", ".join(self.plain(value) for value in node.inputs)
        # A node may have fewer outputs than its operator.
        made = self.new()
        self.line(f"{made} = {self.bind(on_arrays(operator))}({inputs})")
        for number, value in enumerate(node.outputs):
            if value.name:
                self.assign(value, f"{made}[{number}]")

    def line(self, text: str) -> None:
        """Append a line of the body."""
        self._lines.append(text)

    def arguments(self, names: Sequence[str]) -> str:
        """Give identifiers to values that come in from outside; the text that unpacks them."""
        made = []
        for name in names:
            made.append(self.new())
            (self._weights if name in self._stored else self._plain)[name] = made[-1]
        return "".join(f"{name}, " for name in made)

    def nested(self, graph: ir.Graph) -> str:
        """Append a function of a nested graph's inputs, which gives a tuple of its outputs; its identifier."""
        kept = dict(self._weights), dict(self._plain), dict(self._last)
        outer, self._lines = self._lines, []
        name, inputs = self.new(), self.arguments([str(value.name) for value in graph.inputs])
        self.nodes(graph)
        body = [*self._lines, f"return ({''.join(f'{self.plain(value)}, ' for value in graph.outputs)})"]
        self._lines = [*outer, f"def {name}({inputs}):", *(f"    {line}" for line in body)]
        # What was computed inside is not there outside.
        self._weights, self._plain, self._last = kept
        return name

    def nodes(self, graph: ir.Graph) -> None:
        """Append the lines of a graph's nodes."""
        for node in graph:
            if is_custom(node):
                self.custom(node)
            elif node.domain not in ("", "ai.onnx"):
                OPERATORS[f"{node.domain}.{node.op_type}"](self, node)
            elif not self.eager and node.op_type not in EXTENTS and self._is_known(node):
                self._at_once(node)
            else:
                OPERATORS[node.op_type](self, node)

    def _is_known(self, node: ir.Node) -> bool:
        """Whether a node is computed while JAX traces: settings depend on it, or it can be of all that it must know."""
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
        """The whole function; arguments as `write` takes them."""
        outputs = {str(value.name): value for value in network.model.graph.outputs}
        parameters, buffers, given = names
        fed = [str(value.name) for value in network.model.graph.inputs if value.name in network.inputs]
        for kind, own in (("parameters", parameters), ("buffers", buffers), ("inputs", fed)):
            drawn = kind == "inputs" and draws(network)
            if own or drawn:
                self._key = self.new() if drawn else ""
                self.line(f"{self.arguments(own)}{self._key}{', ' if drawn else ''}= {kind}")
        self.nodes(network.model.graph)
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
    batch_norm: Callable[..., Any] = kernels.batch_normalization_in_training,
) -> Function:
    """Generate and compile the function of a network.

    Args:
        network: The network, of operators of the table.
        fresh: The output that is a buffer's new value, by the buffer's name.
        stored: Parameters that are not stored in ONNX's order of axes.
        flat: Values that are images made vectors with their channels last.
        names: Of parameters, buffers and outputs, each in the order of the function's tuples.
        batch_norm: As for `Emitter`.
    """
    emitter = Emitter(stored, flat, batch_norm, find_host_values(network))
    source = emitter.source(network, fresh, names)
    scope = {**emitter.bound, **places_of(source, emitter.names)}
    # The source is made of the fixed texts of the operator table, generated identifiers and numbers; nothing of the
    # model file's own text is in it.
    exec(compile(source, f"<deep5 {len(network.nodes)} nodes>", "exec"), scope)  # noqa: S102
    return Function(_told(scope.pop("run")), source)


def _told(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that tells what does not fit, while it is traced or runs operator by operator, as deep5 tells it."""

    def told(*given: Any) -> Any:
        try:
            return run(*given)
        except (jax.errors.JaxRuntimeError, jax.errors.UnexpectedTracerError):  # who calls knows what these mean
            raise
        except Exception as error:  # whatever else JAX raises of values that do not fit
            if is_own(error):
                raise
            raise failed(error, "jax") from error

    return told


class GraphProgram:
    """An ONNX network as pure functions that JAX traces; see `Program`.

    Args:
        network: The network.
        framework: The back-end.
        device: Where it is to run; None: on the host.

    Raises:
        Unsupported: Nodes that it cannot run, each with its reason.

    Attributes:
        stored: How weights of layers are stored, by name.
        x64: 64-bit types mean what they say in ONNX.
        fallible: Whether it holds compiled operators, or exchanges statistics with other ranks.
        untraceable: Why JAX cannot trace it, so that it runs operator by operator; empty: JAX can.
    """

    x64 = True
    _evaluations = 0
    _ranks: RankStatistics | None = None

    def __init__(self, network: Network, framework: Framework, device: Device | None = None) -> None:
        self._forms = Forms(network, framework)
        self.fallible = False
        for node in self._forms.evaluation.nodes:
            if (operator := operator_of(node)) is not None:
                check_operator(operator, device)
                self.fallible |= is_compiled(operator)
        self._names = tuple(network.parameter_specs), tuple(network.buffer_specs), tuple(network.outputs)
        self._draws = draws(self._forms.evaluation)
        self.untraceable = find_host_values(self._forms.evaluation).reason
        self._flat = find_flat(self._forms.evaluation)
        self.stored = find_storage(self._forms.evaluation, self._flat)

    @cached_property
    def evaluation(self) -> Function:
        """The network in evaluation."""
        return write(self._forms.evaluation, {}, self.stored, self._flat, *self._names)

    @cached_property
    def training(self) -> Function:
        """The network in training, of inputs with the masks behind them."""
        form = self._forms.training
        if form.network is self._forms.evaluation:
            return self.evaluation
        batch_norm = kernels.batch_normalization_in_training
        if self._ranks is not None:
            from deep5.frameworks.jax.synchronised import batch_norm_over_ranks

            batch_norm = batch_norm_over_ranks(self._ranks)
        return write(form.network, form.statistics, self.stored, self._flat, *self._names, batch_norm=batch_norm)

    def synchronise_batch_norm(self, ranks: RankStatistics) -> None:
        """Take statistics of batch normalisation from the batch of all ranks; in what is traced from now on."""
        self._ranks, self.fallible = ranks, True
        self.__dict__.pop("training", None)

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """The masks of a step, and the random key where nodes draw; who exchanges statistics in it is told the step."""
        if self._ranks is not None:
            self._ranks.begin(info)
        form = self._forms.training
        key = [_key(info.seed, info.step)] if self._draws else []
        return form.draw(extents, info) + key if form.masks else key

    def evaluation_key(self, info: StepInfo) -> list[np.ndarray]:
        """The random key of a call in evaluation, where nodes draw: another one each time."""
        if not self._draws:
            return []
        self._evaluations += 1
        return [_key(info.seed, info.step, self._evaluations)]


def _key(seed: int, *purpose: int) -> np.ndarray:
    return np.array(jax.random.key_data(jax.random.key(derive_seed(seed, "nodes that draw", *purpose))))


def _constant(value: ir.Value) -> np.ndarray:
    known = constant_value(value)
    if known is None and value.is_initializer() and (tensor := constant_tensor(value)) is not None:
        return tensor.numpy()  # of a nested graph: the network's own are parameters
    if known is None:
        raise UsageError(f"the value {value.name!r} is used before it is computed; allowed: nodes in topological order")
    return known
