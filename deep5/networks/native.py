"""`NativeNetwork`: the description of a network that was written in a framework and not as an ONNX graph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from deep5.errors import NetworkError, Unsupported
from deep5.tensors import TensorSpec

__all__ = ["NativeNetwork"]


@dataclass(frozen=True, kw_only=True)
class NativeNetwork:
    """What executors, trainer and recipes ask of a network, of one that only its own framework can run.

    Attributes:
        name: What messages call it.
        inputs: Specifications of the inputs that a caller feeds, by name.
        outputs: Specifications of the outputs, by name.
        parameters: Specifications of what is trained, by name.
        buffers: Specifications of values that training changes without a gradient, by name.
        values: The initial value of every parameter and buffer. They are not copied: whoever makes the description
            hands over arrays that nobody writes to.
        structure: A text that differs where the computation differs, such as a listing of its operations.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    parameters: Mapping[str, TensorSpec]
    buffers: Mapping[str, TensorSpec]
    values: Mapping[str, np.ndarray]
    structure: str

    def initial(self, name: str) -> np.ndarray:
        """The initial value of a parameter or buffer; a fresh, writable array.

        Raises:
            NetworkError: Nothing has that name.
        """
        if name not in self.values:
            raise NetworkError(f"no initial value {name!r}; allowed: {', '.join(self.values)}")
        return np.array(self.values[name], order="C")

    def with_values(self, values: Mapping[str, np.ndarray]) -> NativeNetwork:
        """There is no graph to put other values into.

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
        digest = hashlib.sha256()
        for name, spec in {**self.parameters, **self.buffers}.items():
            digest.update(f"{name} {spec}\n".encode())
            digest.update(self.initial(name).tobytes())
        return digest.hexdigest()

    def structure_hash(self) -> str:
        """SHA-256 over the structure's text and all specifications, without the weights."""
        lines = [f"native {self.structure}"]
        for kind in ("inputs", "outputs", "parameters", "buffers"):
            lines += [f"{kind} {name} {spec}" for name, spec in getattr(self, kind).items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
