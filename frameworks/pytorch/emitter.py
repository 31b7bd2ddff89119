"""`Emitter`: the interface by which the operator table writes a network's source."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from deep5.core.errors import Unsupported
from deep5.core.operator import Operator
from deep5.core.python_source import number
from deep5.frameworks.pytorch.operator_check import check_operator
from deep5.frameworks.pytorch.short import in_float32, tensor, through_float32
from deep5.networks.constants import constant_value
from deep5.networks.custom import operator_of
from deep5.networks.narrow_results import miscomputed
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.element_types import element_type

__all__ = ["Emitter", "RunsOperator"]

RunsOperator = Callable[[Operator], Callable[..., tuple[Any, ...]]]
"""Converts an operator to a function of tensors that returns a tuple of tensors."""


class Emitter(ABC):
    """Collects the source. Names in the model file never enter it: every value gets a generated identifier.

    Args:
        network: The network to emit.
        known: Live parameters and buffers by name; constants are added.
        place: The `torch.device` for constants.
        operators: Converts a registered operator to a function of tensors.
        batch_norm: Replacement for batch normalization in training; None: torch's own.

    Attributes:
        batch_norm: As given.
        on_host: Whether the network runs in host memory.
        names: The identifiers of all values.
        bound: The objects that the source refers to by name: parameters, buffers, constants, functions.
    """

    def __init__(
        self,
        network: Network,
        known: dict[str, Any],
        place: torch.device,
        operators: RunsOperator,
        batch_norm: Callable[..., Any] | None = None,
    ) -> None:
        self._network, self._known, self._place = network, known, place
        self._operators, self.batch_norm = operators, batch_norm
        self.on_host: bool = place.type == "cpu"
        self._graph = network.model.graph
        self.names: dict[ir.Value, str] = {}
        # Substitutes for values while one node is emitted: integer types that torch stores but has no arithmetic for.
        self._stand_ins: dict[ir.Value, str] = {}
        self._lines: list[str] = []
        self.bound: dict[str, Any] = {}

    def name(self, value: ir.Value | None) -> str:
        """The identifier of a value; `None` for an omitted input."""
        if value is None:
            return "None"
        if value in self._stand_ins:
            return self._stand_ins[value]
        if value not in self.names:
            name = self.names[value] = f"v{len(self.names)}"
            held = self._nested_constant(value) if self.is_nested(value) else self._held(value)
            if held is not None:
                self.bound[name] = held
        return self.names[value]

    def _held(self, value: ir.Value) -> Any:
        """The constant, live parameter or buffer of a value in the network's main graph; else None."""
        key = str(value.name)
        if key not in self._known and (constant := constant_value(value)) is not None:
            self._known[key] = tensor(constant).to(self._place)
        return self._known.get(key)

    def is_nested(self, value: ir.Value) -> bool:
        """Whether a value belongs to a subgraph of a node: other values may have the same name."""
        maker = value.producer()
        return (value.graph if maker is None else maker.graph) not in (self._graph, None)

    def _nested_constant(self, value: ir.Value) -> Any:
        constant = constant_value(value)
        if constant is None and value.is_initializer() and value.const_value is not None:
            constant = value.const_value.numpy()
        return None if constant is None else tensor(constant).to(self._place)

    def setting(self, value: ir.Value | None) -> str:
        """A number or a list of numbers as source: literals for a constant, otherwise read at run time."""
        if value is None:
            return "None"
        constant = constant_value(value)
        return self.literal(constant.tolist()) if constant is not None else f"{self.name(value)}.tolist()"

    def literal(self, value: Any) -> str:
        """An attribute as source; for non-numbers an identifier: no string of a file enters the source."""
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        if isinstance(value, float):
            return number(value)
        if isinstance(value, (list, tuple)) and not any(isinstance(entry, str) for entry in value):
            return f"[{', '.join(map(self.literal, value))}]"
        name = f"a{len(self.bound)}"
        self.bound[name] = value
        return name

    def constant(self, array: np.ndarray) -> str:
        """The identifier of a tensor with these numbers, on the network's device."""
        name = f"a{len(self.bound)}"
        self.bound[name] = tensor(array).to(self._place)
        return name

    def function(self, function: Callable[..., Any]) -> str:
        """The identifier of a function."""
        name = f"f_{function.__name__.lstrip('_')}"
        while self.bound.setdefault(name, function) is not function:
            name += "_"
        return name

    def product(self, node: ir.Node, function: Callable[..., Any]) -> str:
        """The identifier of a function for a node's product, in float32 for types without a suitable torch kernel."""
        wide = through_float32(node.outputs[0].dtype, self._place) or (self._place.type == "cpu" and miscomputed(node))
        return self.function(in_float32(function) if wide else function)

    def dtype(self, value: ir.Value | None) -> str:
        """The identifier of a value's element type."""
        name = element_type(value.dtype)  # type: ignore[union-attr,arg-type]  # types were inferred
        self.bound[f"t_{name}"] = getattr(torch, name)
        return f"t_{name}"

    def place(self) -> str:
        """The identifier of the device for new tensors."""
        self.bound["place"] = self._place
        return "place"

    def stream(self, node: ir.Node) -> str:
        """The identifier of a node's random generator; without a seed in the file, the seed derives from its name."""
        seed = attribute(node, "seed", None)
        bits = zlib.crc32(str(node.name).encode()) if seed is None else int(np.float32(seed).view(np.uint32))
        name = f"r{len(self.bound)}"
        self.bound[name] = torch.Generator(self._place).manual_seed(bits)
        return name

    def custom(self, node: ir.Node) -> None:
        """Append the line that runs a registered operator; the node may have fewer outputs than the operator.

        Raises:
            Unsupported: It is a native operator of another framework.
        """
        operator = operator_of(node)
        if operator is None:
            raise Unsupported(f"no operator {node.op_type!r} of the domain {node.domain!r} is registered")
        check_operator(operator, self._place.type)
        function = self.function(self._operators(operator))
        outputs = [self.name(value) if value.name else "_" for value in node.outputs]
        inputs = ", ".join(self.name(value) for value in node.inputs)
        self.line(f"{', '.join(outputs)}, = {function}({inputs})[:{len(outputs)}]")
        if "_" in outputs:
            self.line("del _")

    @abstractmethod
    def nested(self, graph: ir.Graph) -> str:
        """Append a function for a subgraph of a node, which captures values of outer graphs; returns its identifier.

        The function takes the subgraph's inputs in order and returns a tuple.
        """

    def line(self, text: str) -> None:
        """Append a line of the body."""
        self._lines.append(text)
