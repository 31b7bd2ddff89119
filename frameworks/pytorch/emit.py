"""A network as Python source: a straight line of calls; parameters are bound once, dead activations deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from deep5.frameworks.pytorch.borrowing import borrowed
from deep5.frameworks.pytorch.emitter import Emitter, RunsOperator
from deep5.frameworks.pytorch.fusing import Step, steps
from deep5.frameworks.pytorch.sequences import copied
from deep5.frameworks.pytorch.unsigned import widening
from deep5.networks.analysis.layer_clock import Owners
from deep5.networks.diagnostics.failures import places_of
from deep5.networks.network import Network
from deep5.networks.stamps import Stamps

__all__ = ["Program", "compile_forward"]


class Program(NamedTuple):
    """A runnable network.

    Attributes:
        call: Takes the inputs in the network's order, returns a tuple of outputs.
        source: Its generated source.
    """

    call: Callable[..., tuple[Any, ...]]
    source: str


class _Writer(Emitter):
    """Writes the whole source of a network.

    Args:
        network: The network to emit.
        results: Names of the returned values.
        known: As for `Emitter`.
        place: As for `Emitter`.
        operators: As for `Emitter`.
        copied: Names of the results to copy.
        batch_norm: As for `Emitter`.
        stamps: Times each step; None: no timing.
    """

    def __init__(
        self,
        network: Network,
        results: Sequence[str],
        known: dict[str, Any],
        place: torch.device,
        operators: RunsOperator,
        copied: Collection[str] = (),
        batch_norm: Callable[..., Any] | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        super().__init__(network, known, place, operators, batch_norm)
        self._results, self._copied, self._stamps = results, copied, stamps

    def nested(self, graph: ir.Graph) -> str:
        outer, self._lines = self._lines, []
        arguments = [self.name(value) for value in graph.inputs]
        self._write(list(graph), graph.outputs)
        results = "".join(f"{self.name(value)}, " for value in graph.outputs)
        name = f"g{len(self.names)}"
        body = [f"    {line}" for line in (*self._lines, f"return ({results})")]
        self._lines = [*outer, f"def {name}({', '.join(arguments)}):", *body]
        return name

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
        """Append the lines of a graph's nodes; dead values are deleted, except those of the surrounding graph."""
        run, kept = steps(nodes), set(results)
        last: dict[ir.Value, int] = {}
        for index, step in enumerate(run):
            last.update((value, index) for value in step.inputs if value is not None)
        graph = nodes[0].graph if nodes else None
        ends: dict[int, list[ir.Value]] = {}
        for value, index in last.items():
            if self._is_of(value, graph):
                ends.setdefault(index, []).append(value)
        for index, step in enumerate(run):
            self._emit(step)
            made = [value for value in step.outputs if value.name]
            own = ends.get(index, ())
            dead = [value for value in (*own, *(value for value in made if value not in last)) if value not in kept]
            names = [self.names[value] for value in dead if value in self.names]
            if names := [name for name in names if name not in self.bound]:
                self.line(f"del {', '.join(names)}")
            if owners is not None:
                self._stamp(step, owners, [value for value in made if value not in dead])

    def _is_of(self, value: ir.Value, graph: ir.Graph | ir.Function | None) -> bool:
        maker = value.producer()
        return (value.graph if maker is None else maker.graph) is graph

    def _emit(self, step: Step) -> None:
        """Append a step; if torch does not support arithmetic in an element type, in another integer type."""
        lift, back = widening(step.nodes[-1])
        for value in dict.fromkeys(step.inputs) if lift else ():
            if value is not None and value.dtype in lift:
                name = f"w{len(self.names)}_{len(self._stand_ins)}"
                self.line(f"{name} = {self.function(lift[value.dtype])}({self.name(value)})")
                self._stand_ins[value] = name
        made = [*self._stand_ins.values()]
        if (text := step.emit(self)) is not None:
            self.line(f"{self.name(step.outputs[0])} = {text}")
        self._stand_ins.clear()
        for value in step.outputs if back else ():
            if value.name and value.dtype in back:
                name = self.name(value)
                self.line(f"{name} = {self.function(back[value.dtype])}({name})")
        if made:
            self.line(f"del {', '.join(made)}")

    def _stamp(self, step: Step, owners: Owners, alive: Sequence[ir.Value]) -> None:
        """Append the line that assigns the lines since the previous stamp to their owners."""
        if self._stamps is None or not self._lines:
            return
        if "mark" not in self.bound:
            self.bound["begin"], self.bound["mark"] = self._stamps.begin, self._stamps.mark
            self._lines.insert(0, "begin()")
        if (group := owners.group(owners.of(str(node.name)) for node in step.nodes)) is not None:
            values = [self.names[key] for key in alive if key in self.names]
            self.line(f"mark({', '.join([str(self._stamps.number(group)), *values])})")
        else:
            self.line("begin()")


def compile_forward(
    network: Network,
    results: Sequence[str],
    known: dict[str, Any],
    place: torch.device,
    operators: RunsOperator,
    *,
    owned: bool = False,
    batch_norm: Callable[..., Any] | None = None,
    stamps: Stamps | None = None,
) -> Program:
    """Generate and compile the forward function.

    Args:
        network: The network, of operators of the table.
        results: Names of the returned outputs.
        known: Live parameters and buffers by name; constants are added, for the next program.
        place: The device for constants.
        operators: As for `Emitter`.
        owned: Whether results must not share memory with an input or be a live value.
        batch_norm: As for `Emitter`.
        stamps: As for `Emitter`.
    """
    copied = borrowed(network) if owned else ()
    emitter = _Writer(network, results, known, place, operators, copied, batch_norm, stamps)
    source = emitter.source()
    scope = {**emitter.bound, **places_of(source, emitter.names)}
    # The source consists of the fixed strings of the operator table, generated identifiers and numbers; it contains
    # none of the model file's strings. Parameters are its globals: a call passes only the inputs.
    # If sizes differ between functions of the same file and name, torch's compiler treats them as dynamic.
    shapes = [tuple(value.shape) for value in scope.values() if isinstance(value, torch.Tensor)]
    name = hashlib.sha256(f"{source}{shapes}".encode()).hexdigest()[:16]
    exec(compile(source, f"<deep5 {len(network.nodes)} nodes {name}>", "exec"), scope)  # noqa: S102
    return Program(scope.pop("forward"), source)
