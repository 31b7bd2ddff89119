"""A network as Python source: one straight line of calls, parameters bound once, activations deleted when dead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from deep5.core.errors import Unsupported
from deep5.frameworks.pytorch.borrowing import borrowed
from deep5.frameworks.pytorch.custom import check_operator, on_tensors
from deep5.frameworks.pytorch.fusing import Step, steps
from deep5.frameworks.pytorch.sequences import copied
from deep5.frameworks.pytorch.short import in_float32, tensor, through_float32
from deep5.frameworks.pytorch.table import number
from deep5.frameworks.pytorch.unsigned import widening
from deep5.networks.analysis.layer_clock import Owners
from deep5.networks.constants import constant_value
from deep5.networks.custom import operator_of
from deep5.networks.diagnostics.failures import places_of
from deep5.networks.network import Network
from deep5.networks.onnx.element_types import element_type
from deep5.networks.stamps import Stamps

__all__ = ["Emitter", "Program", "compile_forward"]


class Program(NamedTuple):
    """A network that runs.

    Attributes:
        call: Takes the inputs in the network's order, gives a tuple of outputs.
        source: Its generated source.
    """

    call: Callable[..., tuple[Any, ...]]
    source: str


class Emitter:
    """Collects the source. Names of the model file never enter it: every value gets a generated identifier.

    Args:
        network: What is written.
        results: Names of the values that are returned.
        known: Live parameters and buffers by name; constants are added.
        place: The `torch.device` that constants go to.
        copied: Names of the results that are copied.
        batch_norm: What stands for batch normalisation in training; None: torch's own.
        stamps: What times each step; None: nothing does.

    Attributes:
        batch_norm: As given.
        bound: What the source refers to by name: parameters, buffers, constants, functions.
    """

    def __init__(
        self,
        network: Network,
        results: Sequence[str],
        known: dict[str, Any],
        place: torch.device,
        copied: Collection[str] = (),
        batch_norm: Callable[..., Any] | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        self._stamps = stamps
        self._network, self._results, self._known, self._place = network, results, known, place
        self._copied, self.batch_norm = copied, batch_norm
        self._graph = network.model.graph
        self._names: dict[ir.Value, str] = {}
        # What stands for a value while one node is written: whole numbers that torch stores and does not compute with.
        self._stand_ins: dict[ir.Value, str] = {}
        self._lines: list[str] = []
        self.bound: dict[str, Any] = {}

    @property
    def names(self) -> Mapping[ir.Value, str]:
        """The identifiers of all values."""
        return self._names

    def name(self, value: ir.Value | None) -> str:
        """The identifier of a value; `None` for an input left out."""
        if value is None:
            return "None"
        if value in self._stand_ins:
            return self._stand_ins[value]
        if value not in self._names:
            name = self._names[value] = f"v{len(self._names)}"
            held = self._nested_constant(value) if self._is_nested(value) else self._held(value)
            if held is not None:
                self.bound[name] = held
        return self._names[value]

    def _held(self, value: ir.Value) -> Any:
        """What a value of the network's own graph always holds, or a live parameter or buffer; else None."""
        key = str(value.name)
        if key not in self._known and (constant := constant_value(value)) is not None:
            self._known[key] = tensor(constant).to(self._place)
        return self._known.get(key)

    def _is_nested(self, value: ir.Value) -> bool:
        """Whether a value belongs to a graph inside a node: its name may be another's, too."""
        maker = value.producer()
        return (value.graph if maker is None else maker.graph) not in (self._graph, None)

    def _nested_constant(self, value: ir.Value) -> Any:
        constant = constant_value(value)
        if constant is None and value.is_initializer() and value.const_value is not None:
            constant = value.const_value.numpy()
        return None if constant is None else tensor(constant).to(self._place)

    def setting(self, value: ir.Value | None) -> str:
        """A number, or a list of them, as source text: literals of a constant, else read when the source runs."""
        if value is None:
            return "None"
        constant = constant_value(value)
        return self.literal(constant.tolist()) if constant is not None else f"{self.name(value)}.tolist()"

    def literal(self, value: Any) -> str:
        """An attribute as source text; of what is no number, the identifier: no text of a file enters the source."""
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        if isinstance(value, float):
            return number(value)
        if isinstance(value, (list, tuple)) and not any(isinstance(entry, str) for entry in value):
            return f"[{', '.join(map(self.literal, value))}]"
        value = tensor(value.numpy()) if isinstance(value, ir.TensorProtocol) else value
        name = f"a{len(self.bound)}"
        self.bound[name] = value
        return name

    def function(self, function: Callable[..., Any]) -> str:
        """The identifier of a function."""
        name = f"f_{function.__name__.lstrip('_')}"
        while self.bound.setdefault(name, function) is not function:
            name += "_"
        return name

    def product(self, node: ir.Node, function: Callable[..., Any]) -> str:
        """The identifier of a function that computes a node's product, in float32 where torch's own kernel is none."""
        return self.function(in_float32(function) if through_float32(node.outputs[0].dtype, self._place) else function)

    def dtype(self, value: ir.Value | None) -> str:
        """The identifier of a value's element type."""
        name = element_type(value.dtype)  # type: ignore[union-attr,arg-type]  # types were inferred
        self.bound[f"t_{name}"] = getattr(torch, name)
        return f"t_{name}"

    @property
    def on_host(self) -> bool:
        """Whether the network runs in the host's memory."""
        return bool(self._place.type == "cpu")

    def place(self) -> str:
        """The identifier of the device on which tensors are made."""
        self.bound["place"] = self._place
        return "place"

    def assign(self, node: ir.Node, text: str) -> None:
        """Append the line that computes a node's first output."""
        self.line(f"{self.name(node.outputs[0])} = {text}")

    def custom(self, node: ir.Node) -> None:
        """Append the line that runs a registered operator, whose outputs may be fewer than it has.

        Raises:
            Unsupported: It is a framework's own, and another's than torch.
        """
        operator = operator_of(node)
        if operator is None:
            raise Unsupported(f"no operator {node.op_type!r} of the domain {node.domain!r} is registered")
        check_operator(operator, self._place.type)
        function = self.function(on_tensors(operator))
        outputs = [self.name(value) if value.name else "_" for value in node.outputs]
        inputs = ", ".join(self.name(value) for value in node.inputs)
        self.line(f"{', '.join(outputs)}, = {function}({inputs})[:{len(outputs)}]")
        if "_" in outputs:
            self.line("del _")

    def nested(self, graph: ir.Graph) -> str:
        """Append a function of a graph inside a node, which reads surrounding values where they are; its identifier.

        It takes the graph's inputs in order and returns a tuple.
        """
        outer, self._lines = self._lines, []
        arguments = [self.name(value) for value in graph.inputs]
        self._write(list(graph), graph.outputs)
        results = "".join(f"{self.name(value)}, " for value in graph.outputs)
        name = f"g{len(self._names)}"
        body = [f"    {line}" for line in (*self._lines, f"return ({results})")]
        self._lines = [*outer, f"def {name}({', '.join(arguments)}):", *body]
        return name

    def line(self, text: str) -> None:
        """Append a line of the body."""
        self._lines.append(text)

    def source(self) -> str:
        """The whole function: inputs in order; outputs as a tuple in order."""
        network, graph = self._network, self._graph
        arguments = [self.name(value) for value in graph.inputs if value.name in network.inputs]
        outputs = {str(value.name): value for value in graph.outputs}
        owners = None if self._stamps is None else Owners(self._stamps.network, network)
        self._write(network.nodes, [outputs[name] for name in self._results], owners)
        results = ", ".join(self._result(outputs[name]) for name in self._results)
        return "\n    ".join([f"def forward({', '.join(arguments)}):", *self._lines, f"return ({results},)"])

    def _result(self, value: ir.Value) -> str:
        name = self.name(value)
        if value.name not in self._copied:
            return name
        return f"{name}.clone()" if isinstance(value.type, ir.TensorType) else f"{self.function(copied)}({name})"

    def _write(self, nodes: Sequence[ir.Node], results: Collection[ir.Value], owners: Owners | None = None) -> None:
        """Append the lines of a graph's nodes; what is dead is deleted, but for what surrounds the graph."""
        run, kept = steps(nodes), set(results)
        last: dict[ir.Value, int] = {}
        for index, step in enumerate(run):
            last.update((value, index) for value in step.inputs if value is not None)
        graph = nodes[0].graph if nodes else None
        for index, step in enumerate(run):
            self._emit(step)
            made = [value for value in step.outputs if value.name]
            own = (value for value, at in last.items() if at == index and self._is_of(value, graph))
            dead = [value for value in (*own, *(value for value in made if value not in last)) if value not in kept]
            names = [self._names[value] for value in dead if value in self._names]
            if names := [name for name in names if name not in self.bound]:
                self.line(f"del {', '.join(names)}")
            if owners is not None:
                self._stamp(step, owners, [value for value in made if value not in dead])

    def _is_of(self, value: ir.Value, graph: ir.Graph | ir.Function | None) -> bool:
        maker = value.producer()
        return (value.graph if maker is None else maker.graph) is graph

    def _emit(self, step: Step) -> None:
        """Append a step; where torch does not compute with an element type, in another whole one."""
        lift, back = widening(step.nodes[-1])
        for value in dict.fromkeys(step.inputs) if lift else ():
            if value is not None and value.dtype in lift:
                name = f"w{len(self._names)}_{len(self._stand_ins)}"
                self.line(f"{name} = {self.function(lift[value.dtype])}({self.name(value)})")
                self._stand_ins[value] = name
        made = [*self._stand_ins.values()]
        step.emit(self)
        self._stand_ins.clear()
        for value in step.outputs if back else ():
            if value.name and value.dtype in back:
                name = self.name(value)
                self.line(f"{name} = {self.function(back[value.dtype])}({name})")
        if made:
            self.line(f"del {', '.join(made)}")

    def _stamp(self, step: Step, owners: Owners, alive: Sequence[ir.Value]) -> None:
        """Append the line that says whose the lines since the one before are."""
        if self._stamps is None or not self._lines:
            return
        if "mark" not in self.bound:
            self.bound["begin"], self.bound["mark"] = self._stamps.begin, self._stamps.mark
            self._lines.insert(0, "begin()")
        if (group := owners.group(owners.of(str(node.name)) for node in step.nodes)) is not None:
            values = [self._names[key] for key in alive if key in self._names]
            self.line(f"mark({', '.join([str(self._stamps.number(group)), *values])})")
        else:
            self.line("begin()")


def compile_forward(
    network: Network,
    results: Sequence[str],
    known: dict[str, Any],
    place: torch.device,
    *,
    owned: bool = False,
    batch_norm: Callable[..., Any] | None = None,
    stamps: Stamps | None = None,
) -> Program:
    """Generate and compile the forward function.

    Args:
        network: The network, of operators of the table.
        results: Names of the outputs that are returned.
        known: Live parameters and buffers by name; constants are added, for the next program.
        place: The device that constants go to.
        owned: Whether what is returned must not be memory of an input, nor a live value.
        batch_norm: As for `Emitter`.
        stamps: As for `Emitter`.
    """
    emitter = Emitter(network, results, known, place, borrowed(network) if owned else (), batch_norm, stamps)
    source = emitter.source()
    scope = {**emitter.bound, **places_of(source, emitter.names)}
    # The source is made of the fixed texts of the operator table, generated identifiers and numbers; nothing of the
    # model file's own text is in it. Parameters are its globals: a call hands over the inputs alone.
    # torch's compiler takes sizes that differ between functions of one file and name for sizes that change.
    shapes = [tuple(value.shape) for value in scope.values() if isinstance(value, torch.Tensor)]
    name = hashlib.sha256(f"{source}{shapes}".encode()).hexdigest()[:16]
    exec(compile(source, f"<deep5 {len(network.nodes)} nodes {name}>", "exec"), scope)  # noqa: S102
    return Program(scope.pop("forward"), source)
