"""A network as Python source: one straight line of calls, parameters bound once, activations deleted when dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from deep5.frameworks.pytorch.operators import OPERATORS
from deep5.networks.network import Network

__all__ = ["Emitter", "compile_forward"]


class Emitter:
    """Collects the source. Names of the model file never enter it: every value gets a generated identifier.

    Attributes:
        bound: What the source refers to by name: parameters, buffers, constants, functions.
    """

    def __init__(self, network: Network, place: Any) -> None:
        self._network, self._place = network, place
        self._constants = network.constants
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
            if key in self._constants:
                import torch

                self.bound[self._names[key]] = torch.from_numpy(self._constants[key]).to(self._place)
        return self._names[key]

    def function(self, function: Callable[..., Any]) -> str:
        """The identifier of a function."""
        name = f"f_{function.__name__.lstrip('_')}"
        self.bound[name] = function
        return name

    def line(self, text: str) -> None:
        """Append a line of the body."""
        self._lines.append(text)

    def source(self) -> str:
        """The whole function: inputs in order, then `training`; outputs as a tuple in order."""
        network = self._network
        arguments = [self.name(value) for value in network.model.graph.inputs if value.name in network.inputs]
        last: dict[str, int] = {}
        for index, node in enumerate(network.nodes):
            last.update((str(value.name), index) for value in node.inputs if value is not None)
        keep = {*network.outputs, *network.parameters, *network.buffers, *self._constants}
        for index, node in enumerate(network.nodes):
            OPERATORS[node.op_type](self, node)
            made = [str(value.name) for value in node.outputs if value.name and value.name in self._names]
            dead = [key for key, at in last.items() if at == index and key not in keep]
            dead += [key for key in made if key not in last and key not in keep]
            if dead:
                self.line(f"del {', '.join(self._names[key] for key in dead if key in self._names)}")
        results = ", ".join(self.name(value) for value in network.model.graph.outputs)
        defaults = ["*", *(f"{name}={name}" for name in self.bound)] if self.bound else []
        head = f"def forward({', '.join([*arguments, 'training', *defaults])}):"
        return "\n    ".join([head, *self._lines, f"return ({results},)"])


def compile_forward(network: Network, live: dict[str, Any], place: Any) -> tuple[Callable[..., tuple[Any, ...]], str]:
    """Generate and compile the forward function.

    Args:
        network: The network.
        live: Live parameters and buffers by name.
        place: The `torch.device` that constants go to.

    Returns:
        The function of (inputs in order, training), and its source.
    """
    emitter = Emitter(network, place)
    for name, tensor in live.items():
        identifier = emitter._names.setdefault(name, f"v{len(emitter._names)}")
        emitter.bound[identifier] = tensor
    source = emitter.source()
    scope = dict(emitter.bound)
    # The source is made of the fixed texts of the operator table, generated identifiers and numbers; nothing of the
    # model file's own text is in it.
    exec(compile(source, f"<deep5 {len(network.nodes)} nodes>", "exec"), scope)  # noqa: S102
    return scope["forward"], source
