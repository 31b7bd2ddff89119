"""A network as Python source: one straight line of calls, parameters bound once, activations deleted when dead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from deep5.errors import Unsupported
from deep5.frameworks.pytorch.borrowing import borrowed
from deep5.frameworks.pytorch.custom import check_operator, on_tensors
from deep5.frameworks.pytorch.fusing import Step, steps
from deep5.frameworks.pytorch.short import in_float32, tensor, through_float32
from deep5.networks.constants import constant_value
from deep5.networks.custom import operator_of
from deep5.networks.layer_clock import Owners
from deep5.networks.network import Network
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
        self._names: dict[str, str] = {}
        self._lines: list[str] = []
        self.bound: dict[str, Any] = {}

    def name(self, value: ir.Value | None) -> str:
        """The identifier of a value; `None` for an input left out."""
        if value is None:
            return "None"
        key = str(value.name)
        if key not in self._names:
            self._names[key] = f"v{len(self._names)}"
            if key not in self._known and (constant := constant_value(value)) is not None:
                self._known[key] = tensor(constant).to(self._place)
            if key in self._known:
                self.bound[self._names[key]] = self._known[key]
        return self._names[key]

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
        name = str(value.dtype.numpy())  # type: ignore[union-attr]  # types were inferred
        self.bound[f"t_{name}"] = getattr(torch, name)
        return f"t_{name}"

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

    def line(self, text: str) -> None:
        """Append a line of the body."""
        self._lines.append(text)

    def source(self) -> str:
        """The whole function: inputs in order; outputs as a tuple in order."""
        network, run = self._network, steps(self._network)
        arguments = [self.name(value) for value in network.model.graph.inputs if value.name in network.inputs]
        outputs = {str(value.name): value for value in network.model.graph.outputs}
        last: dict[str, int] = {}
        for index, step in enumerate(run):
            last.update((str(value.name), index) for value in step.inputs if value is not None)
        owners = None if self._stamps is None else Owners(self._stamps.network, network)
        for index, step in enumerate(run):
            step.emit(self)
            made = [str(value.name) for value in step.outputs if value.name]
            dead = [key for key, at in last.items() if at == index] + [key for key in made if key not in last]
            names = [self._names[key] for key in dead if key in self._names and key not in self._results]
            if names := [name for name in names if name not in self.bound]:
                self.line(f"del {', '.join(names)}")
            if owners is not None:
                self._stamp(step, owners, [key for key in made if key not in dead or key in self._results])
        results = ", ".join(
            self.name(outputs[name]) + (".clone()" if name in self._copied else "") for name in self._results
        )
        return "\n    ".join([f"def forward({', '.join(arguments)}):", *self._lines, f"return ({results},)"])

    def _stamp(self, step: Step, owners: Owners, alive: Sequence[str]) -> None:
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
    scope = dict(emitter.bound)
    # The source is made of the fixed texts of the operator table, generated identifiers and numbers; nothing of the
    # model file's own text is in it. Parameters are its globals: a call hands over the inputs alone.
    # torch's compiler takes sizes that differ between functions of one file and name for sizes that change.
    shapes = [tuple(value.shape) for value in scope.values() if isinstance(value, torch.Tensor)]
    name = hashlib.sha256(f"{source}{shapes}".encode()).hexdigest()[:16]
    exec(compile(source, f"<deep5 {len(network.nodes)} nodes {name}>", "exec"), scope)  # noqa: S102
    return Program(scope.pop("forward"), source)
