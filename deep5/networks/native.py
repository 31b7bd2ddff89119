"""`NativeNetwork`: the description of a network written in a framework instead of as an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from deep5.core.errors import NetworkError, Unsupported
from deep5.core.tensors import TensorSpec
from deep5.networks.hashes import hash_of_lines, hash_of_values
from deep5.networks.onnx.initial_values import InitialValues

__all__ = ["NativeNetwork"]


@dataclass(frozen=True, kw_only=True)
class NativeNetwork:
    """The network interface of executors, trainer and recipes, for a network that only its own framework can run.

    Attributes:
        name: Its name in messages.
        inputs: Specifications of the inputs that a caller feeds, by name.
        outputs: Specifications of the outputs, by name.
        parameter_specs: Specifications of the trained values, by name.
        buffer_specs: Specifications of values that training changes without a gradient, by name.
        structure: A string that differs if the computation differs, such as a listing of its operations.
        weights: The result of `weights_hash` if there are no values.
        values: The value of every parameter and buffer, not copied; empty if they are not kept, as by an executor,
            which would hold all weights twice.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    parameter_specs: Mapping[str, TensorSpec]
    buffer_specs: Mapping[str, TensorSpec]
    structure: str
    weights: str = ""
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def frozen(self) -> frozenset[str]:
        """Parameters without a gradient: none, since values that the native code does not train are buffers."""
        return frozenset()

    @property
    def trained_specs(self) -> Mapping[str, TensorSpec]:
        """Specifications of the parameters with a gradient: all of them."""
        return self.parameter_specs

    def parameters(self) -> Mapping[str, np.ndarray]:
        """The initial values of the parameters by name, each read on access."""
        return InitialValues(self.initial, self.parameter_specs)

    def buffers(self) -> Mapping[str, np.ndarray]:
        """The initial values of the buffers by name, each read on access."""
        return InitialValues(self.initial, self.buffer_specs)

    def initial(self, name: str) -> np.ndarray:
        """The initial value of a parameter or buffer, as a fresh, writable array.

        Raises:
            NetworkError: The name is unknown.
            Unsupported: The values are not kept.
        """
        if name not in self.parameter_specs and name not in self.buffer_specs:
            raise NetworkError(
                f"no initial value {name!r}; allowed: {', '.join((*self.parameter_specs, *self.buffer_specs))}"
            )
        if name not in self.values:
            raise Unsupported(
                f"the initial value {name!r} of the network {self.name!r}, which is native code, is not kept: it would "
                "be a second copy of the weights; remedy: keep executor.state_dict() before training"
            )
        return np.array(self.values[name], order="C")

    def with_values(self, values: Mapping[str, np.ndarray]) -> NativeNetwork:
        """Not supported: there is no graph to put values into.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(
            f"the network {self.name!r} is native code, which cannot be exported as a graph; remedy: keep "
            "executor.state_dict() beside the code that made it, or write the network in ONNX's operators "
            "(NetworkBuilder)"
        )

    def weights_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of all initial parameters and buffers."""
        if not self.values:
            return self.weights
        return hash_of_values({**self.parameter_specs, **self.buffer_specs}, self.initial)

    def structure_hash(self) -> str:
        """SHA-256 over the structure string and all specifications, without the weights."""
        lines = [f"native {self.structure}"]
        parts = {"inputs": self.inputs, "outputs": self.outputs, "parameters": self.parameter_specs}
        for kind, specs in {**parts, "buffers": self.buffer_specs}.items():
            lines += [f"{kind} {name} {spec}" for name, spec in specs.items()]
        return hash_of_lines(lines)
